# SPDX-License-Identifier: Apache-2.0
"""Operators of HSTU layers match the reference, and behave as torch expects of operators.

``gated_norm`` normalizes rows and multiplies them by SiLU of a gate. ``silu_split`` splits columns and applies SiLU.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cuda_ranks import NEEDS_GPU
from headway import ops, reference
from torch import Tensor

DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=NEEDS_GPU)]
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
#: Forms in which gated_norm combines x and its gate; None: no gate.
FORMS = [None, "norm_then_gate", "gate_then_norm", "concat", "concat_norm"]
NORMS = ["layer", "rms"]


def leaf(*shape: int, dtype: torch.dtype = torch.float64, device: str = "cpu", seed: int = 0) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.to(dtype).to(device).requires_grad_()


def norm_inputs(form: str | None, rows: int, columns: int, **options: Any) -> tuple[list[Tensor], dict[str, Any]]:
    """Returns x, gate (if there is one), weight and bias, and the other arguments of the function."""
    shapes = [(rows, columns), (columns,), (columns,)]
    if form is not None:
        shapes.insert(1, (rows, columns))
    leaves = [leaf(*shape, seed=seed, **options) for seed, shape in enumerate(shapes)]
    return leaves, {} if form is None else {"form": form}


def call_norm(function: Any, leaves: list[Tensor], **named: Any) -> Tensor:
    *rows, weight, bias = leaves
    out: Tensor = function(*rows, weight=weight, bias=bias, **named)
    return out


def with_gradients(outs: list[Tensor], leaves: list[Tensor], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Returns outputs and gradients, for output gradients with values of ``dtype``."""
    grads = [leaf(*out.shape, dtype=dtype, device=out.device.type, seed=9).detach().to(out.dtype) for out in outs]
    return [*outs, *torch.autograd.grad(outs, leaves, grads)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("form", FORMS)
def test_norms_and_their_gradients_are_those_of_the_reference(
    form: str | None, norm: str, dtype: torch.dtype, device: str
) -> None:
    for columns in (24, 7, 1024):
        leaves, named = norm_inputs(form, 33, columns, dtype=dtype, device=device)
        found = with_gradients([call_norm(ops.gated_norm, leaves, norm=norm, **named)], leaves)
        exact = [each.detach().double().requires_grad_() for each in leaves]
        wanted = with_gradients([call_norm(reference.gated_norm, exact, norm=norm, **named)], exact, dtype)
        for ours, theirs in zip(found, wanted, strict=True):
            assert ours.dtype == dtype
            eps = torch.finfo(dtype).eps
            torch.testing.assert_close(ours.double(), theirs, rtol=4 * eps, atol=(64 if eps < 1e-6 else 2) * eps)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TYPES)
# ``activated``: which parts get SiLU; None: all.
@pytest.mark.parametrize("activated", [None, [True, False, True, False]])
def test_splits_and_their_gradients_are_those_of_the_reference(
    activated: list[bool] | None, dtype: torch.dtype, device: str
) -> None:
    for widths in ([16, 16, 8, 24], [3, 0, 65, 1]):
        x = leaf(77, sum(widths), dtype=dtype, device=device)
        found = with_gradients(ops.silu_split(x, widths, activated=activated), [x], dtype)
        exact = x.detach().double().requires_grad_()
        wanted = with_gradients(reference.silu_split(exact, widths, activated=activated), [exact], dtype)
        for ours, theirs in zip(found, wanted, strict=True):
            eps = torch.finfo(dtype).eps
            torch.testing.assert_close(ours.double(), theirs, rtol=4 * eps, atol=4 * eps)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("norm", NORMS)
def test_gradients_of_norms_are_those_of_differences(norm: str, form: str | None) -> None:
    leaves, named = norm_inputs(form, 3, 5)
    assert torch.autograd.gradcheck(lambda *each: call_norm(ops.gated_norm, each, norm=norm, **named), leaves)


def test_gradients_of_a_split_are_those_of_differences() -> None:
    assert torch.autograd.gradcheck(lambda x: ops.silu_split(x, [2, 3, 1], activated=[True, False, True]), leaf(4, 6))


@pytest.mark.parametrize("device", DEVICES)
def test_weights_beside_16_bits_have_gradients_of_their_own_type(device: str) -> None:
    x, gate = (leaf(200, 64, dtype=torch.bfloat16, device=device, seed=seed) for seed in (0, 1))
    weight = leaf(64, dtype=torch.float32, device=device)
    found = with_gradients([ops.gated_norm(x, gate, weight=weight)], [weight], torch.bfloat16)
    exact = [each.detach().double().requires_grad_() for each in (x, gate, weight)]
    wanted = with_gradients([reference.gated_norm(exact[0], exact[1], weight=exact[2])], [exact[2]], torch.bfloat16)
    assert [each.dtype for each in found] == [torch.bfloat16, torch.float32]
    torch.testing.assert_close(found[1].double(), wanted[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_the_backward_pass_adds_a_residual_and_sums_columns(device: str) -> None:
    x, weight = leaf(50, 40, device=device).detach(), leaf(40, device=device).detach()
    grad, residual = (leaf(50, 40, device=device, seed=seed).detach() for seed in (1, 2))
    named = ("layer", "concat", 1e-6)
    _, statistics = torch.ops.headway.gated_norm(x, None, weight, None, *named)
    plain, *_ = torch.ops.headway.gated_norm_backward(grad, statistics, None, x, None, weight, None, *named)
    added, *_ = torch.ops.headway.gated_norm_backward(grad, statistics, residual, x, None, weight, None, *named)
    torch.testing.assert_close(added, plain + residual)
    joined, sums = torch.ops.headway.silu_split_backward([grad[:, :30], grad[:, 30:]], x, [True, False])
    torch.testing.assert_close(sums, joined.sum(0))


@pytest.mark.parametrize("device", DEVICES)
def test_slices_and_transposed_rows_are_taken(device: str) -> None:
    joined = leaf(9, 96, device=device).detach()
    x, gate, columns = joined[:, :32], joined[:, 32:64], joined[:, 64:]
    expected = reference.gated_norm(x, gate)
    torch.testing.assert_close(ops.gated_norm(x, gate), expected)
    torch.testing.assert_close(ops.gated_norm(x.t().contiguous().t(), gate.t().contiguous().t()), expected)
    torch.testing.assert_close(ops.silu_split(columns, [20, 12]), reference.silu_split(columns, [20, 12]))
    transposed = columns.t().contiguous().t()
    torch.testing.assert_close(ops.silu_split(transposed, [20, 12]), reference.silu_split(columns, [20, 12]))


def test_gradients_that_are_expanded_are_taken() -> None:
    leaves, _ = norm_inputs("concat", 5, 8)
    found = torch.autograd.grad(call_norm(ops.gated_norm, leaves, form="concat").sum(), leaves)
    wanted = torch.autograd.grad(call_norm(reference.gated_norm, leaves, form="concat").sum(), leaves)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_gates_of_the_most_negative_numbers_let_nothing_through(dtype: torch.dtype, device: str) -> None:
    least = torch.finfo(dtype).min
    gate = torch.tensor([[least, -200.0, 1.0]], dtype=dtype, device=device, requires_grad=True)
    out = ops.gated_norm(torch.tensor([[1.0, 2.0, 4.0]], dtype=dtype, device=device), gate)
    (part,) = ops.silu_split(gate, [3])
    grads = torch.autograd.grad((out + part).sum(), gate)[0]
    for each in (out, part, grads):
        assert each[0, :2].abs().max() < 1e-30
        assert each[0, 2] != 0


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_comes_of_no_rows(device: str) -> None:
    leaves, named = norm_inputs("concat", 0, 8, device=device)
    out, *grads = with_gradients([call_norm(ops.gated_norm, leaves, **named)], leaves)
    assert out.shape == (0, 24)
    assert [int(each.count_nonzero()) for each in grads] == [0] * 4
    x = leaf(0, 8, device=device)
    assert [each.shape for each in with_gradients(ops.silu_split(x, [2, 6]), [x])] == [(0, 2), (0, 6), (0, 8)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", FORMS)
def test_torch_checks_the_operators(form: str | None, device: str) -> None:
    leaves, named = norm_inputs(form, 6, 8, dtype=torch.float32, device=device)
    rows, (weight, bias) = leaves[:-2], leaves[-2:]
    gate = rows[1] if len(rows) == 2 else None
    arguments = (rows[0], gate, weight, bias, "layer", named.get("form", "concat"), 1e-6)
    torch.library.opcheck(torch.ops.headway.gated_norm.default, arguments)
    x = leaf(6, 8, dtype=torch.float32, device=device)
    torch.library.opcheck(torch.ops.headway.silu_split.default, (x, [5, 3], [True, False]))


@pytest.mark.parametrize("form", FORMS)
def test_compiled_calls_are_one_graph(form: str | None) -> None:
    leaves, named = norm_inputs(form, 6, 8)

    def total(*each: Tensor) -> Tensor:
        parts = ops.silu_split(call_norm(ops.gated_norm, list(each), **named)[:, :8], [5, 3])
        return parts[0].sin().sum() + parts[1].cos().sum()

    torch._dynamo.reset()
    compiled, plain = torch.compile(total, fullgraph=True, backend="aot_eager")(*leaves), total(*leaves)
    torch.testing.assert_close(compiled, plain)
    torch.testing.assert_close(torch.autograd.grad(compiled, leaves), torch.autograd.grad(plain, leaves))


def test_under_autocast_types_stay() -> None:
    leaves, _ = norm_inputs("concat", 6, 8, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert call_norm(ops.gated_norm, leaves, form="concat").dtype == torch.float32
        assert ops.silu_split(leaves[0], [8])[0].dtype == torch.float32


def test_second_derivatives_are_refused_and_not_zero() -> None:
    x = leaf(3, 8)
    for out in (ops.gated_norm(x, x), ops.silu_split(x, [4, 4])[0]):
        (gradient,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        with pytest.raises(NotImplementedError, match="_backward has no gradient"):
            gradient.sum().backward()


ROWS = torch.zeros(4, 6)
#: Wrong arguments -> a call with them, and the text of its error.
REFUSALS: dict[str, tuple[Any, str]] = {
    "x of one dimension": (lambda: ops.gated_norm(ROWS[0]), r"x must be \(rows, columns\)"),
    "x of another type": (lambda: ops.gated_norm(ROWS.long()), "x must be float64, float32"),
    "rows without columns": (lambda: ops.gated_norm(ROWS[:, :0]), "a column at least"),
    "a gate of another shape": (lambda: ops.gated_norm(ROWS, ROWS[:, :5]), r"gate must be \(4, 6\)"),
    "a gate of another type": (lambda: ops.gated_norm(ROWS, ROWS.double()), "gate is Double"),
    "too few weights": (lambda: ops.gated_norm(ROWS, weight=ROWS[0, :5]), r"weight must be \(6\)"),
    "weights of another type": (lambda: ops.gated_norm(ROWS, weight=ROWS[0].double()), "of the type of x"),
    "a bias of whole numbers": (lambda: ops.gated_norm(ROWS, bias=ROWS[0].int()), "bias must be float64, float32"),
    "weights without memory": (
        lambda: ops.gated_norm(ROWS, weight=torch.empty(6, device="meta")),
        "weight is on meta, and x on cpu",
    ),
    "a negative eps": (lambda: ops.gated_norm(ROWS, eps=-1.0), "eps must be from 0, and is -1"),
    "a bias of another type": (
        lambda: ops.gated_norm(ROWS.half(), weight=ROWS[0], bias=ROWS[0].half()),
        "must be of one type",
    ),
    "another norm": (lambda: ops.gated_norm(ROWS, norm="batch"), "layer or rms, not batch"),  # type: ignore[arg-type]
    "another form": (lambda: ops.gated_norm(ROWS, ROWS, form="none"), "form must be"),  # type: ignore[arg-type]
    "another form without a gate": (lambda: ops.gated_norm(ROWS, form="none"), "form must be"),  # type: ignore[arg-type]
    "widths that leave columns over": (lambda: ops.silu_split(ROWS, [2, 3]), "parts have 5 columns, and x has 6"),
    "a negative width": (lambda: ops.silu_split(ROWS, [6, -2]), "one is -2"),
    "widths that add up beyond what is counted": (lambda: ops.silu_split(ROWS, [2**62] * 4 + [6]), "from 0 to 6"),
    "too many parts": (lambda: ops.silu_split(ROWS, [6] + [0] * 8), "from 1 to 8 parts"),
    "too few activated": (lambda: ops.silu_split(ROWS, [2, 4], activated=[True]), "activated has 1 entries"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_does_not_fit_is_refused_by_name(what: str) -> None:
    call, message = REFUSALS[what]
    with pytest.raises(ValueError, match=message):
        call()
