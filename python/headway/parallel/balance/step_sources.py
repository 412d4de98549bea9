# SPDX-License-Identifier: Apache-2.0
"""Steps before they are balanced: those of a reader, or cut from its samples by weight.

Idea: ``ChunkReader`` reads a chunk, which is a step of a reader, and exchanges the descriptions of its samples.
``WholeSteps`` takes each chunk as a step. ``BudgetedSteps`` keeps a pool of samples, from which it cuts steps of equal
weight: in the order of the chunks, and within a chunk in an order drawn from the ids. The rest of a chunk stays there.

Example: a budget of 10, and a chunk with samples of 4, 5, 12 and 3 tokens in that order. The steps are [4, 5], [12]
and, with the first samples of the next chunk, [3, ...]. The last step of an epoch has what is left.

Invariants: chunks, their order and weights do not depend on the number of ranks, so steps do not, either. The number of
samples before a step tells where a training goes on.
Complexity: O(N log N) for a chunk of N samples. The pool has less than a chunk and the samples of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from headway.data.reader import START, Position, StepBatch
from headway.data.sample_batch import SampleBatch
from headway.data.schema import SampleSchema
from headway.parallel.balance.described import Described
from headway.parallel.balance.records import Records, pack
from headway.parallel.balance.sample_exchange import BalanceError, SampleExchange
from headway.parallel.balance.sample_weight import UNIT, SampleWeight

CHUNK_SAMPLES = 1024
_READ, _ENDED, _FAILED = range(3)


@dataclass(frozen=True)
class StepBudget:
    """Steps of equal weight. All ranks have the same.

    Attributes:
        tokens: most that the samples of a step weigh together, over all ranks and micro-batches, in tokens without
            attention. A sample that weighs more is a step alone.
        chunk_samples: samples of a chunk, over all ranks; the ``global_batch`` of its reader.
        start: the first step. The reader starts at chunk ``start.samples // chunk_samples`` of the epoch.
        seed: of the order of samples within a chunk.

    Raises:
        ValueError: a number is below 1.
    """

    tokens: float
    chunk_samples: int = CHUNK_SAMPLES
    start: Position = START
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.chunk_samples < 1:
            raise ValueError("a budget is at least 1 token, and a chunk 1 sample")


@dataclass(frozen=True)
class TakenStep:
    """A step before its samples move.

    Attributes:
        position, next: as in ``StepBatch``.
        records: samples that this rank has read.
        described: samples of all ranks.
        num_truncated: samples of this rank whose oldest events were dropped.
    """

    position: Position
    next: Position
    records: Records
    described: Described
    num_truncated: int


class ChunkReader:
    """Reads and describes chunks. All ranks make the same calls.

    Args:
        chunks: steps of a reader, with one batch each.
        exchange: collectives.
        weight: of a sample.
        schema: of the samples.
        busy_s: see ``BalancedSteps``.

    Attributes:
        busy_s: of all ranks, by the newest description.
    """

    def __init__(
        self,
        chunks: Iterator[StepBatch],
        exchange: SampleExchange,
        *,
        weight: SampleWeight,
        schema: SampleSchema,
        busy_s: Callable[[], float],
    ) -> None:
        self._chunks, self._exchange, self._weight, self.schema = chunks, exchange, weight, schema
        self._own_busy_s = busy_s
        self.rank = exchange.rank
        self.busy_s: list[float] = []

    def read(self) -> TakenStep | None:
        """Returns the next chunk; None after the last one.

        Raises:
            Exception: what the reader of this rank raised.
            BalanceError: the reader of another rank has failed, or has ended at another chunk.
        """
        status, chunk, error = _READ, None, None
        try:
            chunk = next(self._chunks, None)
            status = _ENDED if chunk is None else _READ
        except Exception as raised:  # Other ranks must not wait for the samples of this one.
            status, error = _FAILED, raised
        if chunk is not None and len(chunk.batches) != 1:
            status, error = _FAILED, ValueError("steps that are balanced have one batch: set micro_batches of the plan")
        statuses, described = self._describe(status, chunk.batches[0] if chunk is not None else None)
        if error is not None:
            raise error
        for rank, of_rank in enumerate(statuses):
            if of_rank == _FAILED:
                raise BalanceError(f"rank {rank} cannot read its samples of this step; its error says why")
        if _ENDED in statuses:
            if statuses.count(_ENDED) < len(statuses):
                raise BalanceError(f"rank {statuses.index(_ENDED)} has no more steps, and others have")
            return None
        assert chunk is not None
        (batch,) = chunk.batches
        return TakenStep(chunk.position, chunk.next, pack(batch, self.schema), described, batch.num_truncated)

    def _describe(self, status: int, batch: SampleBatch | None) -> tuple[list[int], Described]:
        num_context = len(self.schema.context)
        rows = torch.zeros((0, 4), dtype=torch.int64)
        if batch is not None:
            weights = self._weight.of(batch.event_lengths + num_context)
            rows = torch.stack([batch.sample_ids, weights, batch.history_lengths, batch.target_lengths], dim=1)
        busy_us = int(1e6 * self._own_busy_s())
        headers = self._exchange.all_gather(torch.tensor([status, len(rows), busy_us]))
        statuses, counts = headers[:, 0].tolist(), headers[:, 1]
        self.busy_s = (headers[:, 2] / 1e6).tolist()
        ids, weights, histories, targets = self._exchange.all_gather_rows(rows, counts.tolist()).unbind(1)
        sources = torch.arange(self._exchange.num_ranks).repeat_interleave(counts)
        return statuses, Described(ids, weights, histories, targets, histories + targets + num_context, sources)


class WholeSteps:
    """Takes each chunk as a step."""

    def __init__(self, chunks: ChunkReader) -> None:
        self._chunks = chunks

    def take(self) -> TakenStep | None:
        """Returns the next step; None after the last one. See ``ChunkReader.read()``."""
        return self._chunks.read()


class BudgetedSteps:
    """Cuts steps of equal weight from the samples of all chunks.

    Args:
        chunks: from the chunk in which ``budget.start`` lies.
        budget: weight of a step.
    """

    def __init__(self, chunks: ChunkReader, budget: StepBudget) -> None:
        self._chunks, self._budget = chunks, budget
        self._most = int(budget.tokens * UNIT)
        self._position = budget.start
        self._skipped = (
            budget.start.samples % budget.chunk_samples
        )  #: Samples of the first chunk that were taken before.
        self._pool: TakenStep | None = None
        self._is_last_chunk = False

    def take(self) -> TakenStep | None:
        """Returns the next step; None after the last one. See ``ChunkReader.read()``."""
        while not self._is_last_chunk and self._weight() < self._most and (chunk := self._chunks.read()) is not None:
            self._add(chunk)
        if self._pool is None:
            return None
        pool, described = self._pool, self._pool.described
        ends = described.weights.cumsum(0)
        count = max(1, int((ends <= self._most).sum()))
        is_taken = torch.arange(len(ends)) < count
        position, ends_epoch = self._position, self._is_last_chunk and count == len(ends)
        after = Position(position.epoch, position.step + 1, samples=position.samples + count)
        self._position = Position(position.epoch + 1) if ends_epoch else after
        self._pool = None if count == len(ends) else self._select(pool, ~is_taken, num_truncated=0)
        if ends_epoch:
            self._is_last_chunk = False
        taken = self._select(pool, is_taken, num_truncated=pool.num_truncated)
        return TakenStep(position, self._position, taken.records, taken.described, taken.num_truncated)

    def _weight(self) -> int:
        return 0 if self._pool is None else int(self._pool.described.weights.sum())

    def _add(self, chunk: TakenStep) -> None:
        """Adds a chunk to the pool, in its drawn order."""
        order = _drawn_order(chunk.described.ids, self._budget.seed + chunk.position.epoch)[self._skipped :]
        self._skipped = 0
        self._is_last_chunk = chunk.next.epoch > chunk.position.epoch
        if len(order) == 0:
            return
        added = self._select(chunk, order, num_truncated=chunk.num_truncated)
        if self._pool is not None:
            pool = self._pool
            added = TakenStep(
                pool.position,
                added.next,
                pool.records.join(added.records),
                pool.described.join(added.described),
                pool.num_truncated + added.num_truncated,
            )
        self._pool = added

    def _select(self, step: TakenStep, samples: torch.Tensor, *, num_truncated: int) -> TakenStep:
        """Returns some samples, by a mask or indices, with the records of this rank in the same order."""
        is_own = step.described.sources == self._chunks.rank
        of_own = torch.where(is_own, is_own.cumsum(0) - 1, -1)[samples]  # Index among the records of this rank.
        records = step.records.select(of_own[of_own >= 0], self._chunks.schema)
        return TakenStep(step.position, step.next, records, step.described.select(samples), num_truncated)


def _drawn_order(ids: torch.Tensor, seed: int) -> torch.Tensor:
    """Returns the indices of samples in an order that is drawn from their ids, (N,) int64."""
    hashes = (ids + seed * 0x9E3779B9 % (1 << 63)) * 0x2545F4914F6CDD1D  # Overflow wraps.
    hashes = (hashes ^ (hashes >> 29)) * 0x106689D45497FDB5
    by_id = torch.argsort(ids)
    return by_id[torch.argsort((hashes ^ (hashes >> 32))[by_id], stable=True)]
