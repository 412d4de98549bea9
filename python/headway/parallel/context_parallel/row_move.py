# SPDX-License-Identifier: Apache-2.0
"""Moves rows of several tensors between ranks in one all-to-all, with gradients.

Idea: a ``RowMove`` says which of its rows a rank sends to each rank, and where received rows go. It is made on the host
from the plan, so no size is asked of a device. Tensors travel side by side: a row of all of them is one row of the
message. Tensors of one dtype travel in it, others as bytes.

Example: ranks 0 and 1 brought rows a b c d e f and g h. ``shard()`` gives each four rows: rank 0 keeps a b c d, and
sends e f to rank 1, which puts them before g h.

Invariants: gradients make the same move backwards. Those of a row that was sent several times are added in the order of
ranks, so sums have the same bits in every run. All ranks call the same moves in the same order, also with no rows.
Complexity: a row sent to another rank travels once; a copy of the rows before, and one after, where order changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from headway.parallel.context_parallel.group_batch import Integers
from headway.parallel.context_parallel.plan import Splits


@dataclass(frozen=True, kw_only=True, eq=False)
class RowMove:
    """Rows that one rank sends and receives.

    Attributes:
        num_rows: rows of the tensors before.
        num_moved: rows of the tensors after.
        splits: rows to and from each rank.
        sent: (sum of sent splits,) int64 on the host: row of each sent row, by destination; None: all rows in order.
        placed: (sum of received splits,) int64: row after the move of each received row, by source; None: in order.
    """

    num_rows: int
    num_moved: int
    splits: Splits
    sent: Tensor | None = None
    placed: Tensor | None = None

    def reversed(self) -> RowMove:
        """Returns the move back. It is meant for moves that send each row once."""
        return RowMove(
            num_rows=self.num_moved,
            num_moved=self.num_rows,
            splits=self.splits.reversed(),
            sent=self.placed,
            placed=self.sent,
        )


def move_to_owners(brought: Sequence[range], owned: Sequence[Integers], rank: int) -> RowMove:
    """Returns the move of rows from the ranks that brought them to their owners.

    Args:
        brought: rows that each rank brings, one range after the other.
        owned: rows that each rank owns, ascending. Each row has one owner.
        rank: the rank that moves.
    """
    own = brought[rank]
    wanted = [rows[np.searchsorted(rows, own.start) : np.searchsorted(rows, own.stop)] - own.start for rows in owned]
    borders = np.searchsorted(owned[rank], [each.start for each in brought] + [brought[-1].stop])
    return RowMove(
        num_rows=len(own),
        num_moved=len(owned[rank]),
        splits=Splits(sent=tuple(map(len, wanted)), received=tuple(np.diff(borders).tolist())),
        sent=_index(np.concatenate(wanted), len(own)),
    )


def move_to_all(owned: Sequence[Integers], rank: int) -> RowMove:
    """Returns the move of rows from their owners to all ranks, each of which then has all rows."""
    num_own, num_rows = len(owned[rank]), sum(map(len, owned))
    return RowMove(
        num_rows=num_own,
        num_moved=num_rows,
        splits=Splits(sent=(num_own,) * len(owned), received=tuple(map(len, owned))),
        sent=_index(np.tile(np.arange(num_own), len(owned)), num_own),
        placed=_index(np.concatenate(owned), num_rows),
    )


def _index(rows: Integers, num_rows: int) -> Tensor | None:
    """Returns row numbers as a tensor; None if they are all rows in order."""
    return None if np.array_equal(rows, np.arange(num_rows)) else torch.from_numpy(rows)


def move_rows(tensors: Sequence[Tensor], move: RowMove, group: dist.ProcessGroup | None) -> list[Tensor]:
    """Moves rows of all tensors: (num_rows, ...) to (num_moved, ...) each. All ranks of the group call it.

    Args:
        tensors: of one device; any dtypes.
        move: rows of this rank.
        group: the ranks; None: this rank alone.

    Raises:
        ValueError: a tensor has another number of rows.
    """
    for index, each in enumerate(tensors):
        if each.shape[:1] != (move.num_rows,):
            raise ValueError(f"tensor {index} has shape {tuple(each.shape)}, and {move.num_rows} rows are to be moved")
    if not tensors:
        return []
    return list(_MoveRows.apply(move, group, *tensors))


class _MoveRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, move: RowMove, group: dist.ProcessGroup | None, *tensors: Tensor) -> tuple[Tensor, ...]:
        moved = _exchange(tensors, move, group)
        ctx.move, ctx.group = move, group
        ctx.mark_non_differentiable(*(each for each in moved if not each.is_floating_point()))
        return tuple(moved)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # Whether a tensor needs a gradient is the same on all ranks, so all make the same exchange.
        wanted = [index for index, needs in enumerate(ctx.needs_input_grad[2:]) if needs]
        back = _MoveBack.apply(ctx.move, ctx.group, *(grads[index] for index in wanted))
        found: dict[int, Tensor] = dict(zip(wanted, back, strict=True))
        return None, None, *(found.get(index) for index in range(len(grads)))


class _MoveBack(torch.autograd.Function):
    """The move of gradients, whose own gradient is the move itself."""

    @staticmethod
    def forward(ctx: Any, move: RowMove, group: dist.ProcessGroup | None, *grads: Tensor) -> tuple[Tensor, ...]:
        ctx.move, ctx.group = move, group
        return tuple(_exchange_back(grads, move, group))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *_MoveRows.apply(ctx.move, ctx.group, *grads)


def _exchange(tensors: Sequence[Tensor], move: RowMove, group: dist.ProcessGroup | None) -> list[Tensor]:
    packed, restore = _side_by_side(tensors)
    if move.sent is not None:
        packed = packed.index_select(0, move.sent.to(packed.device, non_blocking=True))
    received = all_to_all_rows(packed, move.splits, group)
    if move.placed is not None:
        moved = received.new_zeros((move.num_moved, received.shape[1]))
        received = moved.index_copy_(0, move.placed.to(moved.device, non_blocking=True), received)
    return restore(received)


def move_back(grads: Sequence[Tensor], move: RowMove, group: dist.ProcessGroup | None) -> list[Tensor]:
    """Moves gradients of moved rows, (num_moved, ...) each, back and adds them: (num_rows, ...) each."""
    return list(_MoveBack.apply(move, group, *grads))


def _exchange_back(grads: Sequence[Tensor], move: RowMove, group: dist.ProcessGroup | None) -> list[Tensor]:
    packed, restore = _side_by_side(grads)
    if move.placed is not None:
        packed = packed.index_select(0, move.placed.to(packed.device, non_blocking=True))
    received = all_to_all_rows(packed, move.splits.reversed(), group)
    if move.sent is None:
        return restore(received)
    return [_added(each, move) for each in restore(received)]


def _added(received: Tensor, move: RowMove) -> Tensor:
    """Adds received rows to the rows that were sent, one rank after the other. A rank sends a row at most once each."""
    assert move.sent is not None
    total = received.new_zeros((move.num_rows, *received.shape[1:]))
    index = move.sent.to(received.device, non_blocking=True)
    for begin, count in zip(accumulate((0, *move.splits.sent)), move.splits.sent, strict=False):
        total.index_add_(0, index[begin : begin + count], received[begin : begin + count])
    return total


def all_to_all_rows(rows: Tensor, splits: Splits, group: dist.ProcessGroup | None) -> Tensor:
    """Exchanges (sent rows, ...) for (received rows, ...) by the splits. None: this rank alone."""
    if group is None or group.size() == 1:
        return rows
    received = rows.new_empty((sum(splits.received), *rows.shape[1:]))
    dist.all_to_all_single(received, rows.contiguous(), list(splits.received), list(splits.sent), group=group)
    return received


def _side_by_side(tensors: Sequence[Tensor]) -> tuple[Tensor, Callable[[Tensor], list[Tensor]]]:
    """Returns all tensors as one matrix of rows, and a function that divides such a matrix into tensors again."""
    is_uniform = len({each.dtype for each in tensors}) == 1
    flat = [_matrix(each) for each in tensors]
    if not is_uniform:
        flat = [each.contiguous().view(torch.uint8) for each in flat]
    widths = [each.shape[1] for each in flat]
    shapes, dtypes = [each.shape[1:] for each in tensors], [each.dtype for each in tensors]

    def restore(rows: Tensor) -> list[Tensor]:
        parts = rows.split_with_sizes(widths, dim=1) if len(widths) > 1 else [rows]
        found = []
        for part, shape, dtype in zip(parts, shapes, dtypes, strict=True):
            # A clone begins at an address that any dtype may have.
            whole = part.contiguous() if is_uniform else part.clone(memory_format=torch.contiguous_format).view(dtype)
            found.append(whole.view(len(rows), *shape))
        return found

    return (flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)), restore


def _matrix(tensor: Tensor) -> Tensor:
    """Views or copies (rows, ...) as (rows, elements of a row), also without rows."""
    return tensor.reshape(tensor.shape[0], tensor.shape[1:].numel())
