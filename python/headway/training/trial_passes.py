# SPDX-License-Identifier: Apache-2.0
"""``TrialPasses``: measures forward and backward passes over generated samples, before a training begins.

Invariants: no row is inserted, and nothing is learned. All ranks make the same passes, since lookups exchange keys.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch

from headway.data.sample_batch import SampleBatch
from headway.data.schema import SampleSchema
from headway.embedding import HashTableCollection
from headway.training.gradients import loss_of


class TrialPasses:
    """A context in which passes are measured. At its end the mode of the model is as before, and gradients are dropped.

    Args:
        model: a ``TrainableModel``.
        schema: of its samples.
        device: of the model.
        autocast: makes the context of a forward pass.
        warmups, rounds: passes that are not timed, and those whose median counts.
    """

    def __init__(
        self,
        model: Any,
        schema: SampleSchema,
        *,
        device: torch.device,
        autocast: Callable[[], contextlib.AbstractContextManager[Any]],
        warmups: int = 2,
        rounds: int = 5,
    ) -> None:
        self._model, self._schema, self._device, self._autocast = model, schema, device, autocast
        self._warmups, self._rounds = warmups, rounds
        self._was_training = model.training

    def __enter__(self) -> Self:
        self._model.eval()  # Lookups insert no rows.
        return self

    def __exit__(self, *_: object) -> None:
        self._model.train(self._was_training)
        self._drop_gradients()

    def time(self, *, count: int, length: int) -> tuple[int, float]:
        """Returns the tokens of ``count`` samples of ``length`` tokens, and the median seconds of a pass over them.

        Contextual tokens are counted. A sample has at least a token of history and a target.
        """
        events = max(2, length - len(self._schema.context))
        host = make_samples(self._schema, torch.full((count,), events))
        tokens = host.num_events + count * len(self._schema.context)
        return tokens, self.time_of(host)

    def time_of(self, host: SampleBatch) -> float:
        """Returns the median seconds of a pass over a batch in host memory."""
        batch = host.to(self._device)
        counts = self._model.count_terms(host)
        seconds = []
        for _ in range(self._warmups + self._rounds):
            began = time.perf_counter()
            sums = self.forward(batch)
            loss_of(sums, counts).backward()  # type: ignore[no-untyped-call]
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            seconds.append(time.perf_counter() - began)
            self._drop_gradients()  # Gradients of tables would add up in memory.
        return statistics.median(seconds[self._warmups :])

    def forward(self, batch: SampleBatch) -> Any:
        """Returns the sum of the losses of each head. The batch may be in host memory."""
        with self._autocast():
            return self._model(batch.to(self._device), seed=0, step=0)

    def _drop_gradients(self) -> None:
        self._model.zero_grad(set_to_none=True)
        for each in self._model.modules():
            if isinstance(each, HashTableCollection):
                each.optimizer.zero_grad()


def make_samples(schema: SampleSchema, lengths: torch.Tensor, *, num_targets: int = 1) -> SampleBatch:
    """Makes samples whose events all have ids of their own.

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
        labels={name: torch.zeros(num_targets * count) for name in schema.labels},
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
