"""Moves and sums of jagged rows in plain PyTorch, an item at a time.

Shapes: F features, B samples, I = F * B items, R ranks, N rows of all items one after the other. Jagged rows of
features and samples have lengths (F, B) and lie in that order, feature by feature; those of samples alone have offsets
(B + 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor


def jagged_permute(
    values: Sequence[Tensor], lengths: Tensor, *, features: Tensor | None = None, samples: Tensor | None = None
) -> tuple[list[Tensor], Tensor]:
    """Rows of the given features and, of each, the given samples; None: all."""
    feature_list = range(lengths.shape[0]) if features is None else features.tolist()
    sample_list = range(lengths.shape[1]) if samples is None else samples.tolist()
    items = [feature * lengths.shape[1] + sample for feature in feature_list for sample in sample_list]
    out_lengths = lengths.reshape(-1)[items].view(len(feature_list), len(sample_list))
    return _take(values, lengths.reshape(-1), items), out_lengths


def jagged_transpose(values: Sequence[Tensor], lengths: Tensor) -> tuple[list[Tensor], Tensor]:
    """Rows of (F, B) items in the order (B, F)."""
    items = torch.arange(lengths.numel()).view(lengths.shape).T.reshape(-1).tolist()
    return _take(values, lengths.reshape(-1), items), lengths.T.contiguous()


def ranged_dispatch(values: Sequence[Tensor], lengths: Tensor, bounds: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
    """Rows of (F, B) items in the order of ranks, then features, then samples of the rank; and rows of each rank."""
    items_R = _items_of_ranks(bounds, lengths.shape[0])
    items = [item for items in items_R for item in items]
    flat_I = lengths.reshape(-1)
    rows_R = torch.tensor([int(flat_I[items].sum()) for items in items_R], dtype=torch.int64, device=lengths.device)
    return _take(values, flat_I, items), flat_I[items], rows_R


def ranged_combine(
    values: Sequence[Tensor], lengths: Tensor, bounds: Tensor, *, num_features: int
) -> tuple[list[Tensor], Tensor]:
    """Back from what ``ranged_dispatch`` gives."""
    items = torch.tensor([item for items in _items_of_ranks(bounds, num_features) for item in items], dtype=torch.int64)
    back = torch.argsort(items).tolist()
    return _take(values, lengths, back), lengths[back].view(num_features, int(bounds[-1]))


def ranged_dispatch_dense(values: Sequence[Tensor], bounds: Tensor) -> list[Tensor]:
    """(F, B, ...) to (I, ...) in the order of ranks, then features, then samples of the rank."""
    items = [item for items in _items_of_ranks(bounds, values[0].shape[0]) for item in items]
    return [each.flatten(0, 1)[items] for each in values]


def ranged_combine_dense(values: Sequence[Tensor], bounds: Tensor, *, num_features: int) -> list[Tensor]:
    """Back from what ``ranged_dispatch_dense`` gives."""
    items = torch.tensor([item for items in _items_of_ranks(bounds, num_features) for item in items], dtype=torch.int64)
    return [each[torch.argsort(items)].view(num_features, -1, *each.shape[1:]) for each in values]


def jagged_concat(values: Sequence[Tensor], offsets: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Of each sample, its rows in the first tensor, then in the second, and so on; with the offsets of the outcome."""
    parts = [_rows_of_samples(each, at) for each, at in zip(values, offsets, strict=True)]
    rows = [part for sample in zip(*parts, strict=True) for part in sample]
    return torch.cat([values[0][:0], *rows]), torch.stack(list(offsets)).sum(0)


def jagged_split(values: Tensor, offsets: Sequence[Tensor]) -> list[Tensor]:
    """Back from what ``jagged_concat`` gives, with the offsets of the parts."""
    outs: list[list[Tensor]] = [[values[:0]] for _ in offsets]
    row = 0
    for sample in range(len(offsets[0]) - 1):
        for out, at in zip(outs, offsets, strict=True):
            length = int(at[sample + 1] - at[sample])
            out.append(values[row : row + length])
            row += length
    return [torch.cat(out) for out in outs]


def jagged_to_padded(values: Tensor, offsets: Tensor, *, max_length: int, padding: float = 0) -> Tensor:
    """(B, max_length, ...): the first rows of each sample, then padding."""
    out = values.new_full((len(offsets) - 1, max_length, *values.shape[1:]), padding)
    for sample, rows in enumerate(_rows_of_samples(values, offsets)):
        out[sample, : len(rows)] = rows[:max_length]
    return out


def padded_to_jagged(padded: Tensor, offsets: Tensor) -> Tensor:
    """(N, ...): the first rows of each sample, then zeros where it has more rows than are padded."""
    out = padded.new_zeros((int(offsets[-1]), *padded.shape[2:]))
    for sample, rows in enumerate(padded):
        begin, end = int(offsets[sample]), int(offsets[sample + 1])
        out[begin:end][: len(rows)] = rows[: end - begin]
    return out


def jagged_add_dense(values: Tensor, offsets: Tensor, dense: Tensor) -> Tensor:
    """Rows of samples and the padded rows (B, L, ...), as far as these go."""
    return values + padded_to_jagged(dense, offsets)


def jagged_reduce(values: Tensor, offsets: Tensor, reduction: Literal["sum", "mean"] = "sum") -> Tensor:
    """(B, ...): the sum or mean of the rows of each sample, zero where there are none."""
    out = values.new_zeros((len(offsets) - 1, *values.shape[1:]))
    for sample, rows in enumerate(_rows_of_samples(values, offsets)):
        if len(rows) > 0:
            out[sample] = rows.sum(0) if reduction == "sum" else rows.mean(0)
    return out


def jagged_expand(rows: Tensor, offsets: Tensor) -> Tensor:
    """(N, ...): the row of each sample once for each row that the sample has."""
    return rows.repeat_interleave(offsets.diff(), dim=0)


def run_lengths(keys: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Keys and lengths of runs of equal neighbours, followed by zeros; the run of each entry; the number of runs."""
    values, run_of, lengths = torch.unique_consecutive(keys, return_inverse=True, return_counts=True)
    return _pad(values, len(keys)), _pad(lengths, len(keys)), run_of, keys.new_tensor([len(values)], dtype=torch.int64)


def unique_with_counts(keys: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Different keys in ascending order, followed by zeros; the place of each key among them; how often each is there,
    followed by zeros; how many there are."""
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
