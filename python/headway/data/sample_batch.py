# SPDX-License-Identifier: Apache-2.0
"""``SampleBatch``: samples as jagged tensors. B samples, H events of histories, N targets, E = H + N events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from headway.data.parquet import Chunk, Integers
from headway.data.schema import TARGET, SampleSchema
from headway.ops import join_ranges


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


def collate(slices: Sequence[Slice], schema: SampleSchema, *, pin_memory: bool = False) -> SampleBatch:
    """Joins rows of chunks to a batch. Without slices it has no samples. Values of lists are copied once."""
    rows = _Rows(slices, schema, pin_memory=pin_memory)
    batch = SampleBatch(
        sample_ids=_join([np.arange(each.begin, each.end) + each.chunk.first_row for each in slices]),
        context={
            name: _join([each.chunk.context[name][each.begin : each.end] for each in slices]) for name in schema.context
        },
        events={name: rows.events(name) for name in schema.events},
        actions={name: rows.histories(name) for name in schema.actions},
        history_lengths=rows.history_lengths,
        target_lengths=rows.target_lengths,
        times=None if schema.time is None else rows.events(schema.time),
        labels={name: rows.targets(name).float() for name in schema.labels},
        max_tokens=int((rows.history_lengths + rows.target_lengths).max()) if slices else 0,
        num_truncated=sum(
            int(each.chunk.is_truncated[each.begin : each.end].sum())
            for each in slices
            if each.chunk.is_truncated is not None
        ),
    )
    return batch.pin_memory() if pin_memory else batch  # Copies only what is not pinned yet.


class _Rows:
    """List columns of the rows of a batch, which lie in several chunks.

    Attributes:
        history_lengths, target_lengths: (B,) int64.
    """

    def __init__(self, slices: Sequence[Slice], schema: SampleSchema, *, pin_memory: bool) -> None:
        self._pin_memory = pin_memory
        self._chunks = list({id(each.chunk): each.chunk for each in slices}.values())
        numbers = {id(chunk): number for number, chunk in enumerate(self._chunks)}
        sizes = [each.end - each.begin for each in slices]
        #: Chunk of each row, (B,).
        self._chunk_of = torch.from_numpy(
            np.repeat([numbers[id(each.chunk)] for each in slices], sizes).astype(np.int64)
        )
        #: Where the lists of each row begin and end in their chunk, (2, B): all columns of a kind have equal lengths.
        self._histories = _bounds(slices, schema.events[0])
        self._targets = _bounds(slices, TARGET + schema.events[0])
        self.history_lengths, self.target_lengths = (ends - begins for begins, ends in (self._histories, self._targets))

    def histories(self, name: str) -> torch.Tensor:
        """Returns the values of a column of histories."""
        return self._values([name], self._chunk_of, self._histories)

    def targets(self, name: str) -> torch.Tensor:
        """Returns the values of a column of targets or labels."""
        return self._values([name], self._chunk_of, self._targets)

    def events(self, name: str) -> torch.Tensor:
        """Returns the values of a column of histories and that of targets, in turns."""
        sources = torch.stack([self._chunk_of, self._chunk_of + len(self._chunks)], dim=1).flatten()
        bounds = torch.stack([self._histories, self._targets], dim=2).flatten(1)
        return self._values([name, TARGET + name], sources, bounds)

    def _values(self, names: Sequence[str], source_of: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
        if not self._chunks:
            return torch.empty(0, dtype=torch.int64)
        sources = [chunk.values[name] for name in names for chunk in self._chunks]
        return join_ranges(sources, source_of, *bounds, pin_memory=self._pin_memory)


def _bounds(slices: Sequence[Slice], name: str) -> torch.Tensor:
    offsets = [each.chunk.offsets[name][each.begin : each.end + 1] for each in slices]
    return torch.stack([_join([of_slice[:-1] for of_slice in offsets]), _join([of_slice[1:] for of_slice in offsets])])


def _join(parts: Sequence[Integers]) -> torch.Tensor:
    """Concatenates arrays of int64 into memory of their own."""
    return torch.from_numpy(np.concatenate(parts) if parts else np.empty(0, dtype=np.int64))
