# SPDX-License-Identifier: Apache-2.0
"""A rank keeps activations of its own tokens alone, and received queries, keys and values instead of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from context_cases import Batch, plan_of, random, stack_of
from headway.nn.config import Recompute
from headway.parallel.context_parallel import ContextParallel
from rank_processes import run_ranks
from torch import Tensor

BATCH = Batch(lengths=(120, 80, 200, 112), options={"max_length": 200, "dim": 32, "qk_dim": 16, "v_dim": 24})


def kept_bytes(rank: int, layout: str, options: dict[str, Any]) -> tuple[int, int]:
    """Returns the bytes that a layer keeps for its backward pass, in storages that are not weights, and the plan's."""
    config = BATCH.config(**options)
    layer = stack_of(config, num_layers=1, dtype=torch.float32).layers[0]
    context = ContextParallel(dist.group.WORLD, config, layout=layout, cut="all")
    plan = plan_of(context, BATCH, rank)
    own = plan.own_tokens
    sequences = plan.sequences(dropout_keys=torch.arange(BATCH.num_tokens)[own])
    x = random(len(plan.own_tokens), config.dim, seed=1, dtype=torch.float32).requires_grad_()
    kept: dict[int, int] = {}
    ours = {each.untyped_storage().data_ptr() for each in layer.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if tensor.dtype in (torch.float32, torch.bool) and storage.data_ptr() not in ours:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(x, sequences, parallel=plan)
    return sum(kept.values()), plan.kept_bytes(rank, element_bytes=4)


@pytest.mark.parametrize("layout", ["heads", "chunks"])
@pytest.mark.parametrize("recompute", ["none", "norm_and_gate", "projection", "all"])
def test_two_ranks_keep_half_each(recompute: Recompute, layout: str) -> None:
    config = BATCH.config()
    total, own = BATCH.num_tokens, BATCH.num_tokens // 2
    e, p, v, g = config.dim, sum(config.projection_widths), config.gate_width, config.output_width
    queries, values = config.num_heads * config.qk_dim, config.num_heads * config.v_dim
    of_norms = 4
    # With heads a rank has all tokens of half of the heads; with chunks all keys and values of all heads.
    attended = own * (2 * queries + values) if layout == "heads" else own * queries + total * (queries + values)
    elements = {
        "none": own * (2 * e + p + v + g + of_norms) + attended,
        "norm_and_gate": own * (e + p + v),
        "projection": own * (e + v),
        "all": own * e,
    }
    expected = 4 * elements[recompute]
    assert run_ranks(kept_bytes, 2, layout, {"recompute": recompute}) == [(expected, expected)] * 2


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("activated", ["all", "gate"])
def test_a_layer_keeps_the_planned_bytes(activated: str, size: int) -> None:
    options = {"recompute": "none", "activated": activated, "gate": "concat", "dropout": 0.1}
    for kept, planned in run_ranks(kept_bytes, size, "grid(2, 2)" if size == 4 else "auto", options):
        assert kept == planned


def test_a_batch_that_does_not_fit_is_refused_with_its_bytes() -> None:
    plan = ContextParallel(None, BATCH.config()).plan(BATCH.lengths)
    kept = 3 * plan.kept_bytes(0, element_bytes=2)
    plan.expect_fits(2 * kept, num_layers=3, element_bytes=2)
    with pytest.raises(
        ValueError, match=rf"rank 0 needs .* for 512 of 512 tokens in 3 layers, {kept:,} of them .* and 1,000"
    ):
        plan.expect_fits(1000, num_layers=3, element_bytes=2)
