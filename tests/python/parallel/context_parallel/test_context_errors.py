# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of one rank are a ValueError with both values on all ranks, and ranks go on afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from context_cases import BATCHES, Batch, plan_of, stack_of
from headway.parallel.context_parallel import ContextParallel
from rank_processes import run_ranks
from torch.distributed.device_mesh import init_device_mesh

BATCH = Batch(lengths=(3, 4, 2))


def message_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


def check_errors(rank: int) -> dict[str, str]:
    """Makes one mistake after the other, all of them on rank 1 alone. Returns the messages."""
    config = BATCH.config()
    stack = stack_of(config)
    context = ContextParallel(dist.group.WORLD, config)
    is_wrong = rank == 1

    def run_stack(plan: Any, num_rows: int, sequences: Any) -> None:
        stack(torch.zeros(num_rows, config.dim, dtype=torch.float64), sequences, parallel=plan)

    plans = [plan_of(context, BATCH, rank) for _ in range(4)]
    own, brought = len(plans[0].own_tokens), len(plans[0].brought_tokens)
    sequences = plans[0].sequences()
    other = replace(sequences, max_length=9)
    found = {
        "lengths": message_of(lambda: context.plan([3, 4 + is_wrong, 2], samples="all")),
        "negative": message_of(lambda: context.plan([3, -2 if is_wrong else 2])),
        "targets": message_of(lambda: context.plan([3], num_targets=[5 if is_wrong else 1])),
        "floats": message_of(lambda: context.plan(torch.ones(3) if is_wrong else torch.ones(3, dtype=torch.int64))),
        "no targets": message_of(lambda: context.plan([3], num_targets=None if is_wrong else [1])),
        "rows": message_of(lambda: context.shard([torch.zeros(brought + is_wrong)], plans[0])),
        "unshard": message_of(lambda: context.unshard([torch.zeros(own + is_wrong)], plans[0])),
        "plan": message_of(lambda: context.shard([torch.zeros(brought)], plans[is_wrong])),
        "layer rows": message_of(lambda: run_stack(plans[1], own + is_wrong, sequences)),
        "layer plan": message_of(lambda: run_stack(plans[2 + is_wrong], own, sequences)),
        "layer sequences": message_of(lambda: run_stack(plans[1], own, other if is_wrong else sequences)),
    }
    run_stack(plans[1], own, sequences)  # The ranks still agree.
    return found


EXPECTED = {
    "lengths": ["lengths differ between ranks: rank 0 has [3, 4, 2], and rank 1 has [3, 5, 2]"],
    "negative": ["rank 1: lengths of sequence 1 is -2"],
    "targets": ["rank 1: sequence 0 has 3 tokens, fewer than its 5 targets and 0 contextual tokens"],
    "floats": ["rank 1: lengths must be (sequences,) integers, not (3,) torch.float32"],
    "no targets": ["differ between ranks", "('own', True, False)", "rank 1 has ('own', False, False)"],
    "rows": ["rank 1: tensor 0 has shape (10,), and this rank brings 9 planned tokens"],
    "unshard": ["rank 1: tensor 0 has shape (6,), and this rank owns 5 planned tokens"],
    "plan": ["rank 0 uses the plan of batch 0, and rank 1 that of 1"],
    "layer rows": ["rank 1: tensor 0 has shape (6, 6), and this rank owns 5 planned tokens"],
    "layer plan": ["rank 0 uses the plan of batch 2, and rank 1 that of 3"],
    "layer sequences": ["rank 1: the plan is of a batch of 3 sequences of up to 4 tokens", "3 sequences of up to 9"],
}


def test_a_mistake_of_one_rank_is_an_error_with_both_values_on_all_ranks() -> None:
    for messages in run_ranks(check_errors, 2):
        assert messages.keys() == EXPECTED.keys()
        for name, parts in EXPECTED.items():
            for part in parts:
                assert part in messages[name], name


def check_groups(rank: int) -> list[str]:
    config = BATCH.config(num_heads=2)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    context = ContextParallel(mesh["cp"], config)
    plan = context.plan([rank + 1])
    groups: list[int] = [0] * 4
    dist.all_gather_object(groups, plan.batch.num_tokens)
    assert groups == [3, 3, 7, 7]  # Ranks 0 and 1 share a batch, and ranks 2 and 3 share one.
    assert ContextParallel(mesh, config).plan([1]).batch.num_tokens == 2
    return [
        message_of(lambda: ContextParallel(dist.group.WORLD, config, layout="heads")),
        message_of(lambda: ContextParallel(init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")), config)),
    ]


def test_a_mesh_needs_its_dimension_and_ranks_need_heads() -> None:
    for heads, mesh in run_ranks(check_groups, 4):
        assert "4 ranks cannot divide 2 heads" in heads
        assert 'needs a dimension "cp", and has 2 dimensions' in mesh and "'tp'" in mesh


def test_dropout_needs_keys_that_do_not_depend_on_ranks() -> None:
    config = BATCH.config(dropout=0.5)
    stack, plan = stack_of(config), ContextParallel(None, config).plan(BATCH.lengths)
    x = torch.zeros(9, config.dim, dtype=torch.float64)
    with pytest.raises(ValueError, match="needs dropout_keys"):
        stack(x, plan.sequences(), parallel=plan)
    with pytest.raises(ValueError, match=r"dropout_keys are \(8,\), and the rank has 9 tokens"):
        stack(x, plan.sequences(dropout_keys=torch.zeros(8, dtype=torch.int64)), parallel=plan)
    stack.eval()(x, plan.sequences(), parallel=plan)


def test_unknown_options_are_named() -> None:
    config = BATCHES["causal"].config()
    with pytest.raises(ValueError, match=r"layout must be auto, heads, chunks or .* not 'ring'"):
        ContextParallel(None, config, layout="ring")
    with pytest.raises(ValueError, match=r"grid\(2, 2\) is for 4 ranks, and the group has 1"):
        ContextParallel(None, config, layout="grid(2, 2)")
    with pytest.raises(ValueError, match="cut must be one of needed, all, not 'half'"):
        ContextParallel(None, config, cut="half")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="samples must be one of own, all, not 'mine'"):
        ContextParallel(None, config).plan([1], samples="mine")  # type: ignore[arg-type]
