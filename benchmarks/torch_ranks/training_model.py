# SPDX-License-Identifier: Apache-2.0
"""A training step in the shape of TorchRec's: sharded tables, exchanges of ids and rows, a replicated dense part.

Shapes: R ranks, B samples of a rank's batch, b = B or B / 2 samples of a part of it, T tables in all, L = T / R tables
of a rank, D columns, N ids. A bag is the ids of one sample in one table.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import headway
import torch
import torch.distributed as dist
import torch.nn.functional as F

Schedule = Literal["serial", "overlapped"]
_LEARNING_RATE = 0.01


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """Sizes of the model and of a rank's batch."""

    tables: int = 32
    rows_per_table: int = 200_000
    dim: int = 128
    batch: int = 8192
    most_ids: int = 8  # Largest number of ids of a sample in a table; the smallest is 1.
    widths: tuple[int, ...] = (4096, 4096, 4096)  # Outputs of the hidden layers of the dense part, an MLP.


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One rank's batch. Tables of one owner lie side by side.

    Attributes:
        lengths: (T, B) int64, number of ids of each sample in each table.
        ids: (N,) int64, ordered by table, then by sample.
        labels: (B,) float32.
    """

    lengths: torch.Tensor
    ids: torch.Tensor
    labels: torch.Tensor


def make_batch(sizes: ModelSizes, rank: int, step: int, device: torch.device) -> Batch:
    """Makes a random batch with few frequent ids and many rare ones."""
    generator = torch.Generator().manual_seed(step * 1009 + rank)
    lengths = torch.randint(1, sizes.most_ids + 1, (sizes.tables, sizes.batch), generator=generator)
    ids = (torch.rand(int(lengths.sum()), generator=generator) ** 4 * sizes.rows_per_table).long()
    labels = torch.randint(0, 2, (sizes.batch,), generator=generator).float()
    return Batch(lengths=lengths.to(device), ids=ids.to(device), labels=labels.to(device))


@dataclass(frozen=True, kw_only=True)
class OwnedIds:
    """Ids that all ranks look up in this rank's tables, ordered by source, table and sample.

    Attributes:
        ids: (N,) int64 rows of the stacked tables.
        lengths: (R * L * B,) int64, number of ids of each bag.
    """

    ids: torch.Tensor
    lengths: torch.Tensor


class Waits:
    """Measures how long the current stream of a GPU waits for exchanges."""

    def __init__(self) -> None:
        self._pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def wait(self, work: Any) -> None:
        """Makes the stream wait for a Work."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work.wait()
        end.record()
        self._pairs.append((begin, end))

    def take_seconds(self) -> float:
        """Returns the seconds waited since the last call. The device must be idle."""
        seconds = sum(begin.elapsed_time(end) for begin, end in self._pairs) / 1e3
        self._pairs.clear()
        return seconds


class Exchange:
    """Even exchanges of rows through ordinary tensors."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def start(self, blocks: torch.Tensor) -> tuple[Any, torch.Tensor]:
        """Starts an exchange of (R, ..., D) blocks; returns its Work and the received blocks."""
        received = torch.empty_like(blocks)
        return dist.all_to_all_single(received, blocks, group=self.group, async_op=True), received


class SlotExchange(Exchange):
    """Even exchanges of rows through slot tensors: only the rank's own block is copied inside the device."""

    _NUM_SLOTS = 4  # An overlapped step needs four: rows and gradients of both halves.

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group)
        self._rings: dict[torch.Size, headway.slots.Ring] = {}

    def start(self, blocks: torch.Tensor) -> tuple[Any, torch.Tensor]:
        rows = blocks[0].numel() // blocks.shape[-1]
        if blocks.shape not in self._rings:
            self._rings[blocks.shape] = headway.slots.Ring(
                capacity=rows,
                features=blocks.shape[-1:],
                dtype=blocks.dtype,
                device=blocks.device,
                group=self.group,
                num_slots=self._NUM_SLOTS,
            )
        slot = self._rings[blocks.shape].take()
        by_rank = blocks.view(len(blocks), rows, -1).unbind(0)
        slot.own(rows).copy_(by_rank[self.group.rank()])
        work = slot.exchange(by_rank, [rows] * len(blocks), async_op=True)
        return work, slot.output.view(blocks.shape)


class Trainer:
    """One rank's part of the model.

    A ``serial`` step runs its parts one after the other. An ``overlapped`` step splits the batch into two halves. While
    the dense part of one half runs, rows of the second half or gradients of the first are in flight. Meanwhile a side
    stream exchanges the ids of the next batch. Both schedules give the same update.
    """

    def __init__(
        self, sizes: ModelSizes, of_rows: Exchange, of_ids: Exchange, device: torch.device, *, seed: int = 0
    ) -> None:
        """Makes the model.

        Args:
            sizes: sizes of the model.
            of_rows: exchanges rows and their gradients; its group also reduces the dense gradients.
            of_ids: exchanges ids. It should use another group, since in one group ids would wait for gradients that do
                not exist yet.
            device: device of this rank.
            seed: seed of the initial weights.
        """
        self.waits = Waits() if device.type == "cuda" else None
        self._sizes = sizes
        self._of_rows, self._of_ids = of_rows, of_ids
        group = of_rows.group
        self._ranks = group.size()
        if sizes.tables % self._ranks != 0 or sizes.batch % 2 != 0:
            raise ValueError(f"{sizes.tables} tables must share out among {self._ranks} ranks, and the batch halve")
        self._local_tables = sizes.tables // self._ranks
        first = torch.arange(self._local_tables, device=device) * sizes.rows_per_table
        # (R * L * B,) row of the stacked tables where the table of each bag begins.
        self._first_row = first.repeat_interleave(sizes.batch).repeat(self._ranks)
        own = torch.Generator(device).manual_seed(seed + 1 + group.rank())
        self.rows = torch.empty(self._local_tables * sizes.rows_per_table, sizes.dim, device=device)
        self.rows.uniform_(-0.05, 0.05, generator=own)
        shared = torch.Generator(device).manual_seed(seed)
        widths = (sizes.tables * sizes.dim, *sizes.widths, 1)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.weights = [
            (torch.randn(outputs, inputs, device=device, generator=shared) * inputs**-0.5).to(dtype).requires_grad_()
            for inputs, outputs in pairwise(widths)
        ]
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._owned: OwnedIds | None = None  # Ids of the next batch, if an overlapped step has exchanged them.

    def step(self, batch: Batch, following: Batch, schedule: Schedule) -> torch.Tensor:
        """Trains on a batch; returns this rank's mean loss, on the device.

        Args:
            batch: the batch to train on; after an overlapped step, the ``following`` of that step.
            following: the batch of the next step. An overlapped step exchanges its ids.
            schedule: ``serial`` or ``overlapped``.
        """
        owned = self._exchange_ids(batch) if self._owned is None else self._take_owned(self._owned)
        part_size = self._sizes.batch // (1 if schedule == "serial" else 2)
        bags = self._look_up(owned).view(self._ranks, self._local_tables, self._sizes.batch, -1)
        arriving = [self._of_rows.start(part.contiguous()) for part in bags.split(part_size, dim=2)]
        del bags
        losses, leaving = [], []
        for (work, received), labels in zip(arriving, batch.labels.split(part_size), strict=True):
            self._wait(work)
            loss, gradient = self._learn(received, labels)
            losses.append(loss)
            leaving.append(self._of_rows.start(gradient))
        reduced = self._reduce_gradients()
        self._owned = self._exchange_ids_beside(following) if schedule == "overlapped" else None
        for work, _ in leaving:
            self._wait(work)
        self._update_rows(owned, torch.cat([gradient for _, gradient in leaving], dim=2))
        self._update_weights(*reduced)
        return torch.stack(losses).mean()

    def _wait(self, work: Any) -> None:
        if self.waits is None:
            work.wait()
        else:
            self.waits.wait(work)

    def _exchange_ids(self, batch: Batch) -> OwnedIds:
        """Exchanges ids in three calls, as TorchRec does: number of ids, lengths of the bags, ids."""
        by_owner = batch.lengths.view(self._ranks, -1)
        counts = by_owner.sum(dim=1)
        counted, their_counts = self._of_ids.start(counts)
        shared_out, lengths = self._of_ids.start(by_owner)
        self._wait(counted)
        sent, received = torch.stack([counts, their_counts]).tolist()  # The host needs the sizes.
        ids = batch.ids.new_empty(sum(received))
        exchanged = dist.all_to_all_single(ids, batch.ids, received, sent, group=self._of_ids.group, async_op=True)
        self._wait(shared_out)
        lengths = lengths.view(-1)
        first_row = self._first_row.repeat_interleave(lengths, output_size=len(ids))
        self._wait(exchanged)
        return OwnedIds(ids=ids + first_row, lengths=lengths)

    def _exchange_ids_beside(self, batch: Batch) -> OwnedIds:
        """Exchanges ids on the side stream. Its waits there do not count."""
        waits, self.waits = self.waits, None
        with nullcontext() if self._side is None else torch.cuda.stream(self._side):
            owned = self._exchange_ids(batch)
        self.waits = waits
        return owned

    def _take_owned(self, owned: OwnedIds) -> OwnedIds:
        if self._side is not None:
            stream = torch.cuda.current_stream()
            stream.wait_stream(self._side)
            for tensor in (owned.ids, owned.lengths):
                tensor.record_stream(stream)
        return owned

    def _look_up(self, owned: OwnedIds) -> torch.Tensor:
        """Returns the (R * L * B, D) sums of the bags' rows."""
        offsets = owned.lengths.cumsum(0) - owned.lengths
        return F.embedding_bag(owned.ids, self.rows, offsets, mode="sum")

    def _learn(self, received: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Runs the dense part, forward and backward, on (R, L, b, D) bags; returns the loss and the bags' gradient."""
        bags = received.requires_grad_()
        hidden = bags.flatten(0, 1).transpose(0, 1).reshape(len(labels), -1).to(self.weights[0].dtype)
        for weight in self.weights[:-1]:
            hidden = torch.relu(F.linear(hidden, weight))
        logits = F.linear(hidden, self.weights[-1]).squeeze(1).float()
        loss = F.binary_cross_entropy_with_logits(logits, labels)
        (loss * (len(labels) / self._sizes.batch)).backward()
        assert bags.grad is not None
        return loss.detach(), bags.grad

    def _reduce_gradients(self) -> tuple[Any, torch.Tensor]:
        """Starts the all-reduce of the dense gradients."""
        flat = torch.cat([weight.grad.flatten() for weight in self.weights if weight.grad is not None])
        return dist.all_reduce(flat, group=self._of_rows.group, async_op=True), flat

    @torch.no_grad()
    def _update_rows(self, owned: OwnedIds, gradient: torch.Tensor) -> None:
        """Updates rows with the (R, L, B, D) gradients of the bags."""
        bag = torch.arange(len(owned.lengths), device=gradient.device)
        of_id = bag.repeat_interleave(owned.lengths, output_size=len(owned.ids))
        self.rows.index_add_(0, owned.ids, gradient.view(-1, self._sizes.dim)[of_id], alpha=-_LEARNING_RATE)

    @torch.no_grad()
    def _update_weights(self, work: Any, flat: torch.Tensor) -> None:
        self._wait(work)
        parts = flat.split([weight.numel() for weight in self.weights])
        for weight, gradient in zip(self.weights, parts, strict=True):
            weight.sub_(gradient.view_as(weight), alpha=_LEARNING_RATE / self._ranks)
            weight.grad = None
