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
ranks. A rank has its samples in the order of the ranks that have read them, and with a budget in the order drawn.
All ranks start the same steps: step s starts when step s - ``depth`` is taken, and then it is completed.
Complexity: for N samples of a step and R ranks O(N (log N + log R)) on each rank, and 32 N bytes received to describe.
Source: FreeScale (MLSys 2026), load balancing in three stages.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from headway.data.reader import StepBatch
from headway.data.schema import SampleSchema
from headway.parallel.balance.described import Described, Spread, sums_of_ranks
from headway.parallel.balance.plan import BalancePlan
from headway.parallel.balance.records import Records, unpack, words_of
from headway.parallel.balance.sample_exchange import SampleExchange
from headway.parallel.balance.step_sources import BudgetedSteps, ChunkReader, StepBudget, TakenStep, WholeSteps

_JOIN_S = 30.0


class BalancedSteps:
    """Iterates over the steps of a reader, with samples moved.

    Args:
        steps: this rank's steps, each with one batch in host memory; all ranks have as many. A ``BatchReader`` needs
            ``rank`` and ``num_ranks``, and ``micro_batches`` stays 1: those of ``plan`` divide its samples.
        plan: how samples are divided; the same on all ranks.
        schema: of the samples.
        group: ranks of the training; None: this rank alone, whose samples are divided into micro-batches.
        budget: cut the samples of the reader into steps of equal weight; None: take the steps of the reader.
        num_steps: most steps; None: all.
        depth: steps in flight or ready beside the one in use.
        pin_memory: put batches into pinned memory.
        busy_s: returns how many seconds this rank has computed so far. It travels with the description of each step, so
            ranks learn who is slow without an exchange of its own.

    Raises:
        ValueError: ``depth`` is below 1.
        BalanceError: ranks have different plans, budgets, schemas or numbers of steps.
    """

    def __init__(
        self,
        steps: Iterator[StepBatch],
        *,
        plan: BalancePlan,
        schema: SampleSchema,
        group: dist.ProcessGroup | None = None,
        budget: StepBudget | None = None,
        num_steps: int | None = None,
        depth: int = 2,
        pin_memory: bool = False,
        busy_s: Callable[[], float] = float,
    ) -> None:
        if depth < 1:
            raise ValueError(f"depth is {depth}, and at least 1")
        self._plan, self._schema, self._pin_memory, self._num_left = plan, schema, pin_memory, num_steps
        self._exchange = SampleExchange(group)
        self._exchange.expect_same({"plan": plan, "budget": budget, "num_steps": num_steps, "schema": schema})
        chunks = ChunkReader(steps, self._exchange, weight=plan.weight, schema=schema, busy_s=busy_s)
        self._chunks = chunks
        self._source = WholeSteps(chunks) if budget is None else BudgetedSteps(chunks, budget)
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

    @property
    def busy_s(self) -> list[float]:
        """Seconds that each rank has computed, by the newest description; empty before the first one."""
        return self._chunks.busy_s

    def take_spreads(self) -> list[Spread]:
        """Returns the spreads of the steps since the last call."""
        taken, self._spreads = self._spreads, []
        return taken

    def close(self) -> None:
        """Ends the thread after the steps that have started, which other ranks wait for.

        All ranks call it, after the same number of steps.
        """
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
        if self._num_left == 0:
            return None
        if self._num_left is not None:
            self._num_left -= 1
        taken = self._source.take()
        return None if taken is None else self._balance(taken)

    def _balance(self, taken: TakenStep) -> tuple[StepBatch, Spread]:
        described, num_ranks = taken.described, self._exchange.num_ranks
        number = taken.position.step + taken.position.epoch
        ranks, parts = self._plan.divide(described.weights, described.tokens, num_ranks=num_ranks, step=number)
        spread = described.spread(ranks, num_ranks)
        records = self._move(taken.records, described, ranks)
        of_own = parts[ranks == self._exchange.rank]
        batches = [
            unpack(
                records.select((of_own == part).nonzero()[:, 0], self._schema),
                self._schema,
                num_truncated=taken.num_truncated if part == 0 else 0,  # Counted where they were read.
            )
            for part in range(self._plan.micro_batches)
        ]
        if self._pin_memory:
            batches = [each.pin_memory() for each in batches]
        return StepBatch(taken.position, taken.next, batches), spread

    def _move(self, records: Records, described: Described, ranks: torch.Tensor) -> Records:
        """Sends each record to its rank, and returns those of this rank, in the order of ``described``."""
        num_ranks = self._exchange.num_ranks
        is_read, is_own = described.sources == self._exchange.rank, ranks == self._exchange.rank
        words = words_of(described.histories, described.targets, self._schema)
        sent = records.select(torch.argsort(ranks[is_read], stable=True), self._schema)
        received = self._exchange.all_to_all(
            sent.words,
            sums_of_ranks(ranks[is_read], words[is_read], num_ranks),
            sums_of_ranks(described.sources[is_own], words[is_own], num_ranks),
        )
        by_source = torch.argsort(described.sources[is_own], stable=True)
        arrived = Records(received, described.histories[is_own][by_source], described.targets[is_own][by_source])
        return arrived.select(torch.argsort(by_source), self._schema)
