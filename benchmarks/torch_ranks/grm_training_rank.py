# SPDX-License-Identifier: Apache-2.0
"""One of several ranks of the benchmark of generative recommenders.

Started by ``benchmarks.grm_training``. Rank 0 prints one JSON line with the fields of ``Rounds``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from headway.training import TrainingConfig

from benchmarks import grm_training
from benchmarks.torch_ranks.cuda_ranks import device_of


def main(fields: Mapping[str, Any]) -> None:
    """Trains a system."""
    options = argparse.Namespace(**fields["options"])
    if options.generative_recommenders is not None:
        options.generative_recommenders = Path(options.generative_recommenders)
    os.environ["LOCAL_RANK"] = str(fields["rank"])
    is_cuda = options.device == "cuda"
    if is_cuda:
        torch.cuda.set_device(device_of(fields["rank"]))
    is_peer = fields["system"] == "torchrec"
    backend = ("nccl" if is_cuda else "gloo") if is_peer else "headway"
    group = dist.new_group(backend=backend, timeout=timedelta(seconds=fields["timeout_s"]))
    train = grm_training.train_peer if is_peer else grm_training.train_headway
    rounds = train(options, TrainingConfig.of(fields["config"]), group)
    if fields["rank"] == 0:
        print(json.dumps(dataclasses.asdict(rounds)), flush=True)
    dist.barrier()  # Leave together.
