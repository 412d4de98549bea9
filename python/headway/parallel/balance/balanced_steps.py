# SPDX-License-Identifier: Apache-2.0
"""``BalancedSteps``: steps of a reader whose samples have moved between ranks, so that all have about the same work.

Idea: lengths of sequences differ by a factor of a hundred, so ranks wait for the one with the longest. Before a step is
due, a thread of its own takes it through three stages, over a group of its own, while earlier steps compute::

    describe    all-gather: weight and lengths of each sample
    plan        each rank for itself; all find the same plan (``plan_batches``)
    move        one all-to-all of packed samples, whose sizes all ranks know from their descriptions

Ids move, not embeddings: 8 bytes for each feature of an event. Lookups come after the move.

Example: rank 0 has read samples of 9 and 8 tokens, and rank 1 of 1 and 2. The plan gives {9, 1} to rank 0 and {8, 2} to
rank 1. So rank 0 sends the sample of 8 tokens, and gets that of 1.

Invariants: the samples of a step are those of the reader, so they depend neither on the plan nor on the number of
ranks. A rank has its samples in the order of the ranks that sent them, and in the reader's order within one rank. All
ranks start the same steps: step s starts when step s - ``depth`` is taken, and a step that has started is completed.
Complexity: for N samples of a step and R ranks O(N (log N + log R)) on each rank, and 24 N bytes received to describe.
Source: FreeScale (MLSys 2026), load balancing in three stages.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist

from headway.data.reader import StepBatch
from headway.data.sample_batch import SampleBatch
from headway.data.schema import SampleSchema
from headway.parallel.balance.plan import BalancePlan
from headway.parallel.balance.records import Records, pack, unpack, words_of
from headway.parallel.balance.sample_exchange import BalanceError, SampleExchange

_READ, _ENDED, _FAILED = range(3)
_JOIN_S = 30.0


class Spread(NamedTuple):
    """How far the ranks of a step are apart: the mean over the largest, 0 to 1, of each. 1 is even.

    Attributes:
        weight, tokens, samples: with the plan.
        unbalanced: of weights, as the reader divides the samples.
        moved: part of the samples that another rank computes than has read them.
    """

    weight: float
    tokens: float
    samples: float
    unbalanced: float
    moved: float


@dataclass
class BalanceTimes:
    """Seconds of the thread in each stage, over all steps; ``describe_s`` includes waits for slower readers."""

    read_s: float = 0.0
    describe_s: float = 0.0
    plan_s: float = 0.0
    move_s: float = 0.0


class BalancedSteps:
    """Iterates over the steps of a reader, with samples moved.

    Args:
        steps: this rank's steps, each with one batch in host memory. All ranks have the same number of them.
        plan: how samples are divided; the same on all ranks.
        schema: of the samples.
        group: ranks of the training; None: this rank alone, whose samples are divided into micro-batches.
        depth: steps in flight or ready beside the one in use.
        pin_memory: put batches into pinned memory.
        own_figures: returns numbers of this rank, which travel with the description of each step.

    Attributes:
        times: of the thread.
        figures: the numbers of all ranks in the newest step, by rank.

    Raises:
        ValueError: ``depth`` is below 1.
        BalanceError: ranks have different plans.
    """

    def __init__(
        self,
        steps: Iterator[StepBatch],
        *,
        plan: BalancePlan,
        schema: SampleSchema,
        group: dist.ProcessGroup | None = None,
        depth: int = 2,
        pin_memory: bool = False,
        own_figures: Callable[[], Sequence[float]] = tuple,
    ) -> None:
        if depth < 1:
            raise ValueError(f"depth is {depth}, and at least 1")
        self._steps, self._plan, self._schema = steps, plan, schema
        self._exchange = SampleExchange(group)
        self._pin_memory, self._own_figures = pin_memory, own_figures
        self.times = BalanceTimes()
        self.figures: list[list[float]] = []
        self._exchange.expect_same(plan)
        self._ready: queue.SimpleQueue[tuple[StepBatch, Spread] | Exception | None] = queue.SimpleQueue()
        self._permits: queue.SimpleQueue[bool] = queue.SimpleQueue()  #: True: start a step. False: end.
        for _ in range(depth):
            self._permits.put(True)
        self._spreads: list[Spread] = []
        self._is_done = False
        self._thread = threading.Thread(target=self._run, name="balanced_steps", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[StepBatch]:
        return self

    def __next__(self) -> StepBatch:
        """Returns the next step.

        Raises:
            Exception: what the reader raised instead of the step.
            BalanceError: the reader of another rank has failed.
        """
        if self._is_done:
            raise StopIteration
        found = self._ready.get()
        if found is None or isinstance(found, Exception):
            self._is_done = True
            raise StopIteration if found is None else found
        step, spread = found
        self._spreads.append(spread)
        self._permits.put(True)
        return step

    def take_spreads(self) -> list[Spread]:
        """Returns the spreads of the steps since the last call."""
        taken, self._spreads = self._spreads, []
        return taken

    def close(self) -> None:
        """Ends the thread after the steps that have started, which other ranks wait for. All ranks call it."""
        self._is_done = True
        self._permits.put(False)
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            while self._permits.get():
                step = self._one_step()
                self._ready.put(step)
                if step is None:
                    return
        except Exception as error:  # It belongs to the caller of the iterator.
            self._ready.put(error)

    def _one_step(self) -> tuple[StepBatch, Spread] | None:
        began = time.monotonic()
        status, step, error = _READ, None, None
        try:
            step = next(self._steps, None)
            status = _ENDED if step is None else _READ
        except Exception as raised:  # Other ranks must not wait for the samples of this step.
            status, error = _FAILED, raised
        self.times.read_s += time.monotonic() - began
        batch = step.batches[0] if step is not None else None
        statuses, described = self._describe(status, batch)
        if error is not None:
            raise error
        for rank, of_rank in enumerate(statuses):
            if of_rank == _FAILED:
                raise BalanceError(f"rank {rank} cannot read its samples of this step; its error says why")
        if _ENDED in statuses:
            if statuses.count(_ENDED) < len(statuses):
                raise BalanceError(f"rank {statuses.index(_ENDED)} has no more steps, and others have")
            return None
        assert step is not None and batch is not None
        return self._balance(step, batch, described)

    def _describe(self, status: int, batch: SampleBatch | None) -> tuple[list[int], Described]:
        began = time.monotonic()
        num_context = len(self._schema.context)
        rows = torch.zeros((0, 3), dtype=torch.int64)
        if batch is not None:
            weights = self._plan.weight.of(batch.event_lengths + num_context)
            rows = torch.stack([weights, batch.history_lengths, batch.target_lengths], dim=1)
        figures = torch.tensor(list(self._own_figures()), dtype=torch.float64)
        headers = self._exchange.all_gather(torch.cat([torch.tensor([status, len(rows)]), figures.view(torch.int64)]))
        statuses, counts = headers[:, 0].tolist(), headers[:, 1]
        self.figures = headers[:, 2:].contiguous().view(torch.float64).tolist()
        weights, histories, targets = self._exchange.all_gather_rows(rows, counts.tolist()).unbind(1)
        sources = torch.arange(self._exchange.num_ranks).repeat_interleave(counts)
        self.times.describe_s += time.monotonic() - began
        return statuses, Described(weights, histories, targets, histories + targets + num_context, sources)

    def _balance(self, step: StepBatch, batch: SampleBatch, described: Described) -> tuple[StepBatch, Spread]:
        began = time.monotonic()
        number = step.position.step + step.position.epoch
        num_ranks = self._exchange.num_ranks
        ranks = self._plan.ranks(described.weights, described.tokens, num_ranks=num_ranks, step=number)
        spread = described.spread(ranks, num_ranks)
        planned = time.monotonic()
        records = self._move(pack(batch, self._schema), described, ranks)
        is_own = ranks == self._exchange.rank
        parts = self._plan.micro_batch(described.weights[is_own], described.tokens[is_own])
        batches = [
            unpack(
                records.select((parts == part).nonzero()[:, 0], self._schema),
                self._schema,
                num_truncated=batch.num_truncated if part == 0 else 0,  # Counted where they were read.
            )
            for part in range(self._plan.micro_batches)
        ]
        if self._pin_memory:
            batches = [each.pin_memory() for each in batches]
        self.times.plan_s += planned - began
        self.times.move_s += time.monotonic() - planned
        return StepBatch(step.position, step.next, batches), spread

    def _move(self, records: Records, described: Described, ranks: torch.Tensor) -> Records:
        """Sends each record to its rank, and returns those of this rank, in the order of their sources."""
        is_read, is_own = described.sources == self._exchange.rank, ranks == self._exchange.rank
        words = words_of(described.histories, described.targets, self._schema)
        sent = records.select(torch.argsort(ranks[is_read], stable=True), self._schema)
        received = self._exchange.all_to_all(
            sent.words,
            _sums(ranks[is_read], words[is_read], self._exchange.num_ranks),
            _sums(described.sources[is_own], words[is_own], self._exchange.num_ranks),
        )
        return Records(received, described.histories[is_own], described.targets[is_own])


@dataclass(frozen=True)
class Described:
    """All samples of a step, in the order of the ranks that have read them. N samples.

    Attributes:
        weights, histories, targets, tokens: (N,) int64; tokens include those of the context.
        sources: (N,) int64, the rank that has read each sample.
    """

    weights: torch.Tensor
    histories: torch.Tensor
    targets: torch.Tensor
    tokens: torch.Tensor
    sources: torch.Tensor

    def spread(self, ranks: torch.Tensor, num_ranks: int) -> Spread:
        """Returns how even a plan is.

        Args:
            ranks: (N,) int64, the rank of each sample.
            num_ranks: number of ranks.
        """
        return Spread(
            weight=_evenness(ranks, self.weights, num_ranks),
            tokens=_evenness(ranks, self.tokens, num_ranks),
            samples=_evenness(ranks, torch.ones_like(ranks), num_ranks),
            unbalanced=_evenness(self.sources, self.weights, num_ranks),
            moved=float((ranks != self.sources).double().mean()) if len(ranks) else 0.0,
        )


def _sums(ranks: torch.Tensor, values: torch.Tensor, num_ranks: int) -> list[int]:
    sums: list[int] = torch.zeros(num_ranks, dtype=torch.int64).index_add_(0, ranks, values).tolist()
    return sums


def _evenness(ranks: torch.Tensor, values: torch.Tensor, num_ranks: int) -> float:
    """Returns the mean over the largest of the sums of ranks; 1 if all are 0."""
    sums = _sums(ranks, values, num_ranks)
    return sum(sums) / num_ranks / max(sums) if max(sums) else 1.0
