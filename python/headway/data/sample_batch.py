# SPDX-License-Identifier: Apache-2.0
"""``SampleBatch``: samples as jagged tensors. B samples, H events of histories, N targets, E = H + N events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from headway.data.parquet import Chunk
from headway.data.schema import TARGET, SampleSchema
from headway.ops import jagged_concat


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
        max_tokens: most events of a sample: its history and targets, without tokens of the context.
        num_truncated: samples whose oldest events were dropped.
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
    num_truncated: int = 0

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
    histories, targets = _Lists(slices, schema.events[0]), _Lists(slices, TARGET + schema.events[0])
    offsets = [histories.offsets, targets.offsets]

    def of_events(name: str) -> torch.Tensor:
        return jagged_concat([histories.values(name), targets.values(TARGET + name)], offsets)[0]

    ids = [np.arange(each.chunk.first_row + each.begin, each.chunk.first_row + each.end) for each in slices]
    return SampleBatch(
        sample_ids=_join(ids),
        context={
            name: _join([each.chunk.context[name][each.begin : each.end] for each in slices]) for name in schema.context
        },
        events={name: of_events(name) for name in schema.events},
        actions={name: histories.values(name) for name in schema.actions},
        history_lengths=histories.lengths,
        target_lengths=targets.lengths,
        times=None if schema.time is None else of_events(schema.time),
        labels={name: targets.values(name).float() for name in schema.labels},
        max_tokens=int((histories.lengths + targets.lengths).max()) if slices else 0,
        num_truncated=sum(
            int(each.chunk.is_truncated[each.begin : each.end].sum())
            for each in slices
            if each.chunk.is_truncated is not None
        ),
    )


class _Lists:
    """List columns of some rows: those of histories, or those of targets. All of a kind have the same lengths.

    Attributes:
        lengths: (B,) int64.
        offsets: (B + 1,) int64.
    """

    def __init__(self, slices: Sequence[Slice], name: str) -> None:
        offsets = [each.chunk.offsets[name][each.begin : each.end + 1] for each in slices]
        self._parts = [
            (each.chunk.values, slice(int(of_part[0]), int(of_part[-1])))
            for each, of_part in zip(slices, offsets, strict=True)
        ]
        self.lengths = _join([of_part[1:] - of_part[:-1] for of_part in offsets])
        self.offsets = torch.cat([self.lengths.new_zeros(1), self.lengths.cumsum(0)])

    def values(self, name: str) -> torch.Tensor:
        """Returns the flat values of a column."""
        return _join([values[name][part] for values, part in self._parts])


def _join(parts: Sequence[np.ndarray[Any, Any]]) -> torch.Tensor:
    """Concatenates arrays of int64 into memory of their own."""
    return torch.from_numpy(np.concatenate(parts) if parts else np.empty(0, dtype=np.int64))
