# SPDX-License-Identifier: Apache-2.0
"""Attention on several ranks has the bits of one rank where a layout promises them, and sends the planned bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from context_cases import BATCHES, Batch, bytes_sent, plan_of, random, stack_of, whole_sequences
from headway.nn import HSTULayer, Sequences
from headway.nn.attention import AttentionGradients, BiasTables, LayerAttention
from headway.parallel.context_parallel import ContextParallel, ContextPlan
from headway.parallel.context_parallel.head_exchange import HeadExchange
from headway.parallel.context_parallel.plan import HeadsPlan
from rank_processes import BACKENDS, run_ranks
from torch import Tensor


def tables_of(layer: HSTULayer) -> BiasTables:
    return BiasTables(layer.bias.position_weights, layer.bias.time_weights, layer.bias.time_bounds)


def inputs_of(batch: Batch, layer: HSTULayer, dtype: torch.dtype) -> list[Tensor]:
    """Returns queries, keys, values and the gradient of the output, of all tokens."""
    config = layer.config
    widths = (config.qk_dim, config.qk_dim, config.v_dim, config.v_dim)
    return [random(batch.num_tokens, config.num_heads, w, seed=i, dtype=dtype) for i, w in enumerate(widths)]


def attend(
    attention: LayerAttention, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, tables: BiasTables
) -> tuple[Tensor, AttentionGradients]:
    q, k, v = attention.inputs(q, k, v)
    return attention.forward(q, k, v, tables), attention.backward(grad, q, k, v, tables)


def sequences_of(plan: ContextPlan, whole: Sequences) -> Sequences:
    """Returns the sequences of the plan, with times that were gathered from their owners."""
    own = plan.own_tokens
    assert whole.times is not None and whole.query_times is not None
    return plan.sequences(whole.times[own], whole.query_times[own])


def check_attention(rank: int, layout: str, num_heads: int, dtype: torch.dtype) -> None:
    size = dist.get_world_size()
    for name, batch in BATCHES.items():
        config = batch.config(num_heads=num_heads)
        layer = stack_of(config, num_layers=1, dtype=torch.float32).layers[0]
        assert isinstance(layer, HSTULayer)
        tables, everything, whole = tables_of(layer), inputs_of(batch, layer, dtype), whole_sequences(batch)
        out, grads = attend(LayerAttention(config=config, sequences=whole), *everything, tables)

        plan = plan_of(ContextParallel(dist.group.WORLD, config, layout=layout, cut="all"), batch, rank)
        own = plan.own_tokens
        sequences = sequences_of(plan, whole)
        assert sequences.times is not None and torch.equal(sequences.times, whole.times), name
        x = everything[0].new_zeros(len(own), config.dim)
        attention = LayerAttention(config=config, sequences=sequences, exchange=plan.exchange_of(config, x, sequences))
        parts = [each[own] for each in everything]
        with bytes_sent(rank) as sent:
            own_out, own_grads = attend(attention, *parts, tables)
        expected_bytes = plan.bytes_sent(rank, element_bytes=out.element_size())
        middle = len(sent) // 2  # There are as many exchanges forward as backward.
        assert (sum(sent[:middle]), sum(sent[middle:])) == (expected_bytes if size > 1 else (0, 0)), name

        assert torch.equal(own_out, out[own]), name
        assert torch.equal(own_grads.q, grads.q[own]), name
        for each in ("k", "v"):
            found, wanted = getattr(own_grads, each), getattr(grads, each)[own]
            if layout == "heads":
                assert torch.equal(found, wanted), (name, each)
            else:
                # Partial sums are added in another order; in 16 bits each result is rounded once more.
                eps = torch.finfo(dtype).eps
                torch.testing.assert_close(
                    found, wanted, rtol=4 * eps, atol=8 * eps * float(wanted.abs().max()) if len(wanted) else 0
                )
        for each in ("position_weights", "time_weights"):
            if getattr(grads, each) is None:
                assert getattr(own_grads, each) is None
                continue
            total = getattr(own_grads, each)
            dist.all_reduce(total)
            torch.testing.assert_close(total, getattr(grads, each), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["heads", "chunks"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_of_four_ranks_has_the_bits_of_one(backend: str, layout: str) -> None:
    run_ranks(check_attention, 4, layout, 4, torch.float32, backend=backend)


@pytest.mark.parametrize(("size", "num_heads"), [(1, 2), (2, 2), (3, 4), (8, 8)])
def test_heads_have_the_bits_of_one_rank_on_any_number_of_ranks(size: int, num_heads: int) -> None:
    run_ranks(check_attention, size, "heads", num_heads, torch.bfloat16 if size == 2 else torch.float32)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_chunks_have_the_bits_of_one_rank_on_any_number_of_ranks(size: int) -> None:
    run_ranks(check_attention, size, "chunks", 2, torch.bfloat16 if size == 2 else torch.float32)


@pytest.mark.parametrize(("num_heads", "num_groups"), [(2, 2), (2, 3), (3, 2)])
def test_grids_have_the_bits_of_one_rank(num_heads: int, num_groups: int) -> None:
    layout = f"grid(2, {num_groups})"
    run_ranks(check_attention, 2 * num_groups, layout, num_heads, torch.float32)


def check_shifted_border(rank: int) -> list[bool]:
    """Returns whether own outputs are right: with tokens cut where the plan says, and one token later."""
    batch = BATCHES["causal"]
    config = batch.config()
    layer = stack_of(config, num_layers=1, dtype=torch.float32).layers[0]
    assert isinstance(layer, HSTULayer)
    tables, everything, whole = tables_of(layer), inputs_of(batch, layer, torch.float32), whole_sequences(batch)
    out, _ = attend(LayerAttention(config=config, sequences=whole), *everything, tables)
    plan = HeadsPlan(num_ranks=2, num_tokens=batch.num_tokens, num_heads=config.num_heads)
    own, exchange = plan.tokens_of(rank), HeadExchange(plan, rank, dist.group.WORLD)
    attention = LayerAttention(config=config, sequences=whole, exchange=exchange)
    results = []
    for shift in (0, 1):
        parts = [each.roll(-shift, 0)[own.start : own.stop] for each in everything]
        results.append(torch.equal(attend(attention, *parts, tables)[0], out[own.start : own.stop]))
    return results


def test_a_border_that_is_off_by_one_is_caught() -> None:
    assert run_ranks(check_shifted_border, 2) == [[True, False]] * 2


def test_options_of_the_mask_reach_a_plan() -> None:
    config = BATCHES["all_masks"].config()
    plan = ContextParallel(None, config).plan([5, 3])
    with pytest.raises(ValueError, match="window=4, and this one has window=5"):
        plan.exchange_of(replace(config, window=5), torch.zeros(8, 6), plan.sequences())
