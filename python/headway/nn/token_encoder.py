# SPDX-License-Identifier: Apache-2.0
"""``TokenEncoder``: the samples of a batch as one jagged sequence of tokens.

Idea: each contextual feature is a token, each event of the history is one, and each target is one. A token's features
are looked up in tables, and projected to the width of the model. Actions are known for the history alone, so their
projection is added there.

Example: 1 contextual feature, a history of 2 events and 2 targets: tokens u h0 h1 t0 t1. The u token sees itself and
the history. h0 and h1 see u and what came before. t0 and t1 see u, h0, h1 and themselves, but not each other.

Invariants: a target's token depends on its own features and time alone, and never on its label or action. Tokens of a
sample are adjacent, so masks are those of ``Sequences``. On a GPU rows of no sample follow them (row_padding.py).
Complexity: one lookup for all features, and one matrix product per kind of token.

Shapes: B samples, C contextual features, H events of histories, N targets, T >= B C + H + N tokens, E columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from headway import ops
from headway.data.sample_batch import SampleBatch
from headway.data.schema import SampleSchema
from headway.embedding import FeatureConfig, HashTableCollection, Optimizer, PendingBatch, TableConfig
from headway.embedding.process_groups import GroupOrLocal
from headway.nn.dropout_keys import token_keys
from headway.nn.row_padding import pad_rows, padded_rows
from headway.nn.sequences import Sequences, offsets_of


class EncodedTokens(NamedTuple):
    """Tokens of a batch.

    Attributes:
        x: (T, E).
        sequences: offsets, masks and times.
        targets: (N,) int64, token of each target.
        target_embeddings: (N, ``embedding_dim`` * number of event features), the embeddings of each target in one row.
        deep_inputs: (N, ``embedding_dim`` * (number of event and contextual features + 1)): the embeddings of each
            target, of its context, and the mean of its history's first event feature; None: not asked for.
    """

    x: Tensor
    sequences: Sequences
    targets: Tensor
    target_embeddings: Tensor
    deep_inputs: Tensor | None


class TokenEncoder(nn.Module):
    """Looks the features of a batch up, and arranges them as tokens.

    Args:
        schema: features of a sample.
        dim: columns of a token.
        embedding_dim: columns of an embedding in the tables.
        optimizer: optimizer of the tables.
        tables: name of the table of each feature; a feature that is not there has a table of its own name.
        seed: seed of initial embeddings.
        process_group: ranks that share the tables.
        device: device of tables and tokens.
        has_times: give the sequences the times of their tokens, which relative biases need.
        has_dropout_keys: give them the keys of dropout.
        has_deep_inputs: make ``EncodedTokens.deep_inputs``.
        prioritized: allow ``read_ahead()`` of the tables.
        make_tables: makes the tables from the keyword arguments of ``headway.hybrid.connect()``, instead of this class.
    """

    def __init__(
        self,
        schema: SampleSchema,
        *,
        dim: int,
        embedding_dim: int,
        optimizer: Optimizer,
        tables: Mapping[str, str] | None = None,
        seed: int = 0,
        process_group: GroupOrLocal = None,
        device: torch.device | str | None = None,
        has_times: bool = True,
        has_dropout_keys: bool = True,
        has_deep_inputs: bool = False,
        prioritized: bool = False,
        make_tables: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__()
        self.schema = schema
        self._has_times, self._has_dropout_keys = has_times, has_dropout_keys
        self._has_deep_inputs = has_deep_inputs
        table_of = {name: name for name in (*schema.context, *schema.events, *schema.actions)} | dict(tables or {})
        make = make_tables or partial(HashTableCollection, gradient_reduction="sum", prioritized=prioritized)
        self.tables = make(
            tables=[
                TableConfig(name, dim=embedding_dim, optimizer=optimizer) for name in sorted(set(table_of.values()))
            ],
            features=[FeatureConfig(feature, table=table, pooling=None) for feature, table in table_of.items()],
            process_group=process_group,
            seed=seed,
            device=device,
        )
        self.context = nn.ModuleDict({f"of_{name}": nn.Linear(embedding_dim, dim) for name in schema.context})
        self.events = nn.Linear(embedding_dim * len(schema.events), dim)
        self.actions = nn.Linear(embedding_dim * len(schema.actions), dim, bias=False) if schema.actions else None

    def start_lookups(self, batch: SampleBatch) -> PendingBatch:
        """Begins the lookups of a batch, to be passed to ``forward()``."""
        return self.tables.begin(self._features(batch))

    def forward(
        self, batch: SampleBatch, *, seed: int = 0, step: int = 0, lookups: PendingBatch | None = None
    ) -> EncodedTokens:
        """Encodes a batch.

        Args:
            batch: the samples.
            seed: with ``step`` the key of dropout; see ``headway.nn.dropout_keys``.
            step: optimizer step.
            lookups: of the batch, from ``start_lookups()``; None: they begin here.
        """
        dtype = self.events.weight.dtype
        found = self.tables(self._features(batch) if lookups is None else lookups)
        embeddings = {name: rows.to(dtype) for name, rows in found.items()}
        offsets = event_offsets = offsets_of(batch.event_lengths)
        of_events = torch.cat([embeddings[name] for name in self.schema.events], dim=1)
        targets = _last_indices(event_offsets, batch.target_lengths, size=batch.num_targets)
        target_embeddings = of_events.index_select(0, targets)
        deep_inputs = (
            self._deep_inputs(target_embeddings, event_offsets, embeddings, batch) if self._has_deep_inputs else None
        )
        rows = pad_rows(of_events, padded_rows(batch.num_events, of_events.device))
        x = self._project(rows, event_offsets, embeddings, batch)
        num_context = len(self.schema.context)
        if num_context > 0:
            of_context = [self.context[f"of_{name}"](embeddings[name]) for name in self.schema.context]
            context = torch.stack(of_context, dim=1).flatten(0, 1)  # (B C, E), sample by sample
            context_offsets = torch.arange(batch.num_samples + 1, device=x.device) * num_context
            x, offsets = ops.jagged_concat(
                [context.to(x.dtype), x[: batch.num_events]], [context_offsets, event_offsets]
            )
            x = pad_rows(x, padded_rows(len(x), x.device))
            targets = _last_indices(offsets, batch.target_lengths, size=batch.num_targets)
        sequences = self._sequences(batch, offsets, seed, step, num_rows=len(x))
        return EncodedTokens(x, sequences, targets, target_embeddings, deep_inputs)

    def _deep_inputs(
        self, of_targets: Tensor, event_offsets: Tensor, embeddings: Mapping[str, Tensor], batch: SampleBatch
    ) -> Tensor:
        in_history = _first_indices(event_offsets, batch.history_lengths, size=batch.num_events - batch.num_targets)
        history = embeddings[self.schema.events[0]].index_select(0, in_history)
        mean = ops.jagged_reduce(history, offsets_of(batch.history_lengths), "mean")
        samples = torch.repeat_interleave(batch.target_lengths, output_size=batch.num_targets)
        return join_deep_inputs(of_targets, [embeddings[name] for name in self.schema.context], mean, samples)

    def _project(
        self, of_events: Tensor, event_offsets: Tensor, embeddings: Mapping[str, Tensor], batch: SampleBatch
    ) -> Tensor:
        """Projects events and their actions in one product, (rows of ``of_events``, E)."""
        if self.actions is None:
            return self.project(of_events, None)
        of_actions = torch.cat([embeddings[name] for name in self.schema.actions], dim=1)
        in_history = _first_indices(event_offsets, batch.history_lengths, size=len(of_actions))
        # Targets and rows of no sample have zeros.
        spread = of_actions.new_zeros(len(of_events), of_actions.shape[1]).index_copy(0, in_history, of_actions)
        return self.project(of_events, spread)

    def project(self, of_events: Tensor, of_actions: Tensor | None) -> Tensor:
        """Returns the tokens of events, (rows, E), from their embeddings, (rows, ...), and those of their actions.

        Args:
            of_actions: zeros for events without a known action; None: the schema has no actions.
        """
        if self.actions is None or of_actions is None:
            projected: Tensor = self.events(of_events)
            return projected
        weight = torch.cat([self.events.weight, self.actions.weight], dim=1)
        return functional.linear(torch.cat([of_events, of_actions], dim=1), weight, self.events.bias)

    def _features(self, batch: SampleBatch) -> dict[str, tuple[Tensor, Tensor]]:
        ones = torch.ones_like(batch.history_lengths)
        lengths = batch.event_lengths
        return {
            **{name: (ids, ones) for name, ids in batch.context.items()},
            **{name: (ids, lengths) for name, ids in batch.events.items()},
            **{name: (ids, batch.history_lengths) for name, ids in batch.actions.items()},
        }

    def _sequences(self, batch: SampleBatch, offsets: Tensor, seed: int, step: int, *, num_rows: int) -> Sequences:
        num_context = len(self.schema.context)
        num_tokens = batch.num_events + num_context * batch.num_samples
        times = dropout_keys = None
        event_times = batch.times if self._has_times else None
        if event_times is not None or self._has_dropout_keys:
            samples = torch.repeat_interleave(offsets.diff(), output_size=num_tokens)
            positions = torch.arange(num_tokens, device=offsets.device) - offsets[samples]
            if event_times is not None:
                has_history = (batch.history_lengths > 0)[samples]
                times = self._token_times(event_times, samples, positions, num_context, has_history)
                times = pad_rows(times, num_rows)
            if self._has_dropout_keys:
                keys = token_keys(batch.sample_ids, samples, positions, seed=seed, step=step)
                dropout_keys = pad_rows(keys, num_rows)
        return Sequences(
            offsets=offsets,
            max_length=batch.max_tokens + num_context,
            num_contextual=torch.full_like(batch.history_lengths, num_context, dtype=torch.int32),
            num_targets=batch.target_lengths.to(torch.int32),
            times=times,
            # A token asks at its own time. At that of its successor, a target would see when the next one was shown,
            # which may tell what the user did with the first.
            query_times=times,
            dropout_keys=dropout_keys,
        )

    @staticmethod
    def _token_times(
        event_times: Tensor, samples: Tensor, positions: Tensor, num_context: int, has_history: Tensor
    ) -> Tensor:
        """Returns the time of each token, (T,).

        Contextual tokens have that of the first event of their history, or 0 without one: the first target's would tell
        other targets when it was shown.
        """
        if num_context == 0:
            return event_times
        events = torch.arange(len(samples), device=samples.device) - (samples + 1) * num_context
        first_event = events + (num_context - positions).clamp(min=0)
        if len(event_times) == 0:
            return torch.zeros_like(samples)
        of_tokens = event_times[first_event.clamp(max=len(event_times) - 1)]
        return torch.where(has_history | (positions >= num_context), of_tokens, 0)


def join_deep_inputs(of_targets: Tensor, context: Sequence[Tensor], history: Tensor, samples: Tensor) -> Tensor:
    """Returns ``EncodedTokens.deep_inputs``.

    Args:
        of_targets: (N, ...) embeddings of the targets.
        context: (B, embedding_dim) of each contextual feature.
        history: (B, embedding_dim) mean of each history.
        samples: (N,) sample of each target.
    """
    of_samples = torch.cat([*context, history], dim=1)
    return torch.cat([of_targets, of_samples.index_select(0, samples)], dim=1)


def _first_indices(offsets: Tensor, counts: Tensor, *, size: int) -> Tensor:
    """Returns the indices of the first ``counts`` tokens of each sample, one sample after the other, (size,).

    ``size`` is the sum of ``counts``. The host knows it, and does not wait for the device to add them up.
    """
    samples = torch.repeat_interleave(counts, output_size=size)
    within = torch.arange(len(samples), device=counts.device) - offsets_of(counts)[samples]
    return offsets[samples] + within


def _last_indices(offsets: Tensor, counts: Tensor, *, size: int) -> Tensor:
    """Returns the indices of the last ``counts`` tokens of each sample, one sample after the other, (size,)."""
    return _first_indices(offsets[1:] - counts, counts, size=size)
