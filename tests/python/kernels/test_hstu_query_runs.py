# SPDX-License-Identifier: Apache-2.0
"""Attention whose queries are runs of tokens: its parts are those of a call with all queries."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from headway import reference
from headway.ops import hstu_attention, hstu_visibility
from hstu_cases import CASES, Case, batch_of
from hstu_runs import TYPES, wanted
from torch import Tensor

#: Cases whose queries are all tokens, and one with several blocks of queries and keys.
RUN_CASES = {name: case for name, case in CASES.items() if case.query_lengths is None} | {
    "several_blocks": replace(CASES["both_biases"], key_lengths=(300, 70, 0, 129), targets=30),
    "several_blocks_in_a_window": replace(CASES["window"], key_lengths=(300, 131), options={"window": 70}),
}


def halves_of(lengths: tuple[int, ...]) -> list[list[list[tuple[int, int]]]]:
    """Divides the tokens of each sequence among two ranks: the first has two runs, the second three."""
    parts: list[list[list[tuple[int, int]]]] = [[], []]
    for b, length in enumerate(lengths):
        borders = [0, length // 5, length // 3, length // 2, length - length // 7, length]
        runs = [(first, end - first) for first, end in pairwise(borders)]
        parts[b % 2].append([runs[1], runs[3], (0, 0)])
        parts[1 - b % 2].append([runs[0], runs[2], runs[4]])
    return parts


def rows_of(runs: list[list[tuple[int, int]]], key_offsets: Tensor) -> Tensor:
    """Returns the rows of the queries among all tokens."""
    begins = key_offsets.tolist()
    parts = [
        torch.arange(begins[b] + first, begins[b] + first + rows) for b, of in enumerate(runs) for first, rows in of
    ]
    return torch.cat([torch.empty(0, dtype=torch.int64), *parts])


def part_of(
    inputs: list[Tensor], named: dict[str, Any], runs: list[list[tuple[int, int]]]
) -> tuple[list[Tensor], dict[str, Any], Tensor]:
    """Returns the arguments of a call with these runs, and the rows of its queries."""
    q, k, v, _ = inputs
    rows = rows_of(runs, named["key_offsets"])
    counts = torch.tensor([sum(count for _, count in of) for of in runs], dtype=torch.int64)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    changes: dict[str, Any] = {"query_runs": torch.tensor(runs, dtype=torch.int32).view(-1, 3, 2)}
    if "query_times" in named:
        changes["query_times"] = named["query_times"][rows]
    return [q[rows], k, v, offsets], named | changes, rows


def gradients(
    call: Any, inputs: list[Tensor], named: dict[str, Any], grad: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    leaves = [each.detach().requires_grad_() for each in wanted(inputs, named)]
    names = [each for each in ("position_weights", "time_weights") if each in named]
    out = call(*leaves[:3], inputs[3], **named | dict(zip(names, leaves[3:], strict=True)))
    found = torch.autograd.grad(out, leaves, grad, allow_unused=True, materialize_grads=True)
    return out.detach(), found


@pytest.mark.parametrize("dtype", [torch.float64, *TYPES])
@pytest.mark.parametrize("name", RUN_CASES)
def test_runs_have_the_bits_of_all_queries_and_their_sums(name: str, dtype: torch.dtype) -> None:
    case = RUN_CASES[name]
    inputs, named = batch_of(case, dtype)
    shape = (*inputs[0].shape[:2], inputs[2].shape[2])
    grad = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    out, whole = gradients(hstu_attention, inputs, named, grad)
    sums = [torch.zeros_like(each) for each in whole]
    for runs in halves_of(case.key_lengths):
        part, of_part, rows = part_of(inputs, named, runs)
        found, grads = gradients(hstu_attention, part, of_part, grad[rows])
        assert torch.equal(found, out[rows])
        assert torch.equal(grads[0], whole[0][rows])
        for total, each in zip(sums[1:], grads[1:], strict=True):
            total += each
    eps = torch.finfo(dtype).eps
    for total, each in zip(sums[1:], whole[1:], strict=True):
        limit = 8 * eps * float(each.abs().max()) if each.numel() else 0
        torch.testing.assert_close(total, each, rtol=8 * eps, atol=limit)


@pytest.mark.parametrize("name", RUN_CASES)
def test_runs_are_the_reference_to_rounding(name: str) -> None:
    inputs, named = batch_of(RUN_CASES[name], torch.float64)
    for runs in halves_of(RUN_CASES[name].key_lengths):
        part, of_part, rows = part_of(inputs, named, runs)
        grad = torch.ones(len(rows), inputs[0].shape[1], inputs[2].shape[2], dtype=torch.float64)
        ours, truth = (gradients(call, part, of_part, grad) for call in (hstu_attention, reference.hstu_attention))
        torch.testing.assert_close(ours, truth, rtol=1e-11, atol=1e-11)


def test_keys_that_no_query_sees_are_not_looked_at() -> None:
    inputs, named = batch_of(Case(key_lengths=(200,)), torch.float32)
    runs = [[(10, 20), (90, 5), (0, 0)]]
    part, of_part, _ = part_of(inputs, named, runs)
    expected = hstu_attention(*part, **of_part)
    part[1], part[2] = part[1].clone(), part[2].clone()
    part[1][95:], part[2][95:] = 1e30, 1e30
    assert torch.equal(hstu_attention(*part, **of_part), expected)


def test_partial_gradients_of_keys_are_wider_than_16_bits() -> None:
    inputs, named = batch_of(CASES["both_biases"], torch.bfloat16)
    part, of_part, _ = part_of(inputs, named, halves_of(CASES["both_biases"].key_lengths)[0])
    arguments = _operator_arguments(part, of_part)
    grad = torch.ones(len(part[0]), 2, 16, dtype=torch.bfloat16)
    results = torch.ops.headway.hstu_attention_backward(grad, *arguments)
    assert [each.dtype for each in results[:3]] == [torch.bfloat16, torch.float32, torch.float32]
    _, grads = gradients(hstu_attention, part, of_part, grad)
    assert {each.dtype for each in grads[:3]} == {torch.bfloat16}
    assert torch.equal(grads[1], results[1].bfloat16())


def _operator_arguments(inputs: list[Tensor], named: dict[str, Any]) -> list[Any]:
    names = ("position_weights", "time_weights", "time_bounds", "query_times", "key_times", "num_contextual",
             "num_targets")  # fmt: skip
    return [*inputs, named["key_offsets"], named["max_length"], *(named.get(each) for each in names),
            1.0, 1.0, "max_length", True, 0, 0, False, named["query_runs"]]  # fmt: skip


@pytest.mark.parametrize("name", ["causal", "both_biases"])
def test_torch_checks_the_operator_with_runs(name: str) -> None:
    inputs, named = batch_of(CASES[name], torch.float32)
    part, of_part, _ = part_of(inputs, named, halves_of(CASES[name].key_lengths)[1])
    for each in wanted(part, of_part):
        each.requires_grad_()
    arguments = tuple(
        _operator_arguments([each.detach().requires_grad_() if i < 3 else each for i, each in enumerate(part)], of_part)
    )
    torch.library.opcheck(torch.ops.headway.hstu_attention.default, arguments)


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([(0, 2), (1, 4), (0, 0)], "run 1 of sequence 0 has the tokens 1 to 5, and must lie between 2 and 8"),
        ([(0, 2), (5, 4), (0, 0)], "run 1 of sequence 0 has the tokens 5 to 9, and must lie between 2 and 8"),
        ([(0, 2), (5, -4), (0, 0)], "run 1 of sequence 0 has -4 queries"),
        ([(0, 2), (5, 1), (0, 0)], "the runs of sequence 0 have 3 queries, and by query_offsets it has 6"),
    ],
)
def test_runs_that_do_not_fit_are_refused(runs: list[tuple[int, int]], message: str) -> None:
    k = torch.zeros(8, 1, 4)
    offsets, key_offsets = torch.tensor([0, 6]), torch.tensor([0, 8])
    with pytest.raises(ValueError, match=message):
        hstu_attention(
            k[:6],
            k,
            k,
            offsets,
            max_length=8,
            key_offsets=key_offsets,
            query_runs=torch.tensor([runs], dtype=torch.int32),
        )


def test_runs_of_another_shape_or_type_are_refused() -> None:
    k = torch.zeros(8, 1, 4)
    for runs in (torch.zeros(1, 3, 2), torch.zeros(2, 3, 2, dtype=torch.int32), torch.zeros(1, 6, dtype=torch.int32)):
        with pytest.raises(ValueError, match=r"query_runs must be contiguous int32 of shape \(1, 3, 2\)"):
            hstu_attention(k, k, k, torch.tensor([0, 8]), max_length=8, query_runs=runs)


def test_visibility_of_ranges_is_that_of_the_mask() -> None:
    counts = [(9, 2, 3), (6, 0, 0)]
    lengths, contextual, targets = (torch.tensor(each) for each in zip(*counts, strict=True))
    for options in ({}, {"window": 2}, {"window": 2, "full_attention_tail": 2}):
        ranges, expected = [], []
        for b, (length, num_contextual, num_targets) in enumerate(counts):
            mask = reference.hstu_mask(
                length,
                length,
                num_contextual=num_contextual,
                num_targets=num_targets,
                **options,  # type: ignore[arg-type]
            )
            for query in range(length):
                for end in range(query, length + 1):
                    for key in range(0, length, 2):
                        seen = mask[query:end, key : key + 3]
                        ranges.append([b, query, end, key, min(key + 3, length)])
                        expected.append(0 if not seen.numel() or not seen.any() else 2 if seen.all() else 1)
        found = hstu_visibility(lengths, contextual, targets, torch.tensor(ranges), **options)  # type: ignore[arg-type]
        assert found.tolist() == expected
    with pytest.raises(ValueError, match="the end of queries is 10, and must be from 0 to 9"):
        hstu_visibility(lengths, contextual, targets, torch.tensor([[0, 0, 10, 0, 1]]))
