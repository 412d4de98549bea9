# SPDX-License-Identifier: Apache-2.0
"""Joins the gradients of several features into one tensor, without a copy where they are adjacent in memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch


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
