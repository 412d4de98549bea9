# SPDX-License-Identifier: Apache-2.0
"""Operators that reorder the jagged rows of several features and samples.

Idea: rows are stored feature by feature, and sample by sample within a feature; lengths (F, B) say how many rows each
has. A permutation of features and samples moves whole groups of rows. One kernel launch moves the rows of all tensors
and features, a second one moves the lengths, and prefix sums of the lengths give the offsets.

Example: ``ranged_dispatch`` with F = 2, B = 3 and 2 ranks, bounds [0, 1, 3]. Lengths [[1, 0, 2], [1, 1, 0]], rows
``a b c`` of the first feature and ``d e`` of the second. Rank 0 has the first sample and gets ``a d``, rank 1 has the
others and gets ``b c e``. Result: ``a d b c e``, lengths [1, 1, 0, 2, 1, 0], rows per rank [2, 3].

Invariants: lengths add up to the number of rows. ``ranged_combine`` is the inverse of ``ranged_dispatch``, and
``jagged_transpose`` of itself with the roles swapped, so the backward pass of each is the other one.
Wrong lengths, indices or bounds are a device assertion on a GPU, and a ValueError on the CPU.
Complexity: linear in rows and lengths. Nothing waits for the device, except ``jagged_permute`` without ``num_rows``.

Shapes: F features, B samples, R ranks, N rows in all. Bounds (R + 1,) assign samples to ranks: rank r has those from
``bounds[r]`` to before ``bounds[r + 1]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headway.ops.library import LIBRARY

_OPS = torch.ops.headway


def jagged_permute(
    values: Sequence[Tensor],
    lengths: Tensor,
    *,
    features: Tensor | None = None,
    samples: Tensor | None = None,
    num_rows: int | None = None,
) -> tuple[list[Tensor], Tensor]:
    """Selects features, and samples of each of them, in the order of the indices.

    Indices may repeat or be left out. Gradients of repeated rows are added in float32 (float64 for float64), in a fixed
    order.

    Args:
        values: tensors (N, ...) of any dtypes: ids, weights, embeddings.
        lengths: (F, B) int64 or int32, number of rows of each feature and sample; the sum is N.
        features: (F',) int64 indices; None: all, F' = F.
        samples: (B',) int64 indices; None: all, B' = B.
        num_rows: N', the rows of the result; N if both are permutations. None: computed from the lengths, for which the
            host waits for the device.

    Returns:
        tensors (N', ...) like ``values``, and lengths (F', B').

    Raises:
        ValueError: shapes, dtypes or devices do not fit each other; on the CPU also wrong lengths, indices or
            ``num_rows``.
    """
    outs, out_lengths, _, _ = _OPS.jagged_permute(list(values), lengths, features, samples, num_rows)
    return outs, out_lengths


def jagged_transpose(values: Sequence[Tensor], lengths: Tensor) -> tuple[list[Tensor], Tensor]:
    """Reorders rows from feature by feature to sample by sample, or back, with the roles swapped.

    Args:
        values: tensors (N, ...) of any dtypes.
        lengths: (F, B) int64 or int32; the sum is N.

    Returns:
        tensors (N, ...) in the order (B, F), and lengths (B, F).

    Raises:
        ValueError: as ``jagged_permute``.
    """
    outs, out_lengths = _OPS.jagged_transpose(list(values), lengths)
    return outs, out_lengths


def ranged_dispatch(values: Sequence[Tensor], lengths: Tensor, bounds: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
    """Reorders rows for an all-to-all: the rows for each rank become contiguous, feature by feature.

    Args:
        values: tensors (N, ...) of any dtypes.
        lengths: (F, B) int64 or int32; the sum is N.
        bounds: (R + 1,) int64 from 0 to B, not descending.

    Returns:
        tensors (N, ...) sorted by rank, then feature, then sample; lengths (F * B,) in the same order, of which rank r
        has ``F * bounds[r]`` to before ``F * bounds[r + 1]``; and (R,) int64, the rows of each rank.

    Raises:
        ValueError: as ``jagged_permute``.
    """
    outs, out_lengths, rows_R = _OPS.ranged_dispatch(list(values), lengths, bounds)
    return outs, out_lengths, rows_R


def ranged_combine(
    values: Sequence[Tensor], lengths: Tensor, bounds: Tensor, *, num_features: int
) -> tuple[list[Tensor], Tensor]:
    """Reorders the rows that an all-to-all received from each rank to feature by feature. Inverse of dispatch.

    Args:
        values: tensors (N, ...) of any dtypes, in the order of ``ranged_dispatch``.
        lengths: (F * B,) int64 or int32, in the same order.
        bounds: (R + 1,) int64 from 0 to B, not descending: the samples that came from each rank.
        num_features: F, the number of features.

    Returns:
        tensors (N, ...) feature by feature, and lengths (F, B).

    Raises:
        ValueError: as ``jagged_permute``.
    """
    outs, out_lengths = _OPS.ranged_combine(list(values), lengths, bounds, num_features)
    return outs, out_lengths


def ranged_dispatch_dense(values: Sequence[Tensor], bounds: Tensor) -> list[Tensor]:
    """``ranged_dispatch`` for exactly one row per feature and sample.

    Args:
        values: tensors (F, B, ...) of any dtypes.
        bounds: (R + 1,) int64 from 0 to B, not descending.

    Returns:
        tensors (F * B, ...); rank r has ``F * bounds[r]`` to before ``F * bounds[r + 1]``.

    Raises:
        ValueError: shapes, dtypes or devices do not fit each other; on the CPU also wrong bounds.
    """
    return list(_OPS.ranged_dispatch_dense(list(values), bounds))


def ranged_combine_dense(values: Sequence[Tensor], bounds: Tensor, *, num_features: int) -> list[Tensor]:
    """Inverse of ``ranged_dispatch_dense``: (F * B, ...) to (F, B, ...).

    Args:
        values: tensors (F * B, ...) of any dtypes, in the order of ``ranged_dispatch_dense``.
        bounds: (R + 1,) int64 from 0 to B, not descending: the samples that came from each rank.
        num_features: F, the number of features.
    Returns:
        tensors (F, B, ...).
    Raises:
        ValueError: as ``ranged_dispatch_dense``.
    """
    return list(_OPS.ranged_combine_dense(list(values), bounds, num_features))


def _like(values: Sequence[Tensor], num_rows: Any) -> list[Tensor]:
    return [each.new_empty((num_rows, *each.shape[1:])) for each in values]


def _fake_permute(
    values: list[Tensor], lengths: Tensor, features: Tensor | None, samples: Tensor | None, num_rows: Any
) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    num_features = lengths.shape[0] if features is None else features.shape[0]
    num_samples = lengths.shape[1] if samples is None else samples.shape[0]
    if num_rows is None:
        num_rows = torch.library.get_ctx().new_dynamic_size()
    return (
        _like(values, num_rows),
        lengths.new_empty((num_features, num_samples)),
        lengths.new_empty(num_features * num_samples + 1, dtype=torch.int64),
        lengths.new_empty(lengths.numel() + 1, dtype=torch.int64),
    )


def _fake_permute_backward(grads: list[Tensor], *arguments: Any) -> list[Tensor]:
    return _like(grads, arguments[-1])


def _fake_transpose(values: list[Tensor], lengths: Tensor) -> tuple[list[Tensor], Tensor]:
    return _like(values, values[0].shape[0]), lengths.new_empty((lengths.shape[1], lengths.shape[0]))


def _fake_dispatch(values: list[Tensor], lengths: Tensor, bounds: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
    return _like(values, values[0].shape[0]), lengths.new_empty(lengths.numel()), bounds.new_empty(bounds.shape[0] - 1)


def _fake_combine(
    values: list[Tensor], lengths: Tensor, bounds: Tensor, num_features: int
) -> tuple[list[Tensor], Tensor]:
    num_samples = 0 if num_features == 0 else lengths.shape[0] // num_features
    return _like(values, values[0].shape[0]), lengths.new_empty((num_features, num_samples))


def _fake_dispatch_dense(values: list[Tensor], bounds: Tensor) -> list[Tensor]:
    return [each.new_empty((each.shape[0] * each.shape[1], *each.shape[2:])) for each in values]


def _fake_combine_dense(values: list[Tensor], bounds: Tensor, num_features: int) -> list[Tensor]:
    return [each.new_empty((num_features, each.shape[0] // num_features, *each.shape[1:])) for each in values]


for _name, _fake in (
    ("jagged_permute", _fake_permute),
    ("jagged_permute_backward", _fake_permute_backward),
    ("jagged_transpose", _fake_transpose),
    ("ranged_dispatch", _fake_dispatch),
    ("ranged_combine", _fake_combine),
    ("ranged_dispatch_dense", _fake_dispatch_dense),
    ("ranged_combine_dense", _fake_combine_dense),
):
    torch.library.register_fake(f"headway::{_name}", _fake, lib=LIBRARY)
