# SPDX-License-Identifier: Apache-2.0
"""Packs the rows of several merged tables into one all-to-all buffer, and unpacks them.

The buffer is rank-major: all rows for rank 0, table by table, then all rows for rank 1, and so on. With one table its
rows already have that order, so they are sent in place, with splits in rows. With several tables, the buffer is flat
and splits count elements.

Example: G = 2 tables of widths 1 and 2, R = 2 ranks; a rank sends 1 and 2 rows of table 0, and 1 and 0 rows of table 1:
``[table 0: 1 element][table 1: 2 elements] [table 0: 2 elements]`` with splits [3, 2].

G merged tables, R ranks. ``sent_GR`` and ``received_GR`` are numbers of rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def all_to_all_arguments(
    values_G: Sequence[torch.Tensor],
    sent_GR: Sequence[Sequence[int]],
    received_GR: Sequence[Sequence[int]],
    widths_G: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor, list[int], list[int]]:
    """Returns the arguments of one ``all_to_all_single()`` that sends rows of all merged tables.

    Args:
        values_G: (rows, width) for each merged table, rank by rank.
        sent_GR: rows for each rank.
        received_GR: rows from each rank.
        widths_G: columns of each merged table.
    Returns:
        receive buffer (unpack it with ``by_table()``), send buffer, receive splits and send splits.
    """
    sent = by_rank(values_G, sent_GR)
    receive_splits = splits(received_GR, widths_G)
    received = sent.new_empty(sum(receive_splits), *sent.shape[1:])
    return received, sent, receive_splits, splits(sent_GR, widths_G)


def by_rank(values_G: Sequence[torch.Tensor], counts_GR: Sequence[Sequence[int]]) -> torch.Tensor:
    """Packs rows into a flat rank-major buffer. With one merged table it returns the rows, (rows, width)."""
    if len(values_G) == 1:
        return values_G[0].contiguous()
    pieces_GR = [values.split_with_sizes(list(counts)) for values, counts in zip(values_G, counts_GR, strict=True)]
    return torch.cat([piece.reshape(-1) for rank in zip(*pieces_GR, strict=True) for piece in rank])


def by_table(values: torch.Tensor, counts_GR: Sequence[Sequence[int]], widths_G: Sequence[int]) -> list[torch.Tensor]:
    """Unpacks what ``by_rank()`` packed: (rows, width) for each merged table, rank by rank."""
    if len(widths_G) == 1:
        return [values]
    sizes = [
        count * width for rank in zip(*counts_GR, strict=True) for count, width in zip(rank, widths_G, strict=True)
    ]
    pieces = values.split_with_sizes(sizes)
    num_tables = len(widths_G)
    return [torch.cat(pieces[index::num_tables]).view(-1, width) for index, width in enumerate(widths_G)]


def splits(counts_GR: Sequence[Sequence[int]], widths_G: Sequence[int]) -> list[int]:
    """Returns the split sizes of a buffer of ``by_rank()``: elements per rank, or rows if there is one merged table."""
    if len(widths_G) == 1:
        return list(counts_GR[0])
    return [
        sum(count * width for count, width in zip(rank, widths_G, strict=True)) for rank in zip(*counts_GR, strict=True)
    ]


def join_rows(pieces: Sequence[torch.Tensor | None], num_rows: Sequence[int], *, dim: int) -> torch.Tensor | None:
    """Concatenates pieces of rows. Nothing is copied if the pieces are adjacent in memory.

    Args:
        pieces: (rows, dim) each, or None for rows of zeros.
        num_rows: rows of each piece.
        dim: columns.
    Returns:
        (total rows, dim), contiguous; None if all pieces are None.
    """
    some = next((piece for piece in pieces if piece is not None), None)
    if some is None:
        return None
    if all(piece is not None for piece in pieces) and _are_adjacent([piece for piece in pieces if piece is not None]):
        first = pieces[0]
        assert first is not None
        return first.as_strided((sum(num_rows), dim), (dim, 1))
    return torch.cat(
        [some.new_zeros(rows, dim) if piece is None else piece for piece, rows in zip(pieces, num_rows, strict=True)]
    ).contiguous()


def _are_adjacent(pieces: Sequence[torch.Tensor]) -> bool:
    """Are the pieces contiguous, and does each begin in memory where the one before ends?"""
    storage, end = pieces[0].untyped_storage().data_ptr(), pieces[0].storage_offset()
    for piece in pieces:
        if not piece.is_contiguous() or piece.untyped_storage().data_ptr() != storage or piece.storage_offset() != end:
            return False
        end += piece.numel()
    return True
