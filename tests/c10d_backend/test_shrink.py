# SPDX-License-Identifier: Apache-2.0
"""Training continues after ranks are lost, even rank 0 with its store."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from datetime import timedelta

import headway
import pytest
import torch
import torch.distributed as dist
from listening import listening_addresses
from rank_processes import DIED, kill_self, run_ranks

NUM_RANKS = 4
NUM_STEPS = 12
LOSS_AT = 5  #: Step in which ranks are lost.


def gradient(rank: int, step: int) -> torch.Tensor:
    return torch.full((8,), float(rank + 1)) * (step + 1)


def advance(weights: torch.Tensor, rank: int, step: int) -> torch.Tensor:
    """Does one step. The all-to-all comes last, so a rank that has completed it has the new weights."""
    mean = gradient(rank, step)
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    received = torch.empty(dist.get_world_size())
    dist.all_to_all_single(received, torch.full((dist.get_world_size(),), float(rank * step)))
    return weights - 0.1 * mean + received.sum()


def expected_weights(ranks_by_step: list[list[int]]) -> torch.Tensor:
    """Computes the same weights in one process."""
    weights = torch.zeros(8)
    for step, ranks in enumerate(ranks_by_step):
        mean = torch.stack([gradient(rank, step) for rank in ranks]).sum(0) / len(ranks)
        weights = weights - 0.1 * mean + torch.tensor([float(rank * step) for rank in ranks]).sum()
    return weights


def train(rank: int, lose_this_rank: bool, timeout_s: float) -> tuple[list[list[int]], list[float]]:
    """Trains through losses. Returns the ranks that took part in each step, and the weights."""
    history = [torch.zeros(8)]
    ranks = list(range(NUM_RANKS))
    ranks_by_step: list[list[int]] = []
    began_at = 0  # Step in which the present group began.
    while len(ranks_by_step) < NUM_STEPS:
        step = len(ranks_by_step)
        if lose_this_rank and step == LOSS_AT:
            kill_self()
        try:
            history.append(advance(history[step], rank, step))
            ranks_by_step.append(ranks)
        except RuntimeError:
            shrunk = headway.shrink(timeout=timedelta(seconds=timeout_s))
            ranks = [ranks[old] for old in shrunk.ranks]
            began_at += shrunk.all_to_alls[0]  # All survivors have completed so many exchanges of the old group.
            del history[began_at + 1 :], ranks_by_step[began_at:]
    dist.barrier()
    return ranks_by_step, history[-1].tolist()


def train_through_losses(rank: int, lost: list[int]) -> tuple[list[list[int]], list[float], int, int]:
    result = train(rank, rank in lost, timeout_s=20)
    return (*result, dist.get_rank(), dist.get_world_size())


@pytest.mark.parametrize("lost", [[0], [1], [3], [0, 2]], ids=str)
def test_training_goes_on_without_the_ranks_that_are_lost(lost: list[int]) -> None:
    results = run_ranks(train_through_losses, NUM_RANKS, lost, may_die=True, limit_s=120)
    left = [rank for rank in range(NUM_RANKS) if rank not in lost]
    everybody = list(range(NUM_RANKS))
    for rank, result in enumerate(results):
        if rank in lost:
            assert result is DIED
            continue
        ranks_by_step, weights, new_rank, new_size = result
        assert (new_rank, new_size) == (left.index(rank), len(left))
        assert ranks_by_step == [everybody] * LOSS_AT + [left] * (NUM_STEPS - LOSS_AT)
        assert weights == expected_weights(ranks_by_step).tolist()


def stop_or_train(rank: int) -> str:
    victim = 1
    pids: list[int | None] = [None] * NUM_RANKS
    dist.all_gather_object(pids, os.getpid())
    dist.barrier()
    if rank == victim:
        os.kill(os.getpid(), signal.SIGSTOP)
        with contextlib.suppress(RuntimeError):
            dist.barrier()
        try:
            headway.shrink(timeout=timedelta(seconds=5))
        except RuntimeError as error:
            return str(error)
        return "it made a group of its own"
    with pytest.raises(RuntimeError, match="rank 1"):
        dist.barrier()
    ranks_by_step, _ = train(rank, False, timeout_s=3)
    pid = pids[victim]
    assert pid is not None
    if rank == 0:
        os.kill(pid, signal.SIGCONT)
        time.sleep(1)
    return str(ranks_by_step)


def test_a_stopped_rank_is_left_out_and_gets_an_error_when_it_wakes() -> None:
    results = run_ranks(stop_or_train, NUM_RANKS, limit_s=120, timeout_s=3)
    assert "without rank 1" in results[1], results[1]
    for rank in (0, 2, 3):
        assert results[rank] == str([[0, 2, 3]] * NUM_STEPS)


def shrink_without_the_last(rank: int) -> set[str]:
    before = listening_addresses()
    if rank == 2:
        kill_self()
    with pytest.raises(RuntimeError):
        dist.barrier()
    headway.shrink(timeout=timedelta(seconds=10))
    dist.barrier()
    listening = listening_addresses() - before
    dist.barrier()
    return listening


def test_the_store_of_a_shrunk_group_is_not_reachable_from_other_hosts() -> None:
    assert run_ranks(shrink_without_the_last, 3, may_die=True) == [{"127.0.0.1"}, set(), DIED]
