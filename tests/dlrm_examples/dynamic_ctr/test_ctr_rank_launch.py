"""A rank that fails, dies or hangs ends all ranks, with one line of error."""

from __future__ import annotations

import os
import signal
import time
from functools import partial

import pytest
import torch.distributed as dist

from dlrm_examples.bls_dlrm.launch import RankFailedError
from dlrm_examples.dynamic_ctr.group import gather
from dlrm_examples.dynamic_ctr.rank_launch import run_ranks


def fail(group: dist.ProcessGroup, *, how: str) -> None:
    if group.rank() == 1:
        if how == "raise":
            raise ValueError("no such thing\nand more")
        if how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
    gather(None, group)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raise", "^rank 1 failed: ValueError: no such thing$"),
        ("die", "^rank 1 was killed by SIGKILL$"),
    ],
)
def test_a_rank_that_does_not_come_to_its_end_is_named(how: str, reason: str) -> None:
    with pytest.raises(RankFailedError, match=reason):
        run_ranks(partial(fail, how=how), num_ranks=2, timeout_s=60)


def test_ranks_that_take_too_long_are_killed() -> None:
    start = time.monotonic()
    with pytest.raises(RankFailedError, match=r"ranks \[0, 1\] did not finish within 1 s"):
        run_ranks(partial(fail, how="hang"), num_ranks=2, timeout_s=1)
    assert time.monotonic() - start < 30
