# SPDX-License-Identifier: Apache-2.0
"""Jagged operators match the reference, and behave as torch expects of operators.

Features and samples are the two dimensions of ``lengths``. The suffix R stands for ranks.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cuda_ranks import NEEDS_GPU
from headway import ops, reference
from jagged_cases import BOUNDS, CASES, LENGTHS, OFFSETS, OTHER_OFFSETS, Call
from torch import Tensor

CPU = torch.device("cpu")
DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=NEEDS_GPU)]
WITH_GRADIENTS = [name for name in CASES if name not in ("run_lengths", "unique_with_counts")]


def make(name: str, device: str = "cpu", dtype: torch.dtype = torch.float64) -> Call:
    return CASES[name](torch.device(device), dtype)


def run(call: Call) -> list[Tensor]:
    return flat(getattr(ops, call.name)(*call.arguments, **call.options, **call.only))


def run_reference(call: Call) -> list[Tensor]:
    return flat(getattr(reference, call.name)(*call.arguments, **call.options))


def flat(outputs: Any) -> list[Tensor]:
    if isinstance(outputs, Tensor):
        return [outputs]
    return [leaf for each in outputs for leaf in flat(each)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_of_the_reference(name: str, dtype: torch.dtype, device: str) -> None:
    call = make(name, device, dtype)
    outputs, expected = run(call), run_reference(call)
    torch.testing.assert_close(outputs, expected, rtol=0, atol=0)

    differentiable = [(out, wanted) for out, wanted in zip(outputs, expected, strict=True) if out.requires_grad]
    grads = [
        torch.arange(out.numel(), device=device).remainder(5).to(dtype).view(out.shape) for out, _ in differentiable
    ]
    # On a GPU torch multiplies by the reciprocal. Multiples of a power of two give the same quotient.
    if name == "mean":
        grads = [torch.full_like(grad, 64) for grad in grads]
    if differentiable:
        found = torch.autograd.grad([out for out, _ in differentiable], call.leaves(), grads)
        wanted = torch.autograd.grad([out for _, out in differentiable], call.leaves(), grads)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_gradients_are_those_of_differences(name: str) -> None:
    call = make(name)
    # gradcheck perturbs the tensors that it gets, which are the leaves of the call.
    assert torch.autograd.gradcheck(lambda *_: [out for out in run(call) if out.requires_grad], call.leaves())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_operators_have_the_shapes_and_gradients_that_compilers_expect(name: str, device: str) -> None:
    call = make(name, device, torch.float32)
    operator = getattr(torch.ops.headway, call.name).default
    torch.library.opcheck(operator, call.operator_arguments)


@pytest.mark.parametrize("name", CASES)
def test_compiled_calls_are_one_graph(name: str) -> None:
    call = make(name)
    leaves = call.leaves()

    def total(*_: Tensor) -> Tensor:
        return torch.stack([out.double().sin().sum() for out in run(call)]).sum()

    torch._dynamo.reset()
    # Without a number of rows the output shape depends on data. fullgraph allows that with this setting.
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled, plain = torch.compile(total, fullgraph=True, backend="aot_eager")(*leaves), total(*leaves)
    torch.testing.assert_close(compiled, plain)
    if leaves:
        torch.testing.assert_close(torch.autograd.grad(compiled, leaves), torch.autograd.grad(plain, leaves))


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_is_moved_where_there_is_nothing(device: str) -> None:
    """Each operator takes tensors without rows, samples or features."""
    values, none = torch.zeros(0, 3, device=device), torch.zeros(0, dtype=torch.int64, device=device)
    start = none.new_zeros(1)
    for features, samples in ((0, 4), (2, 0), (0, 0)):
        lengths = none.view(features, samples) if features * samples == 0 else none
        bounds = none.new_tensor([0, samples])
        assert ops.jagged_permute([values], lengths, num_rows=0)[1].shape == (features, samples)
        assert ops.jagged_transpose([values], lengths)[1].shape == (samples, features)
        (out,), out_lengths, rows_R = ops.ranged_dispatch([values], lengths, bounds)
        assert out.shape == (0, 3) and out_lengths.shape == (0,) and rows_R.tolist() == [0]
        if features > 0:
            assert ops.ranged_combine([values], out_lengths, bounds, num_features=features)[1].shape == lengths.shape
    assert ops.jagged_concat([values, values], [start, start])[0].shape == (0, 3)
    assert ops.jagged_split(values, [start, start], [0, 0])[1].shape == (0, 3)
    assert ops.jagged_to_padded(values, start, max_length=2).shape == (0, 2, 3)
    assert ops.jagged_reduce(values, start).shape == (0, 3)
    assert ops.jagged_reduce(values, none.new_zeros(3)).tolist() == [[0, 0, 0]] * 2
    assert [each.tolist() for each in ops.unique_with_counts(none)] == [[], [], [], [0]]


@pytest.mark.parametrize("device", DEVICES)
def test_rows_without_columns_have_lengths_all_the_same(device: str) -> None:
    lengths = LENGTHS.to(device)
    values = torch.zeros(int(LENGTHS.sum()), 0, device=device, requires_grad=True)
    (out,), out_lengths = ops.jagged_transpose([values], lengths)
    assert out.shape == values.shape
    assert torch.equal(out_lengths, lengths.T)
    assert ops.jagged_reduce(values, torch.tensor([0, len(values)], device=device)).shape == (1, 0)


@pytest.mark.parametrize("device", DEVICES)
def test_long_tails_go_there_and_back(device: str) -> None:
    random = torch.Generator().manual_seed(0)
    lengths = (torch.randn(4, 500, generator=random).exp() * 20).long().clamp(max=3000)
    lengths[:, ::7] = 0
    lengths[1, 3] = 20_000
    bounds = torch.cat([torch.zeros(1), torch.rand(30, generator=random).sort().values * 500, torch.tensor([500.0])])
    lengths, bounds = lengths.to(device), bounds.long().to(device)
    num_rows = int(lengths.sum())
    values = [torch.arange(num_rows, device=device), torch.randn(num_rows, 12, device=device)]
    dispatched, by_rank, rows_R = ops.ranged_dispatch(values, lengths, bounds)
    assert int(rows_R.sum()) == num_rows
    combined, by_feature = ops.ranged_combine(dispatched, by_rank, bounds, num_features=4)
    torch.testing.assert_close((combined, by_feature), (values, lengths), rtol=0, atol=0)
    transposed, by_sample = ops.jagged_transpose(values, lengths)
    torch.testing.assert_close(ops.jagged_transpose(transposed, by_sample), (values, lengths), rtol=0, atol=0)

    offsets = torch.cat([lengths.new_zeros(1), lengths.reshape(-1).cumsum(0)])
    sums = ops.jagged_reduce(values[1].double(), offsets)
    torch.testing.assert_close(sums, reference.jagged_reduce(values[1].double(), offsets))
    assert torch.equal(sums, ops.jagged_reduce(values[1].double(), offsets))


VALUES = torch.zeros(int(LENGTHS.sum()), 2)
#: Wrong arguments -> a call with them, and the text of its error.
REFUSALS: dict[str, tuple[Any, str]] = {
    "no values": (lambda: ops.jagged_transpose([], LENGTHS), "there are no values"),
    "uneven values": (lambda: ops.jagged_transpose([VALUES, VALUES[1:]], LENGTHS), "18 and 17 rows"),
    "lengths of one dimension": (lambda: ops.jagged_transpose([VALUES], LENGTHS[0]), r"\(features, samples\)"),
    "lengths of another type": (lambda: ops.jagged_transpose([VALUES], LENGTHS.float()), "int64 or int32"),
    "lengths that do not add up": (lambda: ops.jagged_transpose([VALUES], LENGTHS * 2), "and there are 18"),
    "a sample of the next feature": (
        lambda: ops.jagged_permute([VALUES], LENGTHS, features=torch.tensor([0]), samples=torch.tensor([6, 0])),
        "samples: there is no 6 \\(entry 0\\), only 0 to 5",
    ),
    "a feature that is not there": (
        lambda: ops.jagged_permute([VALUES], LENGTHS, features=torch.tensor([1 << 62])),
        "features: there is no",
    ),
    "lengths that leave rows over": (
        lambda: ops.jagged_permute([torch.zeros(5)], torch.tensor([[1, 2]])),
        "lengths add up to 3, and there are 5 rows",
    ),
    "offsets that leave rows over": (
        lambda: ops.jagged_to_padded(torch.zeros(6), torch.tensor([1, 3, 5]), max_length=3),
        "offsets go from 1 to 5, and must go from 0 to the 6 rows",
    ),
    "a split that leaves rows over": (
        lambda: ops.jagged_split(torch.zeros(9), [torch.tensor([0, 2, 3]), torch.tensor([0, 1, 2])], [3, 2]),
        "numbers of rows add up to 5, and there are 9 rows",
    ),
    "a split whose sum overflows": (
        lambda: ops.jagged_split(torch.zeros(3, 0), [torch.tensor([0, 0])] * 5, [2**62] * 4 + [3]),
        "must be from 0 and add up to the 3 rows",
    ),
    "lengths whose sum overflows": (
        lambda: ops.jagged_transpose([torch.zeros(2**62, 0)], torch.tensor([[2**62] * 5])),
        "lengths of items 0 to 1 add up to more rows",
    ),
    "a negative length": (
        lambda: ops.jagged_transpose([VALUES[:3]], torch.tensor([[4, -1]])),
        "lengths has 4 for item 0, and there are 3 rows",
    ),
    "a sample that is not there": (
        lambda: ops.jagged_permute([VALUES], LENGTHS, samples=torch.tensor([6]), num_rows=0),
        "samples: there is no 6",
    ),
    "samples of another type": (
        lambda: ops.jagged_permute([VALUES], LENGTHS, samples=torch.tensor([6], dtype=torch.int32)),
        "jagged_permute: samples must be one contiguous dimension of int64",
    ),
    "too few rows": (lambda: ops.jagged_permute([VALUES], LENGTHS, num_rows=17), "and there are 17"),
    "bounds that end early": (lambda: ops.ranged_dispatch([VALUES], LENGTHS, BOUNDS[:-1]), "to the 6 samples"),
    "bounds that descend": (
        lambda: ops.ranged_dispatch([VALUES], LENGTHS, torch.tensor([0, 5, 2, 6])),
        "rank 1 descend from 5 to 2",
    ),
    "no bounds": (lambda: ops.ranged_dispatch([VALUES], LENGTHS, BOUNDS[:1]), "at least 2"),
    "another number of features": (
        lambda: ops.ranged_combine([VALUES], LENGTHS.reshape(-1), BOUNDS, num_features=4),
        "18 lengths are not of 4 features",
    ),
    "dense values of one dimension": (lambda: ops.ranged_dispatch_dense([VALUES[0]], BOUNDS), "features, samples"),
    "columns that differ": (
        lambda: ops.jagged_concat([VALUES[:12], VALUES[:9, :1]], [OFFSETS, OTHER_OFFSETS]),
        "differ in their rows alone",
    ),
    "samples that differ": (
        lambda: ops.jagged_split(VALUES, [OFFSETS, OTHER_OFFSETS[:-1]], [12, 6]),
        "offsets has 6 entries, and 7 are needed",
    ),
    "a wrong number of rows": (
        lambda: ops.padded_to_jagged(VALUES.view(6, 3, 2), OFFSETS, num_rows=11),
        "there are 11",
    ),
    "a negative width": (
        lambda: ops.jagged_to_padded(VALUES[:12], OFFSETS, max_length=-1),
        "max_length must be from 0",
    ),
    "dense columns that differ": (
        lambda: ops.jagged_add_dense(VALUES[:12], OFFSETS, torch.zeros(6, 4, 3)),
        "dense must be",
    ),
    "another reduction": (lambda: ops.jagged_reduce(VALUES[:12], OFFSETS, "max"), "sum or mean, not max"),  # type: ignore[arg-type]
    "sums of integers": (lambda: ops.jagged_reduce(VALUES[:12].long(), OFFSETS), "float64, float32"),
    "keys of another type": (lambda: ops.unique_with_counts(VALUES[:, 0]), "int64 or int32"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_does_not_fit_is_refused_by_name(what: str) -> None:
    call, message = REFUSALS[what]
    with pytest.raises(ValueError, match=message):
        call()


def test_second_derivatives_of_a_permute_are_refused_and_not_zero() -> None:
    values = torch.arange(5.0, requires_grad=True)
    (moved,), _ = ops.jagged_permute([values], torch.tensor([[2, 3]]), samples=torch.tensor([1, 1, 0]))
    (gradient,) = torch.autograd.grad(moved.pow(3).sum(), values, create_graph=True)
    with pytest.raises(NotImplementedError, match="jagged_permute_backward has no gradient"):
        gradient.sum().backward()
