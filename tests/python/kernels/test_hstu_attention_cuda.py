"""The operator of HSTU attention on a GPU beside its plain reference on the CPU."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from cuda_ranks import NEEDS_GPU
from headway.ops import hstu_attention
from hstu_cases import CASES, Case, batch_of
from hstu_runs import expect_as_good_as_reference, run
from torch import Tensor

pytestmark = NEEDS_GPU

_TYPES = [torch.bfloat16, torch.float16]
_DIMS = [32, 64, 128, 256]


@pytest.mark.parametrize("dtype", _TYPES)
@pytest.mark.parametrize("dim", _DIMS)
@pytest.mark.parametrize("name", CASES)
def test_error_is_at_most_twice_that_of_the_reference(name: str, dim: int, dtype: torch.dtype) -> None:
    case = dataclasses.replace(CASES[name], dim=dim, value_dim=dim)
    expect_as_good_as_reference(hstu_attention, case, dtype, device="cuda")


@pytest.mark.parametrize("dtype", [*_TYPES, torch.float32])
@pytest.mark.parametrize("name", ["causal", "wide_values", "odd_columns", "both_biases", "cached_history"])
def test_any_columns_are_taken(name: str, dtype: torch.dtype) -> None:
    expect_as_good_as_reference(hstu_attention, CASES[name], dtype, device="cuda")


@pytest.mark.parametrize("lengths", [(127, 128, 129), (1, 255, 256, 257, 0, 700), (3000, 5)])
def test_sequences_longer_than_a_tile(lengths: tuple[int, ...]) -> None:
    case = Case(key_lengths=lengths, dim=64, value_dim=64, contextual=3, targets=5, has_position=True, has_time=True)
    expect_as_good_as_reference(hstu_attention, case, torch.bfloat16, device="cuda")


def test_gradients_are_the_same_bits_each_time_where_wanted() -> None:
    case = Case(key_lengths=(700, 300, 129), dim=64, value_dim=64, has_time=True, options={"deterministic": True})
    first, *others = (run(hstu_attention, case, torch.bfloat16, device="cuda") for _ in range(4))
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=0)


def test_a_graph_replays_what_was_captured() -> None:
    inputs, named = batch_of(Case(key_lengths=(200, 77), dim=64, value_dim=64), torch.bfloat16)
    q, k, v, offsets = (each.cuda() for each in inputs)
    key_offsets = named.pop("key_offsets").cuda()

    def call() -> Tensor:
        return hstu_attention(q, k, v, offsets, key_offsets=key_offsets, **named)

    call()  # What is loaded at the first call cannot be captured.
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    q.copy_(torch.randn_like(q))
    graph.replay()
    torch.testing.assert_close(out, call(), rtol=0, atol=0)
