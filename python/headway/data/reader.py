# SPDX-License-Identifier: Apache-2.0
"""``BatchReader``: the batches of one rank, step by step, read ahead by a thread.

Idea: ``order.py`` deals the rows of an epoch to streams, and says how many rows of each stream a step has. A cursor for
each stream of this rank decodes a few rows at a time. A thread joins them to batches, and keeps up to ``read_ahead``
steps in a queue.

Example: 1,000 rows, a global batch of 64, 2 ranks: an epoch has 16 steps, and the last one has 40 rows. A reader that
starts at epoch 0, step 10 gives the same steps as one that has read the first ten.

Invariants: host memory is bounded by the steps in the queue and twice ``chunk_rows`` rows for each open stream, or by
the whole folder if it has less than 1 GiB. The iterator raises an error of the thread after the steps that were read
before it.
Complexity: each row is decoded once per epoch, in order ``time`` once on every rank. In a folder of more than 1 GiB, a
read that begins within a row group decodes the rows before it, too.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypedDict, Unpack

import numpy as np

from headway.data.cursors import Cursor, open_streams
from headway.data.order import Order, Piece, Turns, make_streams
from headway.data.parquet import ParquetFolder
from headway.data.sample_batch import SampleBatch, Slice, collate

#: Virtual streams of an epoch. More ranks than streams would leave some without rows.
NUM_STREAMS = 256
_POLL_S = 0.5


@dataclass(frozen=True, order=True)
class Position:
    """A step of an epoch. Both are numbered from 0.

    Attributes:
        epoch, step: numbers of the epoch, and of the step in it.
        taken: rows of each stream before this step; empty if the step alone tells. A ``BudgetReader`` knows those of
            its own streams, and has 0 for the others.
        samples: samples of the epoch before this step, where steps have a budget over all ranks; else 0.
    """

    epoch: int = 0
    step: int = 0
    taken: tuple[int, ...] = ()
    samples: int = 0


START = Position()


@dataclass(frozen=True)
class StepBatch:
    """This rank's part of a step.

    Attributes:
        position: the step.
        next: the step after it, where a resumed reader starts.
        batches: ``micro_batches`` batches, some of which may have no samples.
    """

    position: Position
    next: Position
    batches: list[SampleBatch]


@dataclass(frozen=True)
class StepRows:
    """This rank's rows of a step.

    Attributes:
        position, next: as in ``StepBatch``.
        parts: the rows of each micro-batch.
    """

    position: Position
    next: Position
    parts: list[list[Slice]]


class ReadOptions(TypedDict, total=False):
    """Arguments that all readers have.

    Attributes:
        micro_batches: batches of each rank in a step.
        rank, num_ranks: this rank, and the number of ranks. The rank reads the streams s with s mod num_ranks = rank.
        seed: seed of the order.
        start: the first step.
        epochs: number of epochs.
        num_streams: virtual streams; at least ``num_ranks``. Another number is another order.
        read_ahead: steps in memory beside the one in use.
        chunk_rows: rows that a stream decodes at a time. It holds up to two such parts.
        num_threads: threads that decode files and join rows to batches.
        pin_memory: copy batches to pinned memory, for asynchronous copies to a GPU.
        allow_idle_ranks: there may be fewer rows than ranks. Some ranks then have empty batches alone.
    """

    micro_batches: int
    rank: int
    num_ranks: int
    seed: int
    start: Position
    epochs: int
    num_streams: int
    read_ahead: int
    chunk_rows: int
    num_threads: int
    pin_memory: bool
    allow_idle_ranks: bool


class ReadAhead:
    """Iterates over the steps that a thread reads."""

    def __init__(
        self,
        folder: ParquetFolder,
        *,
        micro_batches: int = 1,
        rank: int = 0,
        num_ranks: int = 1,
        seed: int = 0,
        start: Position = START,
        epochs: int = 1,
        num_streams: int = NUM_STREAMS,
        read_ahead: int = 2,
        chunk_rows: int = 64,
        num_threads: int = 4,
        pin_memory: bool = False,
        allow_idle_ranks: bool = False,
    ) -> None:
        if num_ranks > num_streams:
            raise ValueError(f"{num_ranks} ranks need as many streams, and num_streams is {num_streams}")
        if min(micro_batches, read_ahead, chunk_rows, num_threads) < 1:
            raise ValueError("micro_batches, read_ahead, chunk_rows and num_threads are at least 1")
        if num_ranks > folder.num_rows and not allow_idle_ranks:
            samples = "1 sample" if folder.num_rows == 1 else f"{folder.num_rows} samples"
            raise ValueError(f"{num_ranks} ranks share {samples} of {folder.folder}: use fewer ranks")
        self.folder = folder
        self._micro_batches, self._rank, self._num_ranks, self._seed = micro_batches, rank, num_ranks, seed
        self._start, self._epochs, self._num_streams = start, epochs, num_streams
        self._read_ahead, self._chunk_rows = read_ahead, chunk_rows
        self._num_threads, self._pin_memory = num_threads, pin_memory

    def __iter__(self) -> Iterator[StepBatch]:
        """Yields the steps from ``start`` on. Each iterator has a thread, which ends with it."""
        steps: queue.Queue[Future[StepBatch] | Exception | None] = queue.Queue(self._read_ahead)
        ended = threading.Event()
        thread = threading.Thread(target=self._fill, args=(steps, ended), name="batch_reader", daemon=True)
        thread.start()
        try:
            while (step := steps.get()) is not None:
                if isinstance(step, Exception):
                    raise step
                yield step.result()
        finally:
            ended.set()
            thread.join()

    def _fill(self, steps: queue.Queue[Future[StepBatch] | Exception | None], ended: threading.Event) -> None:
        def put(step: Future[StepBatch] | Exception | None) -> bool:
            while not ended.is_set():
                try:
                    steps.put(step, timeout=_POLL_S)
                    return True
                except queue.Full:
                    continue
            return False

        try:
            for step in self._all_steps():
                if not put(step):
                    return
            put(None)
        except Exception as error:  # Any error belongs to the caller of the iterator.
            put(error)

    def _all_steps(self) -> Iterator[Future[StepBatch]]:
        """Yields the steps in order; a thread of the pool joins the rows of each to batches."""
        pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="decoder")
        try:
            for rows in self._steps(pool):
                yield pool.submit(self._join, rows)
        except GeneratorExit:  # Nobody takes the steps that wait.
            pool.shutdown(cancel_futures=True)
            raise
        finally:
            pool.shutdown()  # Waits for the steps before the end, or before an error.

    def _steps(self, pool: Executor) -> Iterator[StepRows]:
        raise NotImplementedError

    def _make_streams(self, epoch: int) -> list[list[Piece]]:
        """Returns the pieces of all streams."""
        return make_streams(self.folder.row_groups, num_streams=self._num_streams, seed=self._seed, epoch=epoch)

    def _own(self, streams: Sequence[list[Piece]]) -> dict[int, list[Piece]]:
        """Returns the streams of this rank, by their numbers."""
        return {stream: streams[stream] for stream in range(self._rank, self._num_streams, self._num_ranks)}

    def _open(self, streams: Mapping[int, list[Piece]], taken: Sequence[int], pool: Executor) -> dict[int, Cursor]:
        return open_streams(self.folder, streams, taken, pool, chunk_rows=self._chunk_rows)

    def _join(self, rows: StepRows) -> StepBatch:
        schema, pin_memory = self.folder.schema, self._pin_memory
        return StepBatch(
            rows.position, rows.next, [collate(part, schema, pin_memory=pin_memory) for part in rows.parts]
        )


class BatchReader(ReadAhead):
    """Iterates over the batches of one rank. The samples of a step do not depend on the number of ranks.

    Args:
        folder: the rows.
        global_batch: samples of a step, over all ranks and micro-batches. The last step of an epoch may have fewer.
        order: ``shuffled``, or ``time``: the order of the files, in which each step has consecutive rows.
        options: see ``ReadOptions``. Each rank divides its samples of a step into its micro-batches.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        folder: ParquetFolder,
        *,
        global_batch: int,
        order: Order = "shuffled",
        **options: Unpack[ReadOptions],
    ) -> None:
        super().__init__(folder, **options)
        if global_batch < 1:
            raise ValueError("global_batch is at least 1")
        self._global_batch, self._order = global_batch, order

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.folder.num_rows // self._global_batch)

    def _steps(self, pool: Executor) -> Iterator[StepRows]:
        for epoch in range(self._start.epoch, self._epochs):
            first = self._start.step if epoch == self._start.epoch else 0
            source = _Streams(self, epoch, first * self._global_batch, pool)
            for step in range(first, self.steps_per_epoch):
                end = min((step + 1) * self._global_batch, self.folder.num_rows)
                is_last = step == self.steps_per_epoch - 1
                after = Position(epoch + 1, 0) if is_last else Position(epoch, step + 1)
                parts = list(_split(source.take_until(end), self._micro_batches))
                yield StepRows(Position(epoch, step), after, parts)


class _Streams:
    """The streams of a rank in an epoch."""

    def __init__(self, reader: BatchReader, epoch: int, position: int, pool: Executor) -> None:
        if reader._order == "shuffled":
            streams = reader._make_streams(epoch)
            self._turns: Turns | None = Turns([sum(piece.num_rows for piece in pieces) for pieces in streams])
            self._taken = self._turns.taken(position)
            self._cursors = reader._open(reader._own(streams), self._taken.tolist(), pool)
        else:
            # Stream s has the rows s, s + V, s + 2 V, ... of the folder, so every rank decodes all rows.
            self._turns = None
            pieces = [Piece(group, 0, group.num_rows) for group in reader.folder.row_groups]
            self._whole = reader._open({0: pieces}, [position], pool)[0]
            self._num_streams, self._rank, self._num_ranks = reader._num_streams, reader._rank, reader._num_ranks
        self._position = position

    def take_until(self, end: int) -> list[Slice]:
        """Returns this rank's rows up to position ``end`` of the epoch."""
        begin, self._position = self._position, end
        if self._turns is None:
            slices = self._whole.take(end - begin)
            return [part for each in slices for part in self._own(each)]
        taken, self._taken = self._taken, self._turns.taken(end)
        return [
            part
            for stream, cursor in self._cursors.items()
            for part in cursor.take(int(self._taken[stream] - taken[stream]))
        ]

    def _own(self, rows: Slice) -> Iterator[Slice]:
        numbers = np.arange(rows.chunk.first_row + rows.begin, rows.chunk.first_row + rows.end)
        for index in np.flatnonzero(numbers % self._num_streams % self._num_ranks == self._rank):
            yield Slice(rows.chunk, rows.begin + int(index), rows.begin + int(index) + 1)


def _split(slices: list[Slice], parts: int) -> Iterator[list[Slice]]:
    """Divides rows into ``parts`` lists whose lengths differ by at most 1."""
    num_rows = sum(each.end - each.begin for each in slices)
    rest, used = deque(slices), 0
    for part in range(parts):
        wanted = num_rows * (part + 1) // parts - used
        used += wanted
        taken: list[Slice] = []
        while wanted > 0:
            first = rest.popleft()
            size = min(wanted, first.end - first.begin)
            taken.append(Slice(first.chunk, first.begin, first.begin + size))
            if first.begin + size < first.end:
                rest.appendleft(Slice(first.chunk, first.begin + size, first.end))
            wanted -= size
        yield taken
