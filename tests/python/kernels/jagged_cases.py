# SPDX-License-Identifier: Apache-2.0
"""Calls of jagged operators by name. Each makes its arguments on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

FEATURES, SAMPLES = 3, 6
#: (FEATURES, SAMPLES) lengths with empty entries: a whole feature, single samples, and both ends.
LENGTHS = torch.tensor([[0, 2, 1, 0, 5, 3], [0, 0, 0, 0, 0, 0], [4, 0, 1, 0, 2, 0]])
#: (SAMPLES + 1,) offsets of two jagged tensors, of 12 and 9 rows.
OFFSETS = torch.tensor([0, 0, 3, 4, 4, 11, 12])
OTHER_OFFSETS = torch.tensor([0, 2, 2, 3, 3, 5, 9])
#: Bounds of the sample range of each rank. Ranks have no sample, one sample, or several.
BOUNDS = torch.tensor([0, 0, 1, 4, 4, 6])


@dataclass(frozen=True, kw_only=True)
class Call:
    """Call of ``headway.ops.NAME`` and ``headway.reference.NAME``.

    ``only`` has arguments of the former alone: numbers of rows, which spare it a wait for the device.
    ``operator_arguments`` are all arguments of ``torch.ops.headway.NAME``, in order.
    """

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)  #: Named arguments of both.
    only: dict[str, Any] = field(default_factory=dict)
    operator_arguments: tuple[Any, ...]

    def leaves(self) -> list[Tensor]:
        """Returns the arguments that get gradients."""
        lists = [each if isinstance(each, list) else [each] for each in self.arguments]
        return [leaf for each in lists for leaf in each if isinstance(leaf, Tensor) and leaf.is_floating_point()]


Make = Callable[[torch.device, torch.dtype], Call]


def whole_numbers(device: torch.device, dtype: torch.dtype, *shape: int) -> Tensor:
    """Draws small integers, so that sums are exact in all types and orders."""
    values = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(len(shape))).to(device, dtype)
    return values.requires_grad_(dtype.is_floating_point)


def _values(device: torch.device, dtype: torch.dtype, num_rows: int) -> list[Tensor]:
    """Makes weights, vectors of odd and wide sizes, more dimensions, and ids."""
    return [
        whole_numbers(device, dtype, num_rows),
        whole_numbers(device, dtype, num_rows, 3),
        whole_numbers(device, dtype, num_rows, 16),
        whole_numbers(device, dtype, num_rows, 2, 2),
        torch.arange(num_rows, device=device),
        torch.arange(num_rows, device=device, dtype=torch.int32),
    ]


def _permute(features: list[int] | None, samples: list[int] | None, knows_rows: bool = True) -> Make:
    """Selects features and samples by index; None: all. With ``knows_rows`` the call gets the number of rows."""

    def make(device: torch.device, dtype: torch.dtype) -> Call:
        chosen = LENGTHS if features is None else LENGTHS[features]
        num_rows = int((chosen if samples is None else chosen[:, samples]).sum())
        lists = [
            None if each is None else torch.tensor(each, device=device, dtype=torch.int64)
            for each in (features, samples)
        ]
        values, lengths = _values(device, dtype, int(LENGTHS.sum())), LENGTHS.to(device)
        known = num_rows if knows_rows else None
        return Call(
            name="jagged_permute",
            arguments=(values, lengths),
            options={"features": lists[0], "samples": lists[1]},
            only={"num_rows": known},
            operator_arguments=(values, lengths, *lists, known),
        )

    return make


def _transpose(device: torch.device, dtype: torch.dtype) -> Call:
    arguments = (_values(device, dtype, int(LENGTHS.sum())), LENGTHS.to(device, torch.int32))
    return Call(name="jagged_transpose", arguments=arguments, operator_arguments=arguments)


# ranged_dispatch moves rows from feature-major to rank-major order, by the samples of each rank in BOUNDS.
def _dispatch(device: torch.device, dtype: torch.dtype) -> Call:
    arguments = (_values(device, dtype, int(LENGTHS.sum())), LENGTHS.to(device), BOUNDS.to(device))
    return Call(name="ranged_dispatch", arguments=arguments, operator_arguments=arguments)


# ranged_combine is the inverse of ranged_dispatch.
def _combine(device: torch.device, dtype: torch.dtype) -> Call:
    arguments = (_values(device, dtype, int(LENGTHS.sum())), LENGTHS.reshape(-1).to(device), BOUNDS.to(device))
    return Call(
        name="ranged_combine",
        arguments=arguments,
        options={"num_features": FEATURES},
        operator_arguments=(*arguments, FEATURES),
    )


def _dispatch_dense(device: torch.device, dtype: torch.dtype) -> Call:
    values = [whole_numbers(device, dtype, FEATURES, SAMPLES, 5), whole_numbers(device, torch.int64, FEATURES, SAMPLES)]
    arguments = (values, BOUNDS.to(device))
    return Call(name="ranged_dispatch_dense", arguments=arguments, operator_arguments=arguments)


def _combine_dense(device: torch.device, dtype: torch.dtype) -> Call:
    arguments = ([whole_numbers(device, dtype, FEATURES * SAMPLES, 4)], BOUNDS.to(device))
    return Call(
        name="ranged_combine_dense",
        arguments=arguments,
        options={"num_features": FEATURES},
        operator_arguments=(*arguments, FEATURES),
    )


def _concat(device: torch.device, dtype: torch.dtype) -> Call:
    offsets = [OFFSETS.to(device), OTHER_OFFSETS.to(device), OFFSETS.to(device)]
    arguments = ([whole_numbers(device, dtype, int(each[-1]), 6) for each in offsets], offsets)
    return Call(name="jagged_concat", arguments=arguments, operator_arguments=arguments)


def _split(device: torch.device, dtype: torch.dtype) -> Call:
    offsets = [OFFSETS.to(device), OTHER_OFFSETS.to(device)]
    num_rows = [int(each[-1]) for each in offsets]
    arguments = (whole_numbers(device, dtype, sum(num_rows), 6), offsets)
    return Call(
        name="jagged_split", arguments=arguments, only={"num_rows": num_rows}, operator_arguments=(*arguments, num_rows)
    )


def _to_padded(device: torch.device, dtype: torch.dtype) -> Call:
    arguments = (whole_numbers(device, dtype, 12, 5), OFFSETS.to(device))
    options = {"max_length": 4, "padding": -2}
    return Call(name="jagged_to_padded", arguments=arguments, options=options, operator_arguments=(*arguments, 4, -2))


def _to_jagged(device: torch.device, dtype: torch.dtype) -> Call:
    arguments = (whole_numbers(device, dtype, SAMPLES, 4, 8), OFFSETS.to(device))
    return Call(
        name="padded_to_jagged", arguments=arguments, only={"num_rows": 12}, operator_arguments=(*arguments, 12)
    )


def _expand(device: torch.device, dtype: torch.dtype) -> Call:
    arguments = (whole_numbers(device, dtype, SAMPLES, 7), OFFSETS.to(device))
    return Call(name="jagged_expand", arguments=arguments, only={"num_rows": 12}, operator_arguments=(*arguments, 12))


def _add_dense(device: torch.device, dtype: torch.dtype) -> Call:
    arguments = (
        whole_numbers(device, dtype, 12, 8),
        OFFSETS.to(device),
        whole_numbers(device, dtype, SAMPLES, 4, 8),
    )
    return Call(name="jagged_add_dense", arguments=arguments, operator_arguments=arguments)


def _reduce(reduction: str) -> Make:
    def make(device: torch.device, dtype: torch.dtype) -> Call:
        arguments = (whole_numbers(device, dtype, 12, 3), OFFSETS.to(device), reduction)
        return Call(name="jagged_reduce", arguments=arguments, operator_arguments=arguments)

    return make


def _keys(name: str) -> Make:
    """Calls an operator on keys with runs, repeats that are apart, and negative ones."""

    def make(device: torch.device, dtype: torch.dtype) -> Call:
        arguments = (torch.tensor([3, 3, -1, 3, 7, 7, 7, 0, -1], device=device),)
        return Call(name=name, arguments=arguments, operator_arguments=arguments)

    return make


CASES: dict[str, Make] = {
    "permute_of_samples": _permute(None, [5, 0, 3, 1, 4, 2]),
    "permute_of_features": _permute([2, 0, 1], None),
    "permute_with_repeats_and_gaps": _permute([2, 0, 0], [4, 4, 1, 0], knows_rows=False),
    "permute_of_none": _permute([], []),
    "transpose": _transpose,
    "dispatch": _dispatch,
    "combine": _combine,
    "dispatch_dense": _dispatch_dense,
    "combine_dense": _combine_dense,
    "concat": _concat,
    "split": _split,
    "to_padded": _to_padded,
    "to_jagged": _to_jagged,
    "expand": _expand,
    "add_dense": _add_dense,
    "sum": _reduce("sum"),
    "mean": _reduce("mean"),
    "run_lengths": _keys("run_lengths"),
    "unique_with_counts": _keys("unique_with_counts"),
}
