# SPDX-License-Identifier: Apache-2.0
"""All-to-all of CUDA tensors without copies inside a device: the output is the memory that peers write to.

Idea: a copy inside one device occupies its multiprocessors. An exchange of ordinary tensors needs one on arrival, from
the receive buffer to the output. Here the receive buffer is the output: a slot of a ring, visible as a tensor with room
for ``capacity`` rows of each rank. The rank writes its own rows into its block of the slot.

Exchange t uses slot t mod ``num_slots``. ``Ring.take()`` leases the slot. The lease ends when the last tensor on the
slot's memory is freed, after the work that was enqueued by then on the streams that used the slot. The rank then
raises a counter at each peer, and the peers' streams wait for this counter before they write into the slot again.

Example: num_slots = 2. Exchanges 0, 1, 2 use slots 0, 1, 0. ``take()`` for exchange 2 raises ValueError if a tensor of
exchange 0 is alive. Otherwise it returns at once, and the peers' copies of exchange 2 start when all uses of exchange 0
are done.

Invariants: peers write into a slot only while no tensor of an earlier exchange uses it. Exchanges start in the order
of ``take()``. ``max_lag`` is below ``num_slots``.

Complexity: with ``size`` ranks, size - 1 copies by copy engines per rank and exchange; num_slots * size * capacity rows
of device memory.

Usage::

    ring = headway.slots.Ring(capacity=4096, features=(128,), dtype=torch.bfloat16)
    slot = ring.take()
    slot.own(output_splits[rank]).copy_(rows[rank])  # or, better, computed in place
    slot.exchange(rows, output_splits)  # rows[r] goes to rank r
    for source, block in enumerate(slot.received()):
        ...
    del slot, block  # ends the lease: no tensor uses the slot any more
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from headway.comm import _extension
from headway.comm.groups import backend_of


class Ring:
    """A ring of slots. Creating one is a collective: all ranks do so at the same point among their collectives.

    Args:
        capacity: most rows from one rank to another per exchange. ``capacity`` rows must be a multiple of 512 bytes.
        features: shape of a row.
        dtype: element type of the rows; None: ``torch.get_default_dtype()``.
        device: the rank's CUDA device; None: the current one.
        group: a headway group; None: the default group.
        num_slots: number of slots that may be leased or in flight at once; each takes size * capacity rows of memory.
        max_lag: number of exchanges by which a rank may run ahead, at least 0 and below ``num_slots``.
    Raises:
        ValueError: an argument is out of range, or the group is not a headway group.
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
            ValueError: the slot is still leased, because a tensor of the exchange ``num_slots`` earlier is alive; or
                the last slot taken has been neither exchanged nor freed.
        """
        return Slot(self, self._ring.take())


class Slot:
    """The lease of one slot, and its exchange."""

    def __init__(self, ring: Ring, slot: _extension.Slot) -> None:
        self._ring = ring
        self._slot = slot
        self._splits: list[int] | None = None

    @property
    def output(self) -> torch.Tensor:
        """Shape (size, capacity, ...features). Block r begins with the rows of rank r; the rest is undefined."""
        return self._slot.output

    def own(self, rows: int) -> torch.Tensor:
        """Shape (rows, ...features): view into which this rank writes its rows for itself.

        Raises:
            ValueError: ``rows`` is above the capacity.
        """
        return self._slot.block(self._ring._rank, rows)

    def exchange(
        self, inputs: Sequence[torch.Tensor], output_splits: Sequence[int], *, async_op: bool = False
    ) -> dist.Work | None:
        """Starts the exchange. Slots must be exchanged in the order in which they were taken.

        Args:
            inputs: (size,) rows for each rank, each of shape (rows, ...features); the entry of this rank is ignored.
            output_splits: (size,) number of rows from each rank.
            async_op: return at once with a ``Work``.
        Returns:
            the ``Work`` if ``async_op``, else None.
        Raises:
            ValueError: a shape or a number of rows does not fit, or an earlier slot has not been exchanged.
        """
        work = self._ring._ring.exchange(self._slot, list(inputs), list(output_splits))
        self._splits = list(output_splits)
        if async_op:
            return work
        work.wait()
        return None

    def received(self) -> list[torch.Tensor]:
        """(size,) the rows of each rank as views of ``output``. The block of this rank holds what it wrote itself.

        Raises:
            ValueError: the exchange has not started.
        """
        if self._splits is None:
            raise ValueError("the exchange of this slot has not started")
        return self._slot.blocks(self._splits)

    def record_stream(self, stream: torch.Stream) -> None:
        """Makes the end of the lease wait for ``stream`` too.

        The lease already waits for the streams on which ``Work.wait()`` was called, and for the current stream of the
        thread that frees the last tensor. Call this for any other stream that uses the slot, such as one that waited
        for a future. ``Tensor.record_stream()`` has no effect on slots.
        """
        self._slot.record_stream(stream)
