"""Values of several merged tables in one exchange: rank by rank, and for each rank table by table.

G groups of merged tables, R ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def by_rank(values_G: Sequence[torch.Tensor], counts_GR: Sequence[Sequence[int]]) -> torch.Tensor:
    """Flat: all that goes to rank 0, group by group, then all that goes to rank 1, and so on."""
    pieces_GR = [torch.split(values, list(counts)) for values, counts in zip(values_G, counts_GR, strict=True)]
    return torch.cat([piece.reshape(-1) for rank in zip(*pieces_GR, strict=True) for piece in rank])


def by_group(flat: torch.Tensor, counts_GR: Sequence[Sequence[int]], widths_G: Sequence[int]) -> list[torch.Tensor]:
    """The reverse: for each group (rows, width), rank by rank."""
    sizes = [
        count * width for rank in zip(*counts_GR, strict=True) for count, width in zip(rank, widths_G, strict=True)
    ]
    pieces = torch.split(flat, sizes)
    num_groups = len(widths_G)
    return [
        torch.cat(pieces[number::num_groups]).view(-1, width) if width else flat.new_empty(0, 0)
        for number, width in enumerate(widths_G)
    ]


def splits(counts_GR: Sequence[Sequence[int]], widths_G: Sequence[int]) -> list[int]:
    """How many values belong to each rank."""
    return [
        sum(count * width for count, width in zip(rank, widths_G, strict=True)) for rank in zip(*counts_GR, strict=True)
    ]
