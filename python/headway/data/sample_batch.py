# SPDX-License-Identifier: Apache-2.0
"""``SampleBatch``: samples as jagged tensors. B samples, H events of histories, N targets, E = H + N events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from headway.data.parquet import Chunk
from headway.data.schema import TARGET, SampleSchema


@dataclass(frozen=True, kw_only=True)
class SampleBatch:
    """Samples of one rank in one micro-batch. Tensors are on one device.

    The events of a sample are its history followed by its targets. Example: two samples with histories [a, b] and [c]
    and targets [x] and [y, z] have the events a b x c y z.

    Attributes:
        sample_ids: (B,) int64, number of each sample's row in its folder.
        context: (B,) int64 by feature.
        events: (E,) int64 by feature.
        actions: (H,) int64 by feature.
        history_lengths, target_lengths: (B,) int64.
        times: (E,) int64; None: the schema has none.
        labels: (N,) float32 by name, in the order of samples.
        max_tokens: most events of a sample.
    """

    sample_ids: torch.Tensor
    context: Mapping[str, torch.Tensor]
    events: Mapping[str, torch.Tensor]
    actions: Mapping[str, torch.Tensor]
    history_lengths: torch.Tensor
    target_lengths: torch.Tensor
    times: torch.Tensor | None
    labels: Mapping[str, torch.Tensor]
    max_tokens: int

    @property
    def num_samples(self) -> int:
        return len(self.sample_ids)

    @property
    def num_events(self) -> int:
        return len(next(iter(self.events.values())))

    @property
    def num_targets(self) -> int:
        return len(next(iter(self.labels.values())))

    @property
    def event_lengths(self) -> torch.Tensor:
        """Number of events of each sample, its targets included, (B,) int64."""
        return self.history_lengths + self.target_lengths

    def to(self, device: torch.device) -> SampleBatch:
        """Copies the batch to a device. From pinned memory the copy is asynchronous."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> SampleBatch:
        return self._map(torch.Tensor.pin_memory)

    def record_stream(self, stream: torch.Stream) -> None:
        """Keeps the memory of the batch until ``stream`` has used it."""
        self._map(lambda tensor: (tensor.record_stream(stream), tensor)[1])

    def _map(self, function: Any) -> SampleBatch:
        changes: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, torch.Tensor):
                changes[field.name] = function(value)
            elif isinstance(value, Mapping):
                changes[field.name] = {name: function(tensor) for name, tensor in value.items()}
        return replace(self, **changes)


@dataclass(frozen=True)
class Slice:
    """Rows ``begin`` to before ``end`` of a chunk."""

    chunk: Chunk
    begin: int
    end: int


def collate(slices: Sequence[Slice], schema: SampleSchema) -> SampleBatch:
    """Joins rows of chunks to a batch. Without slices it has no samples."""

    def flat(name: str) -> np.ndarray[Any, Any]:
        parts = [each.chunk.values[name][_range(each, name)] for each in slices]
        return _join(parts)

    def lengths(name: str) -> np.ndarray[Any, Any]:
        return _join([np.diff(each.chunk.offsets[name][each.begin : each.end + 1]) for each in slices])

    history, targets = lengths(schema.events[0]), lengths(TARGET + schema.events[0])
    order = _event_order(history, targets)

    def of_events(name: str) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([flat(name), flat(TARGET + name)])[order])

    ids = [np.arange(each.chunk.first_row + each.begin, each.chunk.first_row + each.end) for each in slices]
    return SampleBatch(
        sample_ids=torch.from_numpy(_join(ids)),
        context={
            name: torch.from_numpy(_join([each.chunk.context[name][each.begin : each.end] for each in slices]))
            for name in schema.context
        },
        events={name: of_events(name) for name in schema.events},
        actions={name: torch.from_numpy(flat(name)) for name in schema.actions},
        history_lengths=torch.from_numpy(history),
        target_lengths=torch.from_numpy(targets),
        times=None if schema.time is None else of_events(schema.time),
        labels={name: torch.from_numpy(flat(name).astype(np.float32)) for name in schema.labels},
        max_tokens=int((history + targets).max(initial=0)),
    )


def _range(part: Slice, name: str) -> slice:
    offsets = part.chunk.offsets[name]
    return slice(int(offsets[part.begin]), int(offsets[part.end]))


def _join(parts: Iterable[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Concatenates arrays of int64 into memory of their own."""
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def _event_order(history: np.ndarray[Any, Any], targets: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the index of each event in the concatenation of all history events and all targets.

    Example: histories of 2 and 1 events, 1 and 2 targets: [0, 1, 3, 2, 4, 5].
    """
    both = np.stack([history, targets], axis=1).reshape(-1)  # h0 t0 h1 t1 ...
    first_history = np.cumsum(history) - history
    first_target = history.sum() + np.cumsum(targets) - targets
    begins = np.stack([first_history, first_target], axis=1).reshape(-1)
    within = np.arange(both.sum()) - np.repeat(np.cumsum(both) - both, both)
    order: np.ndarray[Any, Any] = np.repeat(begins, both) + within
    return order
