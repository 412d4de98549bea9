# SPDX-License-Identifier: Apache-2.0
"""The operator of HSTU attention matches its plain reference on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from headway.ops import hstu_attention
from hstu_cases import BIAS_CASES, CASES, Case, batch_of, offsets_of
from hstu_runs import (
    TYPES,
    expect_as_good_as_reference,
    expect_bias_gradients_as_promised,
    expect_zeros_behind,
    run,
    run_truth,
    wanted,
)
from torch import Tensor


@pytest.mark.parametrize("name", CASES)
def test_float64_is_the_reference_to_rounding(name: str) -> None:
    ours, truth = run(hstu_attention, CASES[name], torch.float64), run_truth(CASES[name], torch.float64)
    torch.testing.assert_close(ours, truth, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", CASES)
def test_error_is_at_most_twice_that_of_the_reference(name: str, dtype: torch.dtype) -> None:
    expect_as_good_as_reference(hstu_attention, CASES[name], dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", BIAS_CASES)
def test_gradients_of_bias_weights_are_as_near_as_promised(name: str, dtype: torch.dtype) -> None:
    expect_bias_gradients_as_promised(hstu_attention, BIAS_CASES[name], dtype)


def test_gradients_pass_gradcheck() -> None:
    case = Case(key_lengths=(3, 0, 5), dim=3, value_dim=2, contextual=1, targets=1, has_position=True, has_time=True)
    inputs, named = batch_of(case, torch.float64)
    leaves = [each.requires_grad_() for each in wanted(inputs, named)]

    def call(q: Tensor, k: Tensor, v: Tensor, position: Tensor, time: Tensor) -> Tensor:
        return hstu_attention(q, k, v, inputs[3], **named | {"position_weights": position, "time_weights": time})

    assert torch.autograd.gradcheck(call, leaves)


def test_second_derivatives_are_refused_and_not_zero() -> None:
    q, k, v = (torch.randn(7, 2, 8, requires_grad=True) for _ in range(3))
    out = hstu_attention(q, k, v, offsets_of((7,)), max_length=7)
    (gradient,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="hstu_attention_backward has no gradient"):
        gradient.sum().backward()


def test_strided_heads_of_one_projection_need_no_copy() -> None:
    offsets = offsets_of((4, 9))
    joined = torch.randn(13, 2, 3 * 8)
    views = joined.split(8, dim=2)
    torch.testing.assert_close(
        hstu_attention(*views, offsets, max_length=9),
        hstu_attention(*(each.contiguous() for each in views), offsets, max_length=9),
        rtol=0,
        atol=0,
    )


def test_gradients_that_are_expanded_are_taken() -> None:
    """The gradient of ``sum()`` is an expanded scalar: all its strides are 0."""
    q = torch.randn(6, 2, 4, requires_grad=True)
    hstu_attention(q, q, q, offsets_of((6,)), max_length=6).sum().backward()
    assert q.grad is not None and q.grad.abs().sum() > 0


def test_under_autocast_heads_take_its_type_and_weights_do_not() -> None:
    inputs, named = batch_of(CASES["both_biases"], torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = hstu_attention(*inputs, **named)
    assert out.dtype == torch.bfloat16
    cast = [each.bfloat16() if each.is_floating_point() else each for each in inputs]
    torch.testing.assert_close(out, hstu_attention(*cast, **named), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["causal", "both_biases", "cached_history"])
def test_torch_checks_the_operator(name: str) -> None:
    inputs, named = batch_of(CASES[name], torch.float32)
    for each in wanted(inputs, named):
        each.requires_grad_()
    torch.library.opcheck(torch.ops.headway.hstu_attention.default, tuple(_operator_arguments(inputs, named)))


def _operator_arguments(inputs: list[Tensor], named: dict[str, Any]) -> list[Any]:
    """Returns all arguments of ``torch.ops.headway.hstu_attention``, in order.

    The last seven are alpha, scale, length_scaling, causal, window, full_attention_tail and deterministic.
    """
    names = ("position_weights", "time_weights", "time_bounds", "query_times", "key_times", "num_contextual",
             "num_targets")  # fmt: skip
    return [*inputs, named["key_offsets"], named["max_length"], *(named.get(each) for each in names),
            1.0, 1.0, "max_length", True, 0, 0, False]  # fmt: skip


def test_compiles_without_graph_breaks_for_lengths_that_change() -> None:
    def loss(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, max_length: int) -> Tensor:
        return hstu_attention(q, k, v, offsets, max_length=max_length, window=3).square().sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
    for lengths in ((3, 5), (7, 1, 4)):
        inputs, named = batch_of(Case(key_lengths=lengths), torch.float32)
        leaves = [each.requires_grad_() for each in inputs[:3]]
        expected = torch.autograd.grad(loss(*inputs, named["max_length"]), leaves)
        actual = torch.autograd.grad(compiled(*inputs, named["max_length"]), leaves)
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float64, *TYPES])
@pytest.mark.parametrize("name", ["causal", "both_biases", "cached_history", "odd_columns", "no_sequences"])
def test_rows_behind_the_last_offset_are_zeros_and_spoil_nothing(name: str, dtype: torch.dtype) -> None:
    expect_zeros_behind(CASES[name], dtype)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.zeros(6, 2, 5)}, "k has 5 columns and q 4"),
        ({"v": torch.zeros(6, 3, 4)}, "v has 3 heads and q 2"),
        ({"v": torch.zeros(6, 2, 4, dtype=torch.float64)}, "v is Double and q is Float"),
        ({"q": torch.zeros(6, 8)}, r"q must be \(tokens, heads, columns\)"),
        ({"q": torch.zeros(6, 2, 4, dtype=torch.int32)}, "q must be float64, float32, bfloat16 or float16"),
        ({"offsets": torch.tensor([0, 6], dtype=torch.int32)}, "offsets must be one contiguous dimension of int64"),
        ({"offsets": torch.tensor([0, 7]), "max_length": 7}, "query_offsets end at 7 in sequence 0, but there are 6"),
        ({"offsets": torch.tensor([0, 4, 2, 6])}, "sequence 1"),
        ({"max_length": 5}, "5"),
        ({"scale": "longest"}, "scale must be a number, max_length or length, not 'longest'"),
        ({"window": -1}, "window must be from 0 to 2147483647, and is -1"),
        ({"window": 2**31}, "window must be from 0 to 2147483647, and is 2147483648"),
        ({"full_attention_tail": 1}, "full_attention_tail needs a window"),
        ({"causal": False, "num_targets": torch.tensor([1], dtype=torch.int32)}, "num_targets need causal=True"),
        ({"num_targets": torch.tensor([1, 1], dtype=torch.int32)}, "num_targets has 2 entries, and 1 are needed"),
        ({"num_targets": torch.tensor([7], dtype=torch.int32)}, "sequence 0"),
        ({"position_weights": torch.zeros(9)}, "at least 2 \\* max_length - 1 = 11 are needed"),
        ({"time_weights": torch.zeros(3)}, "time_weights needs time_bounds, query_times and key_times"),
        ({"query_times": torch.zeros(6).long()}, "need time_weights"),
    ],
)
def test_refuses_what_does_not_fit_by_name(change: dict[str, Any], message: str) -> None:
    heads = torch.zeros(6, 2, 4)
    arguments = {"q": heads, "k": heads, "v": heads, "offsets": offsets_of((6,)), "max_length": 6}
    with pytest.raises(ValueError, match=message):
        hstu_attention(**arguments | change)
