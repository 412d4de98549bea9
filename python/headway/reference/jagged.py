# SPDX-License-Identifier: Apache-2.0
"""Moves and reductions of jagged tensors in plain PyTorch, one item at a time: the oracle of the kernels.

Idea: a jagged tensor concatenates the rows of all items. A pair of feature and sample is an item. Lengths (F, B) tell
the number of rows of each item; the items lie feature by feature. A move lists the items in their new order and
concatenates their rows (_take()). Jagged rows of samples alone have offsets (B + 1) instead of lengths.

Example: F = 2, B = 2, lengths [[1, 2], [0, 3]], values [1, 2 3, -, 4 5 6]. Commas separate items; - has no rows.
    jagged_permute(features=[1, 0])    [-, 4 5 6, 1, 2 3], lengths [[0, 3], [1, 2]]
    ranged_dispatch(bounds=[0, 1, 2])  rank 0 gets items (0, 0), (1, 0): 1 row; rank 1 gets (0, 1), (1, 1): 5 rows
    run_lengths([7, 7, 3, 7])          keys [7, 3, 7, 0], lengths [2, 1, 1, 0], run of each entry [0, 0, 1, 2], 3 runs

Invariants: the rows of an item keep their order. Each *_combine undoes its *_dispatch, and jagged_split undoes
    jagged_concat.
Complexity: O(items + rows) steps of the Python interpreter; only for tests.

Shapes: F features, B samples, I = F * B items, R ranks, N rows of all items. ``bounds`` (R + 1): rank r owns samples
bounds[r] to bounds[r + 1] - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor


def jagged_permute(
    values: Sequence[Tensor], lengths: Tensor, *, features: Tensor | None = None, samples: Tensor | None = None
) -> tuple[list[Tensor], Tensor]:
    """Rows of the listed features and, within each, of the listed samples; None: all, in their order."""
    feature_list = range(lengths.shape[0]) if features is None else features.tolist()
    sample_list = range(lengths.shape[1]) if samples is None else samples.tolist()
    items = [feature * lengths.shape[1] + sample for feature in feature_list for sample in sample_list]
    out_lengths = lengths.reshape(-1)[items].view(len(feature_list), len(sample_list))
    return _take(values, lengths.reshape(-1), items), out_lengths


def jagged_transpose(values: Sequence[Tensor], lengths: Tensor) -> tuple[list[Tensor], Tensor]:
    """Reorders the rows of (F, B) items sample by sample, (B, F)."""
    items = torch.arange(lengths.numel()).view(lengths.shape).T.reshape(-1).tolist()
    return _take(values, lengths.reshape(-1), items), lengths.T.contiguous()


def ranged_dispatch(values: Sequence[Tensor], lengths: Tensor, bounds: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
    """Reorders rows for an all-to-all: by destination rank, then feature, then sample of the rank.

    Returns:
        the values, the lengths (I,) in the new order, and the number of rows of each rank, (R,) int64.
    """
    items_R = _items_of_ranks(bounds, lengths.shape[0])
    items = [item for items in items_R for item in items]
    flat_I = lengths.reshape(-1)
    rows_R = torch.tensor([int(flat_I[items].sum()) for items in items_R], dtype=torch.int64, device=lengths.device)
    return _take(values, flat_I, items), flat_I[items], rows_R


def ranged_combine(
    values: Sequence[Tensor], lengths: Tensor, bounds: Tensor, *, num_features: int
) -> tuple[list[Tensor], Tensor]:
    """Inverse of ``ranged_dispatch``; ``lengths`` are (I,) in the order of ranks."""
    items = torch.tensor([item for items in _items_of_ranks(bounds, num_features) for item in items], dtype=torch.int64)
    back = torch.argsort(items).tolist()
    return _take(values, lengths, back), lengths[back].view(num_features, int(bounds[-1]))


def ranged_dispatch_dense(values: Sequence[Tensor], bounds: Tensor) -> list[Tensor]:
    """Turns (F, B, ...) into (I, ...), ordered by rank, then feature, then sample of the rank."""
    items = [item for items in _items_of_ranks(bounds, values[0].shape[0]) for item in items]
    return [each.flatten(0, 1)[items] for each in values]


def ranged_combine_dense(values: Sequence[Tensor], bounds: Tensor, *, num_features: int) -> list[Tensor]:
    """Inverse of ``ranged_dispatch_dense``: turns (I, ...) into (F, B, ...)."""
    items = torch.tensor([item for items in _items_of_ranks(bounds, num_features) for item in items], dtype=torch.int64)
    return [each[torch.argsort(items)].view(num_features, -1, *each.shape[1:]) for each in values]


def join_ranges(sources: Sequence[Tensor], source_of: Tensor, begins: Tensor, ends: Tensor) -> Tensor:
    """See :func:`headway.ops.join_ranges`."""
    ranges = zip(source_of.tolist(), begins.tolist(), ends.tolist(), strict=True)
    return torch.cat([sources[0][:0], *(sources[source][begin:end] for source, begin, end in ranges)])


def jagged_concat(values: Sequence[Tensor], offsets: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Concatenates for each sample its rows of all tensors, in the order of ``values``; returns rows and offsets."""
    parts = [_rows_of_samples(each, at) for each, at in zip(values, offsets, strict=True)]
    rows = [part for sample in zip(*parts, strict=True) for part in sample]
    return torch.cat([values[0][:0], *rows]), torch.stack(list(offsets)).sum(0)


def jagged_split(values: Tensor, offsets: Sequence[Tensor]) -> list[Tensor]:
    """Inverse of ``jagged_concat``; ``offsets`` are those of the parts."""
    outs: list[list[Tensor]] = [[values[:0]] for _ in offsets]
    row = 0
    for sample in range(len(offsets[0]) - 1):
        for out, at in zip(outs, offsets, strict=True):
            length = int(at[sample + 1] - at[sample])
            out.append(values[row : row + length])
            row += length
    return [torch.cat(out) for out in outs]


def jagged_to_padded(values: Tensor, offsets: Tensor, *, max_length: int, padding: float = 0) -> Tensor:
    """(B, max_length, ...): the first ``max_length`` rows of each sample, padded with ``padding``."""
    out = values.new_full((len(offsets) - 1, max_length, *values.shape[1:]), padding)
    for sample, rows in enumerate(_rows_of_samples(values, offsets)):
        out[sample, : len(rows)] = rows[:max_length]
    return out


def padded_to_jagged(padded: Tensor, offsets: Tensor) -> Tensor:
    """(N, ...): the padded rows of each sample; zeros if a sample has more rows than ``padded`` has."""
    out = padded.new_zeros((int(offsets[-1]), *padded.shape[2:]))
    for sample, rows in enumerate(padded):
        begin, end = int(offsets[sample]), int(offsets[sample + 1])
        out[begin:end][: len(rows)] = rows[: end - begin]
    return out


def jagged_add_dense(values: Tensor, offsets: Tensor, dense: Tensor) -> Tensor:
    """Adds ``dense`` (B, L, ...) to the first L rows of each sample; further rows stay unchanged."""
    return values + padded_to_jagged(dense, offsets)


def jagged_reduce(values: Tensor, offsets: Tensor, reduction: Literal["sum", "mean"] = "sum") -> Tensor:
    """(B, ...): sum or mean of the rows of each sample; zero for a sample without rows."""
    out = values.new_zeros((len(offsets) - 1, *values.shape[1:]))
    for sample, rows in enumerate(_rows_of_samples(values, offsets)):
        if len(rows) > 0:
            out[sample] = rows.sum(0) if reduction == "sum" else rows.mean(0)
    return out


def jagged_expand(rows: Tensor, offsets: Tensor) -> Tensor:
    """(N, ...): repeats row b of ``rows`` once for each jagged row of sample b."""
    return rows.repeat_interleave(offsets.diff(), dim=0)


def run_lengths(keys: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run-length encoding of ``keys`` (K,).

    Returns:
        keys of the runs and their lengths, each padded with zeros to (K,); (K,) index of the run of each entry; (1,)
        number of runs.
    """
    values, run_of, lengths = torch.unique_consecutive(keys, return_inverse=True, return_counts=True)
    return _pad(values, len(keys)), _pad(lengths, len(keys)), run_of, keys.new_tensor([len(values)], dtype=torch.int64)


def unique_with_counts(keys: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``torch.unique`` with results of fixed shape.

    Returns:
        unique keys, ascending, padded with zeros to (K,); (K,) inverse indices; counts, padded with zeros to (K,); (1,)
        number of unique keys.
    """
    values, inverse, counts = torch.unique(keys, return_inverse=True, return_counts=True)
    return _pad(values, len(keys)), inverse, _pad(counts, len(keys)), keys.new_tensor([len(values)], dtype=torch.int64)


def _take(values: Sequence[Tensor], lengths_I: Tensor, items: Sequence[int]) -> list[Tensor]:
    parts = [torch.split(each, lengths_I.tolist()) for each in values]
    return [torch.cat([each[:0], *(part[item] for item in items)]) for each, part in zip(values, parts, strict=True)]


def _items_of_ranks(bounds: Tensor, num_features: int) -> list[list[int]]:
    num_samples = int(bounds[-1])
    return [
        [feature * num_samples + sample for feature in range(num_features) for sample in range(begin, end)]
        for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]


def _rows_of_samples(values: Tensor, offsets: Tensor) -> list[Tensor]:
    return list(torch.split(values, offsets.diff().tolist()))


def _pad(values: Tensor, size: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, size - len(values)))
