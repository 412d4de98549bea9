# SPDX-License-Identifier: Apache-2.0
"""A barrier that names the ranks that do not come, by the error texts of PyTorch's Gloo group."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from no_threads import no_threads
from rank_processes import kill_self, run_ranks


def barrier(timeout_s: float, *, wait_all_ranks: bool = False) -> None:
    group = dist.distributed_c10d._get_default_group()
    group.monitored_barrier(timedelta(seconds=timeout_s), wait_all_ranks)


def error_of_barrier(timeout_s: float, *, wait_all_ranks: bool = False) -> str:
    with pytest.raises(RuntimeError) as caught:
        barrier(timeout_s, wait_all_ranks=wait_all_ranks)
    return str(caught.value)


def pass_twice(rank: int) -> None:
    for wait_all_ranks in (False, True):
        time.sleep(0.1 * rank)
        barrier(10, wait_all_ranks=wait_all_ranks)
    with no_threads():
        barrier(10)


def test_all_ranks_pass_without_a_further_thread() -> None:
    run_ranks(pass_twice, 3)


def stay_away(rank: int, absent: tuple[int, ...], wait_all_ranks: bool) -> str:
    if rank in absent:
        time.sleep(1.5)
    text = error_of_barrier(0.5, wait_all_ranks=wait_all_ranks)
    total = torch.ones(1)
    dist.all_reduce(total)  # The group goes on.
    assert total.item() == dist.get_world_size()
    barrier(10)
    return text


@pytest.mark.parametrize("wait_all_ranks", [False, True])
def test_absent_ranks_are_named_and_the_group_goes_on(wait_all_ranks: bool) -> None:
    texts = run_ranks(stay_away, 4, (2, 3), wait_all_ranks)
    named = "Ranks 2, 3" if wait_all_ranks else "Rank 2"
    assert f"[Rank 0]: {named} failed to pass monitoredBarrier in 500 ms" in texts[0]
    reached = "successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0"
    assert f"Rank 1 {reached}: [Rank 0]: {named} failed" in texts[1]
    assert f"Rank 3 {reached}: [Rank 0]: {named} failed" in texts[3], "a late rank learns it too"


def stay_away_as_rank_0(rank: int) -> str:
    if rank == 0:
        time.sleep(1)
        return ""
    return error_of_barrier(0.3)


def test_a_missing_rank_0_is_named() -> None:
    assert "rank 0 gave no answer within 300 ms" in run_ranks(stay_away_as_rank_0, 2)[1]


def wait_for_nothing(rank: int) -> str:
    return error_of_barrier(0) if rank == 0 else ""


def test_a_timeout_of_zero_is_over_at_once() -> None:
    assert "Rank 0 timed out in monitoredBarrier after 0 ms" in run_ranks(wait_for_nothing, 2)[0]


def lose_a_rank(rank: int) -> str:
    dist.barrier()
    if rank == 1:
        kill_self()
    began = time.monotonic()
    text = error_of_barrier(60)
    assert time.monotonic() - began < 20, "a dead rank is known long before the timeout"
    return text


def test_a_rank_that_died_ends_the_barrier_early() -> None:
    texts = run_ranks(lose_a_rank, 3, may_die=True)
    assert "rank 1" in texts[0]
    assert "rank 1" in texts[2]
