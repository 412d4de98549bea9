# SPDX-License-Identifier: Apache-2.0
"""A rank that fails, dies or hangs ends all ranks, with one line of error.

``run_ranks()`` calls a function with the rank and a function that sends a message to the process of the test.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from headway.comm.rank_processes import RankFailedError, run_ranks


def fail(rank: int, send: object, *, how: str) -> None:
    if rank == 1:
        if how == "raise":
            raise ValueError("no such thing\nand more")
        if how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exit":
            os._exit(3)
        time.sleep(600)
    dist.barrier()


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raise", r"^rank 1 failed: ValueError: no such thing \(at test_rank_processes.py:\d+\)$"),
        ("die", "^rank 1 was killed by SIGKILL$"),
        ("exit", r"^rank 1 ended without a report \(exit status 3\)$"),
    ],
)
def test_a_rank_that_does_not_come_to_its_end_is_named(how: str, reason: str) -> None:
    with pytest.raises(RankFailedError, match=reason):
        run_ranks(partial(fail, how=how), num_ranks=2, timeout_s=60, backend="headway")


def test_ranks_that_take_too_long_are_killed() -> None:
    start = time.monotonic()
    with pytest.raises(RankFailedError, match=r"ranks \[0, 1\] did not finish within 1 s"):
        run_ranks(partial(fail, how="hang"), num_ranks=2, timeout_s=1, backend="headway")
    assert time.monotonic() - start < 30


def send_and_add(rank: int, send: Callable[[tuple[int, int]], None]) -> int:
    for number in range(100):
        send((rank, number))
    return dist.get_world_size() + rank


def test_messages_of_a_rank_keep_their_order_and_the_result_is_that_of_rank_0() -> None:
    found: list[tuple[int, int]] = []
    assert run_ranks(send_and_add, num_ranks=2, timeout_s=60, backend="gloo", on_message=found.append) == 2
    for rank in range(2):
        assert [number for sender, number in found if sender == rank] == list(range(100))


class AbortsAtShutdown:
    """Aborts the process if the interpreter shuts down, as a thread of Gloo may."""

    def __del__(self) -> None:
        os.abort()


def abort_at_shutdown(rank: int, send: object, *, folder: Path, fails: bool) -> int:
    modules: Any = sys.modules
    modules[AbortsAtShutdown.__name__] = AbortsAtShutdown()
    atexit.register((folder / str(rank)).touch)
    if fails and rank == 1:
        raise ValueError("no such thing")
    dist.barrier()
    return 7


def test_a_rank_that_would_abort_at_its_end_is_no_failure(tmp_path: Path) -> None:
    run = partial(run_ranks, num_ranks=2, timeout_s=60, backend="gloo")
    assert run(partial(abort_at_shutdown, folder=tmp_path, fails=False)) == 7
    assert sorted(each.name for each in tmp_path.iterdir()) == ["0", "1"], "exit handlers ran"
    with pytest.raises(RankFailedError, match="rank 1 failed: ValueError: no such thing"):
        run(partial(abort_at_shutdown, folder=tmp_path, fails=True))
