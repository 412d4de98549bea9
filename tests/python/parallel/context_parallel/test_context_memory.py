# SPDX-License-Identifier: Apache-2.0
"""A rank keeps activations of its own tokens alone, and received queries, keys and values instead of its own."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from context_cases import Batch, plan_of, random, stack_of
from headway.nn.config import Recompute
from headway.parallel.context_parallel import ContextParallel
from rank_processes import run_ranks
from torch import Tensor

BATCH = Batch(lengths=(120, 80, 200, 112), options={"max_length": 200, "dim": 32, "qk_dim": 16, "v_dim": 24})


def kept_elements(rank: int, layout: str, recompute: Recompute) -> int:
    """Counts the elements that a layer keeps for its backward pass, in storages that are not weights."""
    config = BATCH.config(recompute=recompute)
    layer = stack_of(config, num_layers=1, dtype=torch.float32).layers[0]
    context = ContextParallel(dist.group.WORLD, config, layout=layout, cut="all")
    plan = plan_of(context, BATCH, rank)
    sequences = plan.sequences()
    x = random(len(plan.own_tokens), config.dim, seed=1, dtype=torch.float32).requires_grad_()
    kept: dict[int, int] = {}
    ours = {each.untyped_storage().data_ptr() for each in layer.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if tensor.is_floating_point() and storage.data_ptr() not in ours:
            kept[storage.data_ptr()] = storage.nbytes() // 4
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(x, sequences, parallel=plan)
    return sum(kept.values())


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
    expected = {
        "none": own * (2 * e + p + v + g + of_norms) + attended,
        "norm_and_gate": own * (e + p + v),
        "projection": own * (e + v),
        "all": own * e,
    }
    assert run_ranks(kept_elements, 2, layout, recompute) == [expected[recompute]] * 2
