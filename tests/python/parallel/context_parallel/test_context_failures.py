# SPDX-License-Identifier: Apache-2.0
"""A rank that is lost between two exchanges is named by the others, in time."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from context_cases import Batch, plan_of, random, stack_of
from headway.parallel.context_parallel import ContextParallel
from rank_processes import DIED, kill_self, run_ranks

BATCH = Batch(lengths=(9, 30, 4, 12))


def lose_a_rank(rank: int) -> tuple[str, float]:
    """Kills rank 1 before the second layer; returns the error of another rank, and the seconds until it."""
    config = BATCH.config()
    stack, context = stack_of(config), ContextParallel(dist.group.WORLD, config)
    plan = plan_of(context, BATCH, rank)
    sequences = plan.sequences()
    x = random(len(plan.own_tokens), config.dim, seed=1, dtype=torch.float64)
    x = stack.layers[0](x, sequences, parallel=plan)
    if rank == 1:
        kill_self()
    start = time.monotonic()
    try:
        stack.layers[1](x, sequences, parallel=plan)
    except RuntimeError as error:
        return str(error), time.monotonic() - start
    return "no error", 0.0


def test_a_lost_rank_is_named_within_the_timeout() -> None:
    first, lost, third = run_ranks(lose_a_rank, 3, may_die=True, timeout_s=10)
    assert lost is DIED
    for message, seconds in (first, third):
        assert "rank 1" in message
        assert seconds < 15
