# SPDX-License-Identifier: Apache-2.0
"""``BatchWindow``: the batches of a dense worker that have begun and whose gradients are not confirmed.

Idea: a bound on these batches is what keeps lookups within the staleness of the worker. A batch goes from ``ahead``
(begun, perhaps looked up) to ``returned`` (gradients or a void notice were sent), and leaves when servers have
confirmed it.

Example, a staleness of 1: batches 0 and 1 begin, and both are sent. Batch 0 makes its step. Batch 2 may begin, but it
is sent only when servers have confirmed the gradients of 0, because 0 and 1 are in flight until then.

Invariants: steps in ``returned``, then ``ahead``, are consecutive; at most ``most`` batches are sent and not confirmed;
those of ``ahead`` that are sent come first.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from headway._hybrid import RequestRefusedError
from headway.hybrid.batch_counts import BatchCounts
from headway.hybrid.lookups import Values


@dataclass(eq=False)
class HybridBatch:
    """A batch whose lookup has begun. Pass it to ``HybridTables`` instead of the features.

    Attributes:
        step: its step.
        source: the features, by which activation checkpointing finds the batch again.
        prepared: what is sent for it.
        in_replicas: its ids of small tables; None: there are no such tables.
        is_sent: its lookup is on its way, or has come.
        gradients: (bags, dim) of each merged table, or None; from the backward pass.
        dense_gradients: (blocks, BLOCK_DIM) of the dense model, or None; with ``async``.
        is_looked_up: ``forward()`` has returned its embeddings.
        has_backward: a backward pass has reached it.
        num_bags: bags of each feature: its lists, or its ids without pooling; from ``forward()``.
        has_samples: False: the worker has run out of data.
        loss: why it is not trained, by the names of ``BatchCounts``; None: nobody has dropped it.
    """

    step: int
    source: Any
    prepared: Any = None
    in_replicas: Any = None
    is_sent: bool = False
    gradients: list[Values | None] = field(default_factory=list)
    dense_gradients: Values | None = None
    is_looked_up: bool = False
    has_backward: bool = False
    num_bags: list[int] = field(default_factory=list)
    has_samples: bool = True
    loss: str | None = None


class _Lookups(Protocol):
    """The calls of ``ServerLookups`` and ``WorkerLookups`` that a window makes."""

    def start(self, step: int, rank: int, prepared: Any) -> None: ...
    def forget(self, step: int, rank: int, prepared: Any) -> None: ...
    def is_finished(self, step: int, rank: int) -> bool: ...
    def finish(self, step: int, rank: int) -> bool: ...
    def drop(self, step: int, rank: int, cause: str) -> None: ...


class BatchWindow:
    """Batches from ``begin()`` to the confirmation of their gradients.

    Args:
        lookups: sends them. Its errors name the server that is lost.
        rank: of the dense worker.
        staleness: steps whose updates a lookup may lack.
        num_tables: merged tables.
        step: steps so far.
    """

    def __init__(self, lookups: _Lookups, *, rank: int, staleness: int, num_tables: int, step: int) -> None:
        self.lookups, self._rank, self._staleness, self._num_tables = lookups, rank, staleness, num_tables
        self.ahead: deque[HybridBatch] = deque()  #: Begun, and not stepped.
        self._returned: deque[HybridBatch] = deque()  #: Batches whose end servers have not confirmed.
        self._counts = BatchCounts()
        self.restart(step)

    def restart(self, step: int) -> None:
        """Sets the number of steps so far. Batches that have begun get theirs by ``send_again()``."""
        self.step = self.next_step = step

    @property
    def most(self) -> int:
        """Batches that may be in flight."""
        return self._staleness + 1

    def begin(self, source: Any, prepared: Any, *, has_samples: bool) -> HybridBatch:
        """Takes the next batch, and sends it if the bound allows."""
        batch = HybridBatch(
            self.next_step, source, prepared, gradients=[None] * self._num_tables, has_samples=has_samples
        )
        self.send()  # Older ones first.
        self._send_if_allowed(batch)
        self._counts.begun += 1
        self.next_step += 1
        self.ahead.append(batch)
        return batch

    def expect_room(self) -> None:
        """Checks that a batch may begin.

        Raises:
            ValueError: ``most`` batches have not made their step.
        """
        if len(self.ahead) == self.most:
            raise ValueError(
                f"{self.most} batches have begun and wait for optimizer.step(): no more may begin with a staleness of "
                f"{self._staleness}"
            )

    def send(self) -> None:
        """Sends the batches that have begun, as far as the bound allows. Does not wait."""
        while self._returned and self.lookups.is_finished(self._returned[0].step, self._rank):
            self._confirm_oldest()
        for batch in self.ahead:
            self._send_if_allowed(batch)

    def send_again(self) -> None:
        """Sends the batches that have begun once more, in a new generation."""
        for batch in self.ahead:
            batch.is_sent = False
            self.next_step += 1
        self.send()

    def _num_in_flight(self) -> int:
        return sum(each.is_sent for each in self.ahead) + len(self._returned)

    def _send_if_allowed(self, batch: HybridBatch) -> None:
        if not batch.is_sent and self._num_in_flight() < self.most:
            self.lookups.start(batch.step, self._rank, batch.prepared)
            batch.is_sent = True

    def wait_for_room(self) -> None:
        """Waits until a batch may be sent, or all gradients are confirmed."""
        while self._returned and self._num_in_flight() >= self.most:
            self._confirm_oldest()

    def wait_until_sent(self, batch: HybridBatch) -> None:
        """Sends a batch; waits for confirmations if the bound demands it.

        Raises:
            ValueError: the batch has made its step.
        """
        if batch not in self.ahead:
            raise ValueError(f"the batch of step {batch.step} has made its step")
        self.send()
        while not batch.is_sent:
            self._confirm_oldest()
            self.send()

    def batch_of(self, source: Any) -> HybridBatch:
        """Finds the batch that activation checkpointing looks up again."""
        for batch in self.ahead:
            if batch.source is source:
                return batch
        raise RuntimeError("the backward pass repeats a lookup of a batch that has made its step, or of other features")

    def batch_to_step(self) -> HybridBatch:
        """Returns the batch of the last backward pass, or else the last one that was looked up.

        Raises:
            RuntimeError: no batch was looked up, or two have had a backward pass.
        """
        learned = [batch for batch in self.ahead if batch.has_backward]
        looked_up = [batch for batch in self.ahead if batch.is_looked_up]
        if len(learned) > 1:
            raise RuntimeError(
                f"optimizer.step(): {len(learned)} batches have had a backward pass since the last step, and a step "
                "has one"
            )
        if not looked_up:
            raise RuntimeError("optimizer.step(): no batch has been looked up since the last step")
        return learned[0] if learned else looked_up[-1]

    def end_oldest(self) -> None:
        """Ends the oldest batch, whose gradients or void notice were sent."""
        self._returned.append(self.ahead.popleft())
        self.step += 1

    def drop_oldest(self, cause: str) -> None:
        """Ends the oldest batch by a void notice."""
        batch = self.ahead[0]
        if not batch.is_sent:
            self.lookups.forget(batch.step, self._rank, batch.prepared)
        self.lookups.drop(batch.step, self._rank, cause if batch.has_samples else "no_batch")
        batch.loss = cause
        self.end_oldest()

    def confirm_all(self) -> None:
        """Waits until servers have taken the gradients of all batches that made their step."""
        while self._returned:
            self._confirm_oldest()

    def _confirm_oldest(self) -> None:
        batch = self._returned[0]
        try:
            is_finite = self.lookups.finish(batch.step, self._rank)
        except RequestRefusedError:  # Such as gradients that are not finite: other workers must not wait for them.
            self.lookups.drop(batch.step, self._rank, "refused")
            batch.loss = "refused"
            raise
        self._count_end(self._returned.popleft(), is_finite)

    def _count_end(self, batch: HybridBatch, is_finite: bool) -> None:
        loss = batch.loss or (None if is_finite else "not_finite")
        if not batch.has_samples:
            self._counts.empty += 1
        elif loss is None:
            self._counts.trained += 1
        else:
            self._counts.lost[loss] += 1

    def counts(self) -> BatchCounts:
        """Returns what became of the batches."""
        counts = replace(self._counts, lost=self._counts.lost.copy())
        counts.in_flight = len(self.ahead) + len(self._returned)
        return counts
