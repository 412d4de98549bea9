# SPDX-License-Identifier: Apache-2.0
"""Ranks killed at random times: no hang, an error that names the rank, and a resume with the exact samples.

It takes minutes, so it runs on request: ``pytest -m thorough tests/python/training/test_training_kills.py``. The
environment variable ``KILLS`` is the number of kills.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from headway.comm.rank_processes import RankFailedError
from headway.training import Trainer
from training_cases import ExactModel, Run, make_config, make_folder, same_bits, train

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(7200)]


def slow_down(trainer: Trainer) -> None:
    """Makes steps long enough that kills hit them."""
    plain = trainer._step

    def step(*arguments: Any) -> None:
        time.sleep(0.1)
        plain(*arguments)

    trainer._step = step  # type: ignore[method-assign]


def kill_one_rank(number: int) -> None:
    """Kills the child process with this index, if it still runs."""
    ranks = sorted(multiprocessing.active_children(), key=lambda process: process.pid or 0)
    if number < len(ranks):
        os.kill(ranks[number].pid or 0, signal.SIGKILL)


def test_a_killed_training_resumes_with_the_exact_samples(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log", targets=2)
    config = make_config(folder, run={"epochs": 6}, checkpoint={"every": 3})
    (whole,) = train(1, Run(config=config, model=ExactModel))
    draw, num_killed = random.Random(1), 0
    for attempt in range(10 * (wanted := int(os.environ.get("KILLS", "10")))):
        out, is_first = tmp_path / f"out-{attempt}", True
        while True:
            num_ranks = draw.randint(1, 4)
            timer = threading.Timer(draw.uniform(1, 7), kill_one_rank, [draw.randrange(num_ranks)])
            timer.start()
            resumes = (
                not is_first and (out / "checkpoints").exists() and any((out / "checkpoints").glob("*/manifest.json"))
            )
            run = Run(config=config, out=out, model=ExactModel, resume=resumes, before=slow_down)
            begin = time.monotonic()
            try:
                (state,) = train(num_ranks, run)
            except RankFailedError as error:
                assert "was killed by SIGKILL" in str(error), error
                assert time.monotonic() - begin < 60
                num_killed, is_first = num_killed + 1, False
                continue
            finally:
                timer.cancel()
            break
        assert same_bits(state, whole), f"attempt {attempt}"
        print(f"{num_killed} killed, {attempt + 1} trainings have the exact bits", flush=True)
        if num_killed >= wanted:
            return
