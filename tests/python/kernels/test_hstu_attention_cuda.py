# SPDX-License-Identifier: Apache-2.0
"""The operator of HSTU attention on a GPU matches its plain reference on the CPU."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
import torch
from cuda_ranks import NEEDS_GPU
from headway.ops import hstu_attention
from hstu_cases import BIAS_CASES, CASES, Case, batch_of
from hstu_runs import expect_as_good_as_reference, expect_bias_gradients_as_promised, expect_zeros_behind, run
from torch import Tensor

pytestmark = NEEDS_GPU

_TYPES = [torch.bfloat16, torch.float16]
#: Widths for which the GPU has kernels. Other widths are padded with zeros.
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


@pytest.mark.parametrize("dtype", _TYPES)
@pytest.mark.parametrize("dims", [(96, 96), (112, 112), (64, 32), (8, 100), (33, 1)])
@pytest.mark.parametrize("name", ["both_biases", "cached_history"])
def test_columns_that_are_copied_to_wider_rows(name: str, dims: tuple[int, int], dtype: torch.dtype) -> None:
    case = dataclasses.replace(CASES[name], dim=dims[0], value_dim=dims[1])
    expect_as_good_as_reference(hstu_attention, case, dtype, device="cuda")


def test_rows_at_odd_addresses_are_copied() -> None:
    # The slice begins 2 bytes behind an aligned address, so its rows cannot be loaded as vectors.
    rows = torch.randn(300, 1, 65, device="cuda", dtype=torch.bfloat16)[:, :, 1:]
    offsets = torch.tensor([0, 100, 300], device="cuda")
    expected = hstu_attention(*(rows.clone() for _ in range(3)), offsets, max_length=200)
    torch.testing.assert_close(hstu_attention(rows, rows, rows, offsets, max_length=200), expected, rtol=0, atol=0)


@pytest.mark.parametrize("lengths", [(127, 128, 129), (1, 255, 256, 257, 0, 700), (3000, 5)])
def test_sequences_longer_than_a_tile(lengths: tuple[int, ...]) -> None:
    case = Case(key_lengths=lengths, dim=64, value_dim=64, contextual=3, targets=5, has_position=True, has_time=True)
    expect_as_good_as_reference(hstu_attention, case, torch.bfloat16, device="cuda")


@pytest.mark.parametrize("dtype", [*_TYPES, torch.float32])
@pytest.mark.parametrize("dim", [20, 64, 128, 256])
@pytest.mark.parametrize("name", BIAS_CASES)
def test_gradients_of_bias_weights_are_as_near_as_promised(name: str, dim: int, dtype: torch.dtype) -> None:
    case = dataclasses.replace(BIAS_CASES[name], dim=dim, value_dim=dim)
    expect_bias_gradients_as_promised(hstu_attention, case, dtype, device="cuda")


@pytest.mark.parametrize("dtype", [*_TYPES, torch.float32])
@pytest.mark.parametrize("dim", [20, *_DIMS])
@pytest.mark.parametrize("name", ["causal", "both_biases", "cached_history", "no_sequences", "only_empty_sequences"])
def test_rows_behind_the_last_offset_are_zeros_and_spoil_nothing(name: str, dim: int, dtype: torch.dtype) -> None:
    expect_zeros_behind(dataclasses.replace(CASES[name], dim=dim, value_dim=dim), dtype, device="cuda")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            "offsets=[0, 300, 5000], max_length=5000",
            "query_offsets end at 5000 in sequence 1, but there are 500 tokens",
        ),
        ("offsets=[0, 300, 500], targets=[1, 201], dtype=torch.float32", "sequence 1 has 0 contextual tokens and 201"),
    ],
)
def test_wrong_sequences_stop_the_device_and_are_named(change: str, line: str) -> None:
    code = f"""
import torch
from headway.ops import hstu_attention

def call(offsets, max_length=300, targets=(0, 0), dtype=torch.bfloat16):
    q = torch.zeros(500, 2, 64, device="cuda", dtype=dtype)
    targets = torch.tensor(targets, device="cuda", dtype=torch.int32)
    hstu_attention(q, q, q, torch.tensor(offsets, device="cuda"), max_length=max_length, num_targets=targets)
    torch.cuda.synchronize()

call({change})
"""
    # In a process of its own, as its context is lost.
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode != 0
    assert "device-side assert" in ended.stderr
    assert line in ended.stdout


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

    call()  # The first call loads modules, which a graph cannot capture.
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    q.copy_(torch.randn_like(q))
    graph.replay()
    torch.testing.assert_close(out, call(), rtol=0, atol=0)
