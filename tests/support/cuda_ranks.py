# SPDX-License-Identifier: Apache-2.0
"""Ranks on GPUs. Several ranks share a GPU if there are too few."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rank_processes import run_ranks


def num_gpus() -> int:
    """Counts the GPUs of this host without CUDA: a process that has used CUDA must not fork."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


#: ``pytestmark`` of modules whose tests need a GPU.
NEEDS_GPU = [pytest.mark.gpu, pytest.mark.skipif(num_gpus() == 0, reason="this host has no GPU")]


def run_on_gpus(function: Any, size: int, *arguments: Any, **options: Any) -> list[Any]:
    """Calls ``run_ranks()`` with spawned processes, for ranks that use CUDA."""
    return run_ranks(function, size, *arguments, start_method="spawn", **options)


def take_device(rank: int) -> torch.device:
    """Makes the GPU of a rank the current one."""
    torch.cuda.set_device(rank % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


def keep_busy(milliseconds: float) -> None:
    """Enqueues a wait on the current stream: 10^6 clock cycles per millisecond, so less time at more than 1 GHz."""
    torch.cuda._sleep(int(milliseconds * 1e6))
