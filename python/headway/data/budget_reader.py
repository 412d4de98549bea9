# SPDX-License-Identifier: Apache-2.0
"""``BudgetReader``: batches of one rank that cost up to a budget of tokens.

Idea: lengths vary by a factor of a hundred, so batches of equally many samples take very different times, and ranks
wait for the slowest. Each rank fills its batches to the same budget instead, from the rows of its own streams
(``order.py``). A row is a sample. No samples are exchanged.

Example: a budget of 10 and samples of 4, 5, 12 and 3 tokens give the batches [4, 5], [12] and [3].

Invariants: all ranks together read each row once in an epoch. The next row is that of the stream with the fewest rows
taken. So the number of rows taken from each stream is enough to resume an epoch, with any number of ranks.
Complexity: O(log V) for each row, with V streams. Host memory is bounded as for ``BatchReader``.
Source: MTGRBoost, algorithm 1. As published it yields neither the tail nor a sample above the budget, and ranks run out
of batches at different times. Here a large sample is a batch alone, the tail is a batch, and a rank that has read its
samples has empty batches until all ranks have.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Unpack

from headway.data.parquet import ParquetFolder
from headway.data.reader import Position, ReadAhead, ReadOptions, StepBatch, StepRows
from headway.data.sample_batch import Slice
from headway.data.schema import TARGET


@dataclass(frozen=True)
class Budget:
    """Limit on the cost of a batch. A sample of L tokens costs L + ``square_weight`` L^2, in tokens.

    A sample has one token for each context feature, event of its history, and target.

    Attributes:
        tokens: most that the samples of a batch cost together. A sample that costs more is a batch alone.
        square_weight: cost of attention over that of the rest, for each token of a sample; 0: the cost is L.
    """

    tokens: float
    square_weight: float = 0.0

    def cost(self, num_tokens: int) -> float:
        return num_tokens * (1 + self.square_weight * num_tokens)


class BudgetReader(ReadAhead):
    """Iterates over batches of one rank that cost up to a budget. No samples are exchanged.

    The caller ends each epoch with ``end_epoch()``, once no rank has samples left. Until then a rank without any has
    steps without samples. All ranks together read each row once in an epoch. How rows are divided into steps depends on
    the number of ranks.

    Args:
        budget: limit of each batch.
        options: see ``ReadOptions``. ``start`` has the rows of all streams that were taken before.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(self, folder: ParquetFolder, *, budget: Budget, **options: Unpack[ReadOptions]) -> None:
        super().__init__(folder, **options)
        if budget.tokens < 1:
            raise ValueError("a budget is at least 1 token")
        num_taken = len(self._start.taken)
        if num_taken not in (0, self._num_streams):
            raise ValueError(f"the start is a position of {num_taken} streams, and num_streams is {self._num_streams}")
        self._budget = budget
        self._ended_epoch = self._start.epoch - 1

    def end_epoch(self, epoch: int) -> None:
        """Goes on with the next epoch. All ranks call it after the same step."""
        self._ended_epoch = max(self._ended_epoch, epoch)

    def __iter__(self) -> Iterator[StepBatch]:
        """Yields the steps from ``start`` on. Each iterator has a thread, which ends with it."""
        with contextlib.closing(super().__iter__()) as steps:  # type: ignore[type-var]
            for step in steps:
                if step.batches:
                    yield step
                    continue
                while self._ended_epoch < step.position.epoch:  # This rank has read its samples of the epoch.
                    yield self._join(self._rows_of(step.position, step.position, []))

    def _steps(self, pool: Executor) -> Iterator[StepRows]:
        for epoch in range(self._start.epoch, self._epochs):
            position = self._start if epoch == self._start.epoch else Position(epoch, 0)
            for next_position, parts in self._parts(position, pool):
                yield self._rows_of(position, next_position, parts)
                position = next_position
            yield StepRows(position, position, parts=[])  # Marks the end of the epoch.

    def _rows_of(self, position: Position, after: Position, parts: list[list[Slice]]) -> StepRows:
        missing: list[list[Slice]] = [[]] * (self._micro_batches - len(parts))
        return StepRows(position, after, [*parts, *missing])

    def _parts(self, start: Position, pool: Executor) -> Iterator[tuple[Position, list[list[Slice]]]]:
        """Yields the rows of each micro-batch of a step, and the position after it."""
        taken = list(start.taken or (0,) * self._num_streams)
        taken = [count if stream % self._num_ranks == self._rank else 0 for stream, count in enumerate(taken)]
        step, parts, cost = start.step, list[list[Slice]]([[]]), 0.0
        for stream, row, num_tokens in self._rows(start.epoch, tuple(taken), pool):
            of_row = self._budget.cost(num_tokens)
            if parts[-1] and cost + of_row > self._budget.tokens:
                if len(parts) == self._micro_batches:
                    step += 1
                    yield Position(start.epoch, step, tuple(taken)), parts
                    parts = []
                parts.append([])
                cost = 0.0
            parts[-1].append(row)
            cost += of_row
            taken[stream] += 1
        if parts[-1]:
            yield Position(start.epoch, step + 1, tuple(taken)), parts

    def _rows(self, epoch: int, taken: Sequence[int], pool: Executor) -> Iterator[tuple[int, Slice, int]]:
        """Yields the stream of a row, the row, and its tokens. The stream with the fewest rows taken is next."""
        own = self._own(self._make_streams(epoch))
        cursors = self._open(own, taken, pool)
        num_rows = {stream: sum(piece.num_rows for piece in pieces) for stream, pieces in own.items()}
        turns = [(taken[stream], stream) for stream in own if taken[stream] < num_rows[stream]]
        heapq.heapify(turns)
        while turns:
            count, stream = turns[0]
            (row,) = cursors[stream].take(1)
            yield stream, row, self._num_tokens(row)
            if count + 1 < num_rows[stream]:
                heapq.heapreplace(turns, (count + 1, stream))
            else:
                heapq.heappop(turns)

    def _num_tokens(self, row: Slice) -> int:
        schema, offsets = self.folder.schema, row.chunk.offsets
        names = (schema.events[0], TARGET + schema.events[0])
        return len(schema.context) + sum(int(offsets[name][row.end] - offsets[name][row.begin]) for name in names)
