# SPDX-License-Identifier: Apache-2.0
"""``TrialPasses``: measures forward and backward passes over generated samples, before a training begins.

Invariants: no row is inserted, and nothing is learned. Embeddings get no gradient. All ranks make the same passes,
since lookups exchange keys. If the device of one rank has no memory for a pass, all raise, so none waits for the next.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
import torch.distributed as dist

from headway.data.sample_batch import SampleBatch
from headway.data.schema import SampleSchema
from headway.nn.row_padding import padded_rows
from headway.training.device_memory import is_out_of_memory
from headway.training.gradients import loss_of
from headway.training.trained_tables import TrainedTables

_NEARLY_SLOWEST = 0.99  #: ``times_of()`` measures batches from this part of the slowest one's time on several times.


class PassMemoryError(RuntimeError):
    """The device of a rank has no memory for a pass."""


class TrialPasses:
    """A context in which passes are measured. At its end the mode of the model is as before, and gradients are dropped.

    Args:
        model: a ``TrainableModel``.
        schema: of its samples.
        device: of the model.
        autocast: makes the context of a forward pass.
        group: ranks of the training; None: this rank alone.
        warmups, rounds: passes that are not timed, and those whose median counts.
    """

    def __init__(
        self,
        model: Any,
        schema: SampleSchema,
        *,
        device: torch.device,
        autocast: Callable[[], contextlib.AbstractContextManager[Any]],
        group: dist.ProcessGroup | None = None,
        warmups: int = 2,
        rounds: int = 5,
    ) -> None:
        self._model, self._schema, self._device, self._autocast = model, schema, device, autocast
        self._group = None if group is None or group.size() == 1 else group
        self._warmups, self._rounds = warmups, rounds
        self._was_training = model.training
        #: Parameters through which autograd reaches tables. They need no gradient here, so a rank whose backward pass
        #: fails keeps no other rank waiting for its gradients of rows.
        self._anchors = [
            anchor
            for each in model.modules()
            if isinstance(each, TrainedTables)
            for anchor in each._anchors
            if anchor.requires_grad
        ]

    def __enter__(self) -> Self:
        self._model.eval()  # Lookups insert no rows.
        for anchor in self._anchors:
            anchor.requires_grad_(False)
        return self

    def __exit__(self, *_: object) -> None:
        self._model.train(self._was_training)
        for anchor in self._anchors:
            anchor.requires_grad_(True)
        self._model.zero_grad(set_to_none=True)

    def time(self, *, count: int, length: int) -> tuple[int, float]:
        """Returns the tokens of ``count`` samples of ``length`` tokens, and the median seconds of a pass over them.

        Contextual tokens are counted. A sample has at least ``shortest`` tokens.

        Raises:
            PassMemoryError: the device of a rank has no memory for it.
        """
        events = max(2, length - len(self._schema.context))
        host = make_samples(self._schema, torch.full((count,), events))
        return self._num_tokens(host), self.time_of(host)

    @property
    def shortest(self) -> int:
        """Fewest tokens of a sample: its context, one event of history, and a target."""
        return 2 + len(self._schema.context)

    def time_of(self, host: SampleBatch) -> float:
        """Returns the median seconds of a pass over a batch in host memory."""
        batch = host.to(self._device)
        counts = self._model.count_terms(host)
        seconds = []
        for _ in range(self._warmups + self._rounds):
            began = time.perf_counter()
            error = self._pass(batch, counts)
            seconds.append(time.perf_counter() - began)
            self._model.zero_grad(set_to_none=True)
            self._expect_memory(error)
        return statistics.median(seconds[self._warmups :])

    def times_of(self, hosts: Sequence[SampleBatch]) -> list[float]:
        """Returns the seconds of a pass over each batch. All batches are in memory of the device at once.

        A GPU measures its own time, and the host enqueues passes without a wait between them. Passes before, the
        longest first, allocate memory and let cuBLAS choose its kernels for each number of rows (row_padding.py).
        Passes over one batch differ by 1% (standard deviation), and the largest of many would be taken for the time of
        the slowest batch. So a batch within 1% of the slowest is measured again, until all such have the median of
        ``rounds`` passes. A median that falls lets others be among the slowest; they get their passes, too.
        """
        if self._device.type != "cuda":
            return [self.time_of(host) for host in hosts]
        batches = [(host.to(self._device), self._model.count_terms(host)) for host in hosts]
        by_rows = {padded_rows(self._num_tokens(each[0]), self._device): each for each in batches}
        for _, each in sorted(by_rows.items(), reverse=True) * self._warmups:
            self._events_of(*each)
        measured: list[list[float]] = [[] for _ in batches]
        indices = list(range(len(batches)))
        while indices:
            events = [self._events_of(*batches[index]) for index in indices]
            torch.cuda.synchronize(self._device)
            for index, (begin, end) in zip(indices, events, strict=True):
                measured[index].append(begin.elapsed_time(end) / 1e3)
            medians = [statistics.median(each) for each in measured]
            least = _NEARLY_SLOWEST * max(medians)
            indices = [i for i, median in enumerate(medians) if median >= least and len(measured[i]) < self._rounds]
        return medians

    def _num_tokens(self, batch: SampleBatch) -> int:
        return batch.num_events + batch.num_samples * len(self._schema.context)

    def _events_of(self, batch: SampleBatch, counts: Any) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        """Enqueues a pass; returns the events before and after it."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        self._expect_memory(self._pass(batch, counts, waits=False))
        end.record()
        self._model.zero_grad(set_to_none=True)
        return begin, end

    def _pass(self, batch: SampleBatch, counts: Any, *, waits: bool = True) -> RuntimeError | None:
        """Runs a pass forward and backward; returns the error if there was no memory."""
        try:
            loss = loss_of(self.forward(batch), counts)
            if loss.requires_grad:  # Not if all parameters are rows of tables.
                loss.backward()  # type: ignore[no-untyped-call]
            if waits and self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return error
        return None

    def _expect_memory(self, error: RuntimeError | None) -> None:
        has_failed = error is not None
        if self._group is not None:
            failed = torch.tensor([has_failed], dtype=torch.float32, device=self._device)
            dist.all_reduce(failed, group=self._group)
            has_failed = bool(failed)
        if has_failed:
            raise PassMemoryError("the device of a rank has no memory for a pass") from error

    def forward(self, batch: SampleBatch) -> Any:
        """Returns the sum of the losses of each head. The batch may be in host memory."""
        with self._autocast():
            return self._model(batch.to(self._device), seed=0, step=0)


def make_samples(schema: SampleSchema, lengths: torch.Tensor, *, num_targets: int = 1) -> SampleBatch:
    """Makes samples whose events all have ids of their own. A third of the labels is 1.

    Args:
        schema: of the samples.
        lengths: (B,) int64, events of each sample, targets included; all above ``num_targets``.
        num_targets: the last events of each sample.
    """
    count, num_events = len(lengths), int(lengths.sum())
    events = torch.arange(num_events)
    begins = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    targets = torch.full((count,), num_targets)
    return SampleBatch(
        sample_ids=torch.arange(count),
        context={name: torch.arange(count) for name in schema.context},
        events=dict.fromkeys(schema.events, events),
        actions={name: torch.zeros(num_events - num_targets * count, dtype=torch.int64) for name in schema.actions},
        history_lengths=lengths - num_targets,
        target_lengths=targets,
        times=None if schema.time is None else events - begins,
        labels={name: (torch.arange(num_targets * count) % 3 == 1).float() for name in schema.labels},
        max_tokens=int(lengths.max()) if count else 0,
    )


def join_batches(one: SampleBatch, other: SampleBatch) -> SampleBatch:
    """Returns a batch with the samples of both, of the same schema."""

    def both(name: str) -> Any:
        first, second = getattr(one, name), getattr(other, name)
        if isinstance(first, Mapping):
            return {key: torch.cat([first[key], second[key]]) for key in first}
        return None if first is None else torch.cat([first, second])

    tensors = ("sample_ids", "context", "events", "actions", "history_lengths", "target_lengths", "times", "labels")
    return SampleBatch(**{name: both(name) for name in tensors}, max_tokens=max(one.max_tokens, other.max_tokens))
