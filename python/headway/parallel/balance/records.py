# SPDX-License-Identifier: Apache-2.0
"""Samples as records of integers, which an all-to-all moves between ranks.

Idea: the columns of a batch are joined sample by sample. Each sample becomes a record of words of 8 bytes, whose length
follows from its numbers of events, so only these numbers travel before.

Example: a sample with user 7, history [a, b], target [x], actions [c, d], times [1, 2, 3] and label 1 is the record

    id 7 | a b x | c d | 1 2 3 | 1.0f

Invariants: unpacking gives the bits of the batch that was packed. Labels are float32; their bits fill half of a word.
Complexity: linear in the words; one pass of ``jagged_concat``, ``jagged_permute`` or ``jagged_split`` each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headway.data.sample_batch import SampleBatch
from headway.data.schema import SampleSchema
from headway.ops import jagged_concat, jagged_permute, jagged_split


@dataclass(frozen=True)
class Records:
    """Packed samples, in host memory. B samples.

    Attributes:
        words: all records, one after the other, int64.
        histories, targets: (B,) int64, events of each history, and targets.
    """

    words: torch.Tensor
    histories: torch.Tensor
    targets: torch.Tensor

    def join(self, other: Records) -> Records:
        """Returns the records of both, in this order."""
        return Records(
            torch.cat([self.words, other.words]),
            torch.cat([self.histories, other.histories]),
            torch.cat([self.targets, other.targets]),
        )

    def select(self, samples: torch.Tensor, schema: SampleSchema) -> Records:
        """Returns the records of some samples, in their order.

        Args:
            samples: indices.
            schema: of the samples.
        """
        histories, targets = self.histories[samples], self.targets[samples]
        num_words = int(words_of(histories, targets, schema).sum())
        lengths = words_of(self.histories, self.targets, schema)[None]
        (words,), _ = jagged_permute([self.words], lengths, samples=samples, num_rows=num_words)
        return Records(words, histories, targets)


def words_of(histories: torch.Tensor, targets: torch.Tensor, schema: SampleSchema) -> torch.Tensor:
    """Returns the words of the record of each sample, (B,) int64."""
    return torch.stack(_column_lengths(histories, targets, schema)).sum(0)


def pack(batch: SampleBatch, schema: SampleSchema) -> Records:
    """Packs all samples of a batch."""
    columns = [torch.stack([batch.sample_ids, *(batch.context[name] for name in schema.context)], dim=1).flatten()]
    columns += [batch.events[name] for name in schema.events]
    columns += [batch.actions[name] for name in schema.actions]
    columns += [] if batch.times is None else [batch.times]
    columns += [batch.labels[name].view(torch.int32).long() for name in schema.labels]
    words, _ = jagged_concat(columns, _offsets(batch.history_lengths, batch.target_lengths, schema))
    return Records(words, batch.history_lengths, batch.target_lengths)


def unpack(records: Records, schema: SampleSchema, *, num_truncated: int = 0) -> SampleBatch:
    """Makes a batch of records.

    Args:
        records: the samples.
        schema: of them.
        num_truncated: see ``SampleBatch``.
    """
    offsets = _offsets(records.histories, records.targets, schema)
    columns = iter(jagged_split(records.words, offsets, [int(each[-1]) for each in offsets]))
    of_samples = next(columns).view(-1, 1 + len(schema.context))
    lengths = records.histories + records.targets
    return SampleBatch(
        sample_ids=of_samples[:, 0].contiguous(),
        context={name: of_samples[:, 1 + index].contiguous() for index, name in enumerate(schema.context)},
        events={name: next(columns) for name in schema.events},
        actions={name: next(columns) for name in schema.actions},
        history_lengths=records.histories,
        target_lengths=records.targets,
        times=None if schema.time is None else next(columns),
        labels={name: next(columns).int().view(torch.float32) for name in schema.labels},
        max_tokens=int(lengths.max()) if len(lengths) else 0,
        num_truncated=num_truncated,
    )


def _column_lengths(histories: torch.Tensor, targets: torch.Tensor, schema: SampleSchema) -> list[torch.Tensor]:
    """Returns how many words each column has in each record, (B,) int64, in the order of the columns."""
    of_samples = torch.full_like(histories, 1 + len(schema.context))
    lengths = [of_samples, *[histories + targets] * len(schema.events), *[histories] * len(schema.actions)]
    return lengths + [histories + targets] * (schema.time is not None) + [targets] * len(schema.labels)


def _offsets(histories: torch.Tensor, targets: torch.Tensor, schema: SampleSchema) -> list[torch.Tensor]:
    """Returns the offsets of each column of the records, in their order."""
    of_columns = _column_lengths(histories, targets, schema)
    return [torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]) for lengths in of_columns]
