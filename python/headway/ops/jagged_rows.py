# SPDX-License-Identifier: Apache-2.0
"""Operators on jagged rows of samples: concatenate, split, pad, reduce and expand.

Idea: the rows of all samples are stored one after the other; offsets say where each sample begins. No operator pads its
inputs, except the ones that convert to and from padded tensors.

Example: rows ``a b | c``, offsets [0, 2, 3], so sample 0 has ``a b`` and sample 1 has ``c``.
  jagged_concat with ``x | y z``, offsets [0, 1, 3]: ``a b x | c y z``, offsets [0, 3, 6]
  jagged_to_padded with max_length 2:                ``[[a, b], [c, 0]]``
  jagged_reduce:                                     ``[a + b, c]``
  jagged_expand of ``[p, q]``:                       ``p p | q``

Invariants: offsets go from 0 to N, so each row belongs to a sample. Offsets that do not fit the rows are a device
assertion on a GPU, and a ValueError on the CPU. The backward pass of each operator is another operator of this file:
concat and split, to_padded and to_jagged, sum and expand are pairs. Sums have a fixed order: same bits in every run.
Complexity: linear in the rows that are read and written. Nothing waits for the device.

Shapes: B samples, N rows in all, those of sample b from ``offsets[b]`` to before ``offsets[b + 1]``; L rows of a padded
sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from headway.ops.library import LIBRARY

_OPS = torch.ops.headway


def jagged_concat(values: Sequence[Tensor], offsets: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Concatenates jagged tensors sample by sample: a sample's rows in the first one, then in the second, and so on.

    It takes one kernel launch per tensor.

    Args:
        values: tensors (N_i, ...) that differ only in their number of rows.
        offsets: (B + 1,) int64 for each tensor.

    Returns:
        (sum of all N_i, ...), and its offsets (B + 1,).

    Raises:
        ValueError: shapes, dtypes or devices do not fit each other; on the CPU also wrong offsets.
    """
    return _OPS.jagged_concat(list(values), list(offsets)), torch.stack(list(offsets)).sum(0)


def join_ranges(
    sources: Sequence[Tensor], source_of: Tensor, begins: Tensor, ends: Tensor, *, pin_memory: bool = False
) -> Tensor:
    """Joins ranges of several lists in memory of the host. It has no gradient.

    Args:
        sources: tensors (N_i,) of one dtype on the CPU.
        source_of: (R,) int64, index in ``sources`` of each range.
        begins, ends: (R,) int64, a range has the values from ``begins`` to before ``ends`` of its source.
        pin_memory: return pinned memory.

    Returns:
        the values of all ranges, one range after the other, (sum of their lengths,).

    Raises:
        ValueError: a range is not within its source, or arguments have other shapes, dtypes or devices.
    """
    out: Tensor = _OPS.join_ranges(list(sources), source_of, begins, ends, pin_memory)
    return out


def jagged_split(values: Tensor, offsets: Sequence[Tensor], num_rows: Sequence[int]) -> list[Tensor]:
    """Inverse of ``jagged_concat``.

    Args:
        values: (N, ...) with the rows of all parts.
        offsets: (B + 1,) int64 for each part.
        num_rows: N_i of each part, which is its last offset.

    Returns:
        tensors (N_i, ...).

    Raises:
        ValueError: as ``jagged_concat``.
    """
    return list(_OPS.jagged_split(values, list(offsets), list(num_rows)))


def jagged_to_padded(values: Tensor, offsets: Tensor, *, max_length: int, padding: float = 0) -> Tensor:
    """Pads each sample to L rows, or cuts it to its first L rows.

    Args:
        values: (N, ...) of any dtype.
        offsets: (B + 1,) int64.
        max_length: L, at least 0.
        padding: value of missing rows.

    Returns:
        (B, L, ...).

    Raises:
        ValueError: shapes, dtypes or devices do not fit each other; on the CPU also wrong offsets.
    """
    out: Tensor = _OPS.jagged_to_padded(values, offsets, max_length, padding)
    return out


def padded_to_jagged(padded: Tensor, offsets: Tensor, *, num_rows: int) -> Tensor:
    """Removes the padding. Rows of a sample beyond L are zero.

    Args:
        padded: (B, L, ...) of any dtype.
        offsets: (B + 1,) int64.
        num_rows: N, the last offset.

    Returns:
        (N, ...).

    Raises:
        ValueError: as ``jagged_to_padded``.
    """
    out: Tensor = _OPS.padded_to_jagged(padded, offsets, num_rows)
    return out


def jagged_add_dense(values: Tensor, offsets: Tensor, dense: Tensor) -> Tensor:
    """Adds row i of each sample of ``dense`` to row i of the same sample. Rows beyond L stay as they are.

    Args:
        values: (N, ...) float64, float32, bfloat16 or float16.
        offsets: (B + 1,) int64.
        dense: (B, L, ...) of the same dtype.

    Returns:
        (N, ...).

    Raises:
        ValueError: as ``jagged_to_padded``.
    """
    out: Tensor = _OPS.jagged_add_dense(values, offsets, dense)
    return out


def jagged_reduce(values: Tensor, offsets: Tensor, reduction: Literal["sum", "mean"] = "sum") -> Tensor:
    """Sum or mean of the rows of each sample; zero for a sample without rows.

    Rows are added in float32 (float64 for float64) in a fixed order, so the result has the same bits in every call.

    Args:
        values: (N, ...) float64, float32, bfloat16 or float16.
        offsets: (B + 1,) int64.
        reduction: "sum" or "mean".

    Returns:
        (B, ...).

    Raises:
        ValueError: as ``jagged_to_padded``, or ``reduction`` is another one.
    """
    out: Tensor = _OPS.jagged_reduce(values, offsets, reduction)
    return out


def jagged_expand(rows: Tensor, offsets: Tensor, *, num_rows: int) -> Tensor:
    """Repeats the row of each sample for each row that the sample has: the backward pass of a sum.

    Args:
        rows: (B, ...) of any dtype.
        offsets: (B + 1,) int64.
        num_rows: N, the last offset.

    Returns:
        (N, ...).

    Raises:
        ValueError: as ``jagged_to_padded``.
    """
    out: Tensor = _OPS.jagged_expand(rows, offsets, num_rows)
    return out


def _fake_concat(values: list[Tensor], offsets: list[Tensor]) -> Tensor:
    return values[0].new_empty((sum(each.shape[0] for each in values), *values[0].shape[1:]))


def _fake_split(values: Tensor, offsets: list[Tensor], num_rows: list[int]) -> list[Tensor]:
    return [values.new_empty((size, *values.shape[1:])) for size in num_rows]


def _fake_to_padded(values: Tensor, offsets: Tensor, max_length: int, padding: float) -> Tensor:
    return values.new_empty((offsets.shape[0] - 1, max_length, *values.shape[1:]))


def _fake_to_jagged(padded: Tensor, offsets: Tensor, num_rows: int) -> Tensor:
    return padded.new_empty((num_rows, *padded.shape[2:]))


def _fake_expand(rows: Tensor, offsets: Tensor, num_rows: int) -> Tensor:
    return rows.new_empty((num_rows, *rows.shape[1:]))


def _fake_add_dense(values: Tensor, offsets: Tensor, dense: Tensor) -> Tensor:
    return values.new_empty(values.shape)


def _fake_reduce(values: Tensor, offsets: Tensor, reduction: str) -> Tensor:
    return values.new_empty((offsets.shape[0] - 1, *values.shape[1:]))


for _name, _fake in (
    ("jagged_concat", _fake_concat),
    ("jagged_split", _fake_split),
    ("jagged_to_padded", _fake_to_padded),
    ("padded_to_jagged", _fake_to_jagged),
    ("jagged_expand", _fake_expand),
    ("jagged_add_dense", _fake_add_dense),
    ("jagged_reduce", _fake_reduce),
):
    torch.library.register_fake(f"headway::{_name}", _fake, lib=LIBRARY)


@torch.library.register_fake("headway::join_ranges", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _fake_join(sources: list[Tensor], source_of: Tensor, begins: Tensor, ends: Tensor, pin_memory: bool) -> Tensor:
    return sources[0].new_empty(torch.library.get_ctx().new_dynamic_size())
