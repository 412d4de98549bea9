# SPDX-License-Identifier: Apache-2.0
"""Ranks of a benchmark drop a failing system together, or the failing rank reports: none waits for ever.

A system is an implementation that is measured, such as Headway or Gloo.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks

from benchmarks.harness.errors import BenchmarkError
from benchmarks.torch_ranks.agreeing import SystemFailure, on_all_ranks

CPU = torch.device("cpu")


def add_up(rank: int, group: dist.ProcessGroup) -> float:
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total, group=group)
    return float(total)


def fail_at_last_rank(rank: int, group: dist.ProcessGroup) -> None:
    add_up(rank, group)
    if rank == group.size() - 1:
        raise ValueError("the loss is not finite")


def go_on_after_a_failure(rank: int) -> tuple[str, list[float]]:
    group = dist.new_group()
    with pytest.raises(SystemFailure) as failure:
        on_all_ranks(lambda: fail_at_last_rank(rank, group), CPU)
    return str(failure.value), on_all_ranks(lambda: add_up(rank, group) + rank, CPU)


def test_all_ranks_learn_of_a_failure_and_go_on() -> None:
    for told, results in run_ranks(go_on_after_a_failure, 3, backend="gloo"):
        assert told.startswith("rank 2:") and "ValueError: the loss is not finite" in told
        assert results == [6, 7, 8]


def fail_while_others_wait(rank: int) -> str:
    group = dist.new_group()

    def action() -> None:
        if rank == 0:
            raise ValueError("no memory")
        add_up(rank, group)

    with pytest.raises((BenchmarkError, RuntimeError)) as failure:
        on_all_ranks(action, CPU)
    return f"{type(failure.value).__name__}: {failure.value}"


def test_a_rank_that_others_wait_for_says_why() -> None:
    of_first, _ = run_ranks(fail_while_others_wait, 2, backend="gloo", timeout_s=3, limit_s=60)
    assert of_first == "BenchmarkError: it failed, and the ranks cannot go on: ValueError: no memory"
