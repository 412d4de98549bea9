"""Values of several merged tables in one exchange, rank by rank and for each rank table by table; and pieces of one.

G groups of merged tables, R ranks.
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
    """For ``all_to_all_single()``, which sends rows of each group, all in one exchange; those of one alone as they lie.

    Returns:
        what is received, which ``by_group()`` takes apart, and sent; and how much of each belongs to each rank.
    """
    sent = by_rank(values_G, sent_GR)
    receive_splits = splits(received_GR, widths_G)
    received = sent.new_empty(sum(receive_splits), *sent.shape[1:])
    return received, sent, receive_splits, splits(sent_GR, widths_G)


def by_rank(values_G: Sequence[torch.Tensor], counts_GR: Sequence[Sequence[int]]) -> torch.Tensor:
    """Flat: all that goes to rank 0, group by group, then all that goes to rank 1, and so on; of one group its rows."""
    if len(values_G) == 1:
        return values_G[0].contiguous()
    pieces_GR = [values.split_with_sizes(list(counts)) for values, counts in zip(values_G, counts_GR, strict=True)]
    return torch.cat([piece.reshape(-1) for rank in zip(*pieces_GR, strict=True) for piece in rank])


def by_group(values: torch.Tensor, counts_GR: Sequence[Sequence[int]], widths_G: Sequence[int]) -> list[torch.Tensor]:
    """The reverse: for each group (rows, width), rank by rank."""
    if len(widths_G) == 1:
        return [values]
    sizes = [
        count * width for rank in zip(*counts_GR, strict=True) for count, width in zip(rank, widths_G, strict=True)
    ]
    pieces = values.split_with_sizes(sizes)
    num_groups = len(widths_G)
    return [torch.cat(pieces[number::num_groups]).view(-1, width) for number, width in enumerate(widths_G)]


def splits(counts_GR: Sequence[Sequence[int]], widths_G: Sequence[int]) -> list[int]:
    """How much of ``by_rank()`` belongs to each rank: values, or rows of one group."""
    if len(widths_G) == 1:
        return list(counts_GR[0])
    return [
        sum(count * width for count, width in zip(rank, widths_G, strict=True)) for rank in zip(*counts_GR, strict=True)
    ]


def join_rows(pieces: Sequence[torch.Tensor | None], num_rows: Sequence[int], *, dim: int) -> torch.Tensor | None:
    """(rows, dim): all pieces, one after the other, with zeros for those that are None; None if all are.

    Pieces that lie one after the other in memory are not copied.
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
    storage, end = pieces[0].untyped_storage().data_ptr(), pieces[0].storage_offset()
    for piece in pieces:
        if not piece.is_contiguous() or piece.untyped_storage().data_ptr() != storage or piece.storage_offset() != end:
            return False
        end += piece.numel()
    return True
