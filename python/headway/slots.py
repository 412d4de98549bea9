"""Exchanges of CUDA tensors that copy nothing inside a device: rows land where their reader finds them.

Every copy inside one device runs on its multiprocessors. An exchange of ordinary tensors makes one on arrival, out of
the memory that peers may write to. Here the result stays in that memory, a slot of a ring, as a tensor with room for
``capacity`` rows of each rank; a rank's own rows are written there by whoever makes them.

Example:
    >>> ring = headway.slots.Ring(capacity=4096, features=(128,), dtype=torch.bfloat16)
    >>> slot = ring.take()
    >>> slot.own(output_splits[rank]).copy_(rows[rank])     # or, better, computed in place
    >>> slot.exchange(rows, output_splits)                  # rows[r] goes to rank r
    >>> for source, block in enumerate(slot.received()): ...
    >>> del slot, block                                     # the slot is free when no tensor uses it
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from headway import _extension
from headway.groups import backend_of


class Ring:
    """Slots that exchanges take in turn; made by all ranks of a group at the same point among their collectives.

    Args:
        capacity: most rows that a rank sends another in one exchange; so many must be a multiple of 512 bytes.
        features: shape of a row.
        dtype: of the rows; ``torch.get_default_dtype()`` where None.
        device: the rank's CUDA device; the current one where None.
        group: a headway group; the default group where None.
        num_slots: how many slots may be leased or under way at once; each takes size * capacity rows of memory.
        max_lag: bound of these exchanges, below ``num_slots``.
    Raises:
        ValueError: an argument is out of its range, or the group is not a headway group.
    """

    def __init__(
        self,
        *,
        capacity: int,
        features: Sequence[int] = (),
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        group: dist.ProcessGroup | None = None,
        num_slots: int = 2,
        max_lag: int = 0,
    ) -> None:
        backend = backend_of(group)
        where = torch.device("cuda" if device is None else device)
        if where.type == "cuda" and where.index is None:
            where = torch.device("cuda", torch.cuda.current_device())
        self._rank = backend.rank()
        self._ring = _extension.SlotRing(
            backend, where, capacity, list(features), dtype or torch.get_default_dtype(), num_slots, max_lag
        )

    def take(self) -> Slot:
        """Leases the slot of the next exchange.

        Raises:
            ValueError: it is still leased, as a tensor on its memory lives ``num_slots`` exchanges later, or the slot
                that was taken last has neither been exchanged nor freed.
        """
        return Slot(self, self._ring.take())


class Slot:
    """The lease of one slot, and the exchange that goes through it."""

    def __init__(self, ring: Ring, slot: _extension.Slot) -> None:
        self._ring = ring
        self._slot = slot
        self._splits: list[int] | None = None

    @property
    def output(self) -> torch.Tensor:
        """Shape (size, capacity, ...features): what rank r sent begins block r; the rest is undefined."""
        return self._slot.output

    def own(self, rows: int) -> torch.Tensor:
        """Shape (rows, ...features): where this rank writes what it has for itself.

        Raises:
            ValueError: the capacity is less.
        """
        return self._slot.block(self._ring._rank, rows)

    def exchange(
        self, inputs: Sequence[torch.Tensor], output_splits: Sequence[int], *, async_op: bool = False
    ) -> dist.Work | None:
        """Starts the exchange, in the order in which slots were taken.

        Args:
            inputs: (size,) rows for each rank, each of shape (rows, ...features); that of this rank is not looked at.
            output_splits: (size,) rows that come from each rank.
            async_op: return at once, with a work to wait for.
        Returns:
            the work where ``async_op``, else None.
        Raises:
            ValueError: a shape or a number does not fit, or an older slot has not been exchanged.
        """
        work = self._ring._ring.exchange(self._slot, list(inputs), list(output_splits))
        self._splits = list(output_splits)
        if async_op:
            return work
        work.wait()
        return None

    def received(self) -> list[torch.Tensor]:
        """(size,) the rows of each rank, as views of ``output``; this rank's own are those that it wrote itself.

        Raises:
            ValueError: the exchange has not started.
        """
        if self._splits is None:
            raise ValueError("the exchange of this slot has not started")
        return self._slot.blocks(self._splits)

    def record_stream(self, stream: torch.Stream) -> None:
        """Makes the end of the lease wait for ``stream`` too: for one that uses the slot and did not wait for its work.

        The current stream of whoever frees the last tensor, and those on which ``Work.wait()`` was called, are known;
        one that waited for a future is not, and ``Tensor.record_stream()`` does nothing for slots.
        """
        self._slot.record_stream(stream)
