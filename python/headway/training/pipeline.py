# SPDX-License-Identifier: Apache-2.0
"""``Pipeline``: the next steps of a training are prepared while the present one computes.

Each step passes four stages, or five. Those before ``compute`` run while earlier steps compute::

    read       the reader's threads decode samples, for GPUs into pinned memory
    copy       host to device, on a stream of its own
    dispatch   ranks add up their numbers of loss terms, and lookups begin: duplicates are removed, and keys go to the
               ranks that own them; on another stream. Lookups may begin later than the sum, see ``most_lookups_ahead``
    read ahead (prioritized updates alone) rows that the step before does not update are read, and their embeddings
               travel; on the caller's stream
    compute    the caller: forward, backward, update, on its own stream

``Pipeline.advance()`` is the schedule. The caller calls it in the middle of a step, after it has enqueued the forward
pass, so keys of the next step travel during the backward pass.

Example: ``depth`` is 1. ``next()`` copies and dispatches step 0, since nothing is in flight, and returns it. The
forward pass of step 0 is enqueued; ``advance()`` copies and dispatches step 1; the backward pass and the update of step
0 follow. ``next()`` returns step 1 at once.

Invariants: rows are looked up, inserted and updated in the compute stage, or with the bits that this would give, so
results do not depend on the depth. Parameter servers read rows as soon as the staleness allows, and results depend on
it. All ranks make the same calls, so their exchanges have one order. An error of the reader is raised when its step is
due, not earlier: the steps before it are complete.
Complexity: ``depth`` + 1 steps are on the device, each with its tensors and the unique keys of its lookups.
Source: MTGRBoost, section 3 (copy, dispatch and compute streams).
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from headway.data.reader import StepBatch
from headway.data.sample_batch import SampleBatch
from headway.training.host_sum import HostSum


@dataclass(frozen=True)
class PreparedStep:
    """A step that is ready to compute.

    Attributes:
        host: the step in host memory.
        batches: its micro-batches on the device.
        lookups: for each micro-batch what ``start_lookups`` returned; None if its lookups have not begun.
        totals: the integers of ``count``, added over ranks.
    """

    host: StepBatch
    batches: Sequence[SampleBatch]
    lookups: Sequence[Any]
    totals: Sequence[int]


@dataclass
class Waits:
    """Seconds that the caller's thread has waited for the reader, and for other ranks, also in ``read_ahead``."""

    for_input_s: float = 0.0
    for_ranks_s: float = 0.0


class Pipeline:
    """Copies and dispatches steps before they are due. One thread calls it.

    Args:
        steps: the steps, such as a ``BatchReader``.
        device: device of the compute stage. On CPUs copy and dispatch run on the caller's thread, and exchanges go on
            by themselves.
        count: integers of a step on this rank that all ranks add up, such as its loss terms; the same number of them in
            each step. It reads batches in host memory.
        start_lookups: begins the lookups of a micro-batch on ``device``; None: the compute stage does all of it.
        group: ranks of the training; None: this rank alone.
        depth: steps in flight beside the one that computes; 0: every stage waits for the one before.
        read_ahead: gets the totals and the lookups of the next step, and reads what it may. A depth of at least 2 gives
            keys the time of a step to arrive.
        most_lookups_ahead: steps beside the one that computes whose lookups may have begun: the staleness of tables on
            parameter servers. The compute stage begins those that have not. None: all begin as soon as they can.
        looks_up_on_host: ``start_lookups`` gets batches in host memory.

    Raises:
        ValueError: ``depth`` is negative.
    """

    def __init__(
        self,
        steps: Iterator[StepBatch],
        *,
        device: torch.device,
        count: Callable[[StepBatch], Sequence[int]],
        start_lookups: Callable[[SampleBatch], Any] | None = None,
        group: dist.ProcessGroup | None = None,
        depth: int = 1,
        read_ahead: Callable[[Sequence[int], Sequence[Any]], None] | None = None,
        most_lookups_ahead: int | None = None,
        looks_up_on_host: bool = False,
    ) -> None:
        if depth < 0:
            raise ValueError(f"depth is {depth}, and at least 0")
        self._most_lookups_ahead = most_lookups_ahead
        self._looks_up_on_host = looks_up_on_host
        self._steps, self._device, self._depth = steps, device, depth
        self._count, self._start_lookups, self._read_ahead = count, start_lookups, read_ahead
        self._group = None if group is None or group.size() == 1 else group
        self._in_flight: deque[_InFlight | Exception] = deque()
        self._is_read = False  #: The reader has ended.
        is_cuda = device.type == "cuda"
        #: For copies, and to dispatch.
        self._streams = [torch.cuda.Stream(device) for _ in range(2)] if is_cuda else []  # type: ignore[no-untyped-call]
        self._waits = Waits()

    def next(self) -> PreparedStep | None:
        """Returns the next step; None after the last one. The caller's stream waits for its copies and lookups.

        Raises:
            Exception: what the reader raised instead of this step.
        """
        if not self._in_flight:
            self._start_one()
        if not self._in_flight:
            return None
        if self._most_lookups_ahead is None:
            self._begin_lookups(1)
        first = self._in_flight.popleft()
        if isinstance(first, Exception):
            raise first
        began = time.monotonic()
        step = first.take()
        self._waits.for_ranks_s += time.monotonic() - began
        return step

    def advance(self, *, reads_ahead: bool = True, steps_to_save: int | None = None) -> None:
        """Starts steps until ``depth`` are in flight.

        Args:
            reads_ahead: read rows of the next step, too. Not in the step before a checkpoint, which would have lookups
                of a step that has not begun.
            steps_to_save: steps after the present one until a checkpoint, beyond which no lookup begins; None: no
                checkpoint comes.
        """
        most = self._depth if self._most_lookups_ahead is None else self._most_lookups_ahead
        most = most if steps_to_save is None else min(most, steps_to_save)
        self._begin_lookups(most)
        while len(self._in_flight) < self._depth and not self._is_read:
            self._start_one()
            self._begin_lookups(most)
        following = self._in_flight[0] if self._in_flight else None
        if self._read_ahead is not None and reads_ahead and isinstance(following, _InFlight):
            began = time.monotonic()
            step = following.take()
            self._read_ahead(step.totals, step.lookups)
            self._waits.for_ranks_s += time.monotonic() - began

    def take_waits(self) -> Waits:
        """Returns the waits since the last call."""
        taken, self._waits = self._waits, Waits()
        return taken

    def close(self) -> None:
        """Drops the steps in flight, as all other ranks do."""
        self._in_flight.clear()
        self._is_read = True

    def _start_one(self) -> None:
        if self._is_read:
            return
        began = time.monotonic()
        try:
            host = next(self._steps, None)
        except Exception as error:  # It belongs to a later step than the present one.
            self._is_read = True
            self._in_flight.append(error)
            return
        finally:
            self._waits.for_input_s += time.monotonic() - began
        if host is None:
            self._is_read = True
        else:
            self._in_flight.append(self._dispatch(host, self._copy(host)))

    def _copy(self, host: StepBatch) -> list[SampleBatch]:
        if not self._streams:
            return list(host.batches)
        copy, dispatch = self._streams
        with torch.cuda.stream(copy):
            batches = [batch.to(self._device) for batch in host.batches]
        for batch in batches:  # The allocator must not reuse memory that other streams still read.
            batch.record_stream(dispatch)
            batch.record_stream(torch.cuda.current_stream(self._device))
        dispatch.wait_stream(copy)
        return batches

    def _dispatch(self, host: StepBatch, batches: list[SampleBatch]) -> _InFlight:
        dispatch = self._streams[1] if self._streams else None
        with torch.cuda.stream(dispatch) if dispatch is not None else contextlib.nullcontext():
            totals = HostSum(self._of_rank(host), self._group)
        return _InFlight(host, batches, totals, dispatch)

    def _begin_lookups(self, num_steps: int) -> None:
        """Begins the lookups of the next steps in flight that have not begun."""
        for step in itertools.islice(self._in_flight, num_steps):
            if self._start_lookups is None or isinstance(step, Exception) or step.lookups is not None:
                continue
            with torch.cuda.stream(step.stream) if step.stream is not None else contextlib.nullcontext():
                batches = step.host.batches if self._looks_up_on_host else step.batches
                step.lookups = [self._start_lookups(batch) for batch in batches]

    def _of_rank(self, host: StepBatch) -> torch.Tensor:
        """Returns what ``count`` says of this rank: on the device if ranks add it up there."""
        values = torch.tensor(self._count(host), dtype=torch.int64)
        if self._group is None or not self._streams:
            return values
        return values.pin_memory().to(self._device, non_blocking=True)


@dataclass
class _InFlight:
    """A step whose copies and sum have begun."""

    host: StepBatch
    batches: list[SampleBatch]
    totals: HostSum
    stream: torch.cuda.Stream | None  #: The dispatch stream.
    lookups: list[Any] | None = None  #: None: they have not begun.

    def take(self) -> PreparedStep:
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
        lookups = [None] * len(self.batches) if self.lookups is None else self.lookups
        return PreparedStep(self.host, self.batches, lookups, self.totals.wait().tolist())
