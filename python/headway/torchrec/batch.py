# SPDX-License-Identifier: Apache-2.0
"""A batch of ids: deduplicated, sorted by owner, and kept until the rows of its keys are updated.

Idea: all features of one merged table are concatenated. A key is a table id and an id. Each unique key is sent to
its owner once, with its number of lookups; the mapping from bags to unique keys stays on this rank. By that mapping,
embeddings of unique keys are expanded to bags, and gradients of bags are reduced to unique keys.

Example: this rank's batch has the bags [7, 3] and [7] of one feature. Unique keys: 3 (count 1) and 7 (count 2).
  If rank 0 owns 3 and rank 1 owns 7, this rank sends one key to each. The sum-pooled outputs are e7 + e3 and e7; the
  gradient of 7 is the sum of both bags' gradients.

Invariants: with several ranks unique keys are sorted by owner, so (U, D) tensors are sent without a permutation.
Counts are exact. Sums have a fixed order, so each run gives the same bits. Per-id weights stay on this rank.
On CUDA only the device knows U at first. With several ranks the host learns it from the exchange of key counts; with
one rank it never does. As long as the host does not know U, (U, D) tensors have K rows, of which the first U are valid.
Complexity: O(K) per batch for the deduplication, O(K D) for expanding and reducing.
Source: MTGRBoost, section 4.3 (first of its two deduplication stages; ``RequestedKeys.unique()`` is the second).

Suffixes of names give shapes: G merged tables, R ranks, F features of a merged table, K ids, U unique keys, V keys that
a rank was asked for, B bags, D columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torchrec import KeyedJaggedTensor

from headway._embedding import Deduplicator, FeatureJoiner, ThreadPool, UniqueKeys, keys_of, messages_of
from headway.embedding.adjacent_rows import join_rows
from headway.embedding.bag_weights import scaled_weights
from headway.embedding.config import Pooling
from headway.embedding.devices import place_name
from headway.embedding.merging import table_id_of
from headway.embedding.split_counts import SplitCounts
from headway.torchrec.kernel import OwnerLookup
from headway.torchrec.stream_references import StreamReferences


@dataclass(frozen=True)
class MergedFeatures:
    """The features of one merged table (TorchRec: ``GroupedEmbeddingConfig``), in TorchRec's order."""

    tables: tuple[str, ...]  #: Table of each of the F features.
    dim: int
    pooling: Pooling
    weighted: bool

    @property
    def num_features(self) -> int:
        return len(self.tables)


@dataclass
class TableBatch:
    """The part of a batch that is looked up in one merged table."""

    unique: UniqueKeys  #: With several ranks, sorted by owner.
    offsets: torch.Tensor | None  #: (B + 1,) bounds of the bags; None: each id is a bag.
    weights_K: torch.Tensor | None
    outputs: list[int]  #: Number of bags of each output. Pooled features share one; sequences have one each.
    lookup: OwnerLookup | None = None  #: Lookup of the keys that this rank was asked for.

    def found(self) -> OwnerLookup:
        """Returns the lookup. Call it only after the keys were looked up."""
        assert self.lookup is not None, "keys are looked up before"
        return self.lookup

    def split(self, embeddings_BD: torch.Tensor) -> Sequence[torch.Tensor]:
        """Splits the embeddings of all bags by output."""
        return embeddings_BD.split_with_sizes(self.outputs) if len(self.outputs) > 1 else [embeddings_BD]

    def join(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """Joins the gradients of all outputs to (B, D). Copies nothing if they are adjacent in memory."""
        if len(gradients) == 1:
            return gradients[0].contiguous()
        joined_BD = join_rows(gradients, self.outputs, dim=gradients[0].size(1))
        assert joined_BD is not None, "each output has a gradient"
        return joined_BD


@dataclass(eq=False)
class Batch:
    """A batch of ids. It lives from the exchange of ids until the rows of this rank are updated."""

    table_batches: list[TableBatch]  #: One for each merged table.
    deduplicator: Deduplicator
    stream: torch.cuda.Stream | None  #: Stream on which the batch was made; None: CPU.
    references: StreamReferences
    counts: SplitCounts | None  #: Exchange of key counts; None: one rank, or the counts have arrived.
    #: (G, R) int64 on the CPU: the number of keys that this rank sends to each owner.
    sent_GR: torch.Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.int64))
    #: (G, R): the number of keys that each rank asks this rank for.
    received_GR: torch.Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.int64))

    def take_counts(self) -> None:
        """Waits for the key counts. The host knows U afterwards."""
        if self.counts is None:
            return
        self.sent_GR, self.received_GR = self.counts.wait()
        for table_batch, num_sent in zip(self.table_batches, self.sent_GR.sum(1).tolist(), strict=True):
            table_batch.unique = table_batch.unique.narrow(num_sent)
        self.counts = None

    def messages(self) -> list[torch.Tensor]:
        """Encodes the unique keys of each merged table as (U, 2) int64, sorted by owner."""
        return [messages_of(table_batch.unique.keys) for table_batch in self.table_batches]

    def expand(self, index: int, embeddings_UD: torch.Tensor) -> torch.Tensor:
        """Expands the embeddings of unique keys, (U, D), to bags, (B, D)."""
        table_batch = self.table_batches[index]
        result = self.deduplicator.expand(
            table_batch.unique, embeddings_UD, offsets=table_batch.offsets, weights=table_batch.weights_K
        )
        self.keep()
        return result

    def reduce(self, index: int, gradients_BD: torch.Tensor, *, scale: float) -> torch.Tensor:
        """Reduces the gradients of bags, (B, D), to unique keys, (U, D), and multiplies them by ``scale``."""
        table_batch = self.table_batches[index]
        weights_K = scaled_weights(table_batch.weights_K, scale, table_batch.unique)
        sums_UD = self.deduplicator.reduce(
            table_batch.unique, gradients_BD, offsets=table_batch.offsets, weights=weights_K
        )
        self.keep()
        return sums_UD

    def join(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Joins the gradients of all outputs of all tables: (B, D) for each table."""
        rest = iter(gradients)
        return [table_batch.join([next(rest) for _ in table_batch.outputs]) for table_batch in self.table_batches]

    def keep(self) -> None:
        """Keeps the tensors alive until the current stream has used them.

        Pipelines make a batch on one stream and use it on another.
        """
        if self.stream is not None and self.stream != torch.cuda.current_stream(self.stream.device):
            self.references.keep(self.table_batches)


class RequestedKeys(KeyedJaggedTensor):  # type: ignore[misc]
    """The keys that all ranks ask this rank for. To TorchRec it is a ``KeyedJaggedTensor`` without ids.

    Args:
        batch: this rank's own batch.
        messages_G: (V, 2) int64 for each merged table, the encoded keys, rank by rank; None: there is one rank, and its
            keys are in the batch.
        nothing: (G,) int64 zeros, the lengths of the empty ``KeyedJaggedTensor``.
    """

    def __init__(self, batch: Batch, messages_G: Sequence[torch.Tensor] | None, nothing: torch.Tensor) -> None:
        sizes = [0] * len(batch.table_batches)
        names = [f"group_{index}" for index in range(len(sizes))]
        super().__init__(names, nothing[:0], lengths=nothing, stride=1, length_per_key=sizes)
        self.batch, self._messages_G = batch, messages_G

    def unique(self) -> list[UniqueKeys]:
        """Returns the unique keys of each merged table."""
        if self._messages_G is None:
            return [table_batch.unique for table_batch in self.batch.table_batches]
        return [self.batch.deduplicator.deduplicate(keys_of(messages)) for messages in self._messages_G]

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Also records the use of the messages, which are not among the tensors that TorchRec sees."""
        super().record_stream(stream)
        for messages in self._messages_G or ():
            messages.record_stream(stream)


class BatchMaker:
    """Makes batches: concatenates features, deduplicates their keys, and sorts them by owner.

    Args:
        features_of: the features of each merged table.
        group: the ranks among which the keys are divided.
        thread_pool: threads of the deduplication on the CPU.
        device: device of ids and all other tensors.
    """

    def __init__(
        self,
        features_of: Sequence[MergedFeatures],
        group: dist.ProcessGroup,
        thread_pool: ThreadPool,
        device: torch.device,
    ) -> None:
        self._features_of = features_of
        self._group = group
        self._device = device
        self._joiners = [
            FeatureJoiner(
                names=[f"{index} of table {table}" for index, table in enumerate(each.tables)],
                tables=[table_id_of(table) for table in each.tables],
                poolings=[each.pooling] * each.num_features,
                device=device,
            )
            for each in features_of
        ]
        self._deduplicator = Deduplicator(thread_pool, device)
        self._references = StreamReferences()
        self._stream: torch.cuda.Stream | None = None  #: Copies key counts to the host; None: CPU or one rank.
        if device.type == "cuda" and group.size() > 1:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def make(self, features: KeyedJaggedTensor) -> Batch:
        """Makes a batch and, with several ranks, starts the exchange of key counts.

        It does not wait for the device if ``features`` already knows its ``length_per_key()``.

        Args:
            features: the features of all merged tables, one table after the other. All 64 bits of an id count.
        Raises:
            ValueError: ids are not int64 or int32, are on another device, or weights are missing.
        """
        ids = features.values()
        if ids.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"ids must be int64 or int32, not {ids.dtype}")
        if ids.device != self._device:
            raise ValueError(f"ids must be on {place_name(self._device)}, not on {place_name(ids.device)}")
        table_batches, counts_GR, first = [], [], 0
        ids_F = ids.split_with_sizes(features.length_per_key())
        lengths_F = features.lengths().split_with_sizes(features.stride_per_key())
        for merged, joiner in zip(self._features_of, self._joiners, strict=True):
            place = slice(first, first + merged.num_features)
            weights_F = _weights_of(features)[place] if merged.weighted else [None] * merged.num_features
            joined = joiner.join(ids_F[place], lengths_F[place], weights_F)
            outputs = joined.num_bags if merged.pooling is None else [sum(joined.num_bags)]
            table_batch = TableBatch(
                self._deduplicator.deduplicate(joined.keys), joined.offsets, joined.weights, outputs
            )
            if self._group.size() > 1:
                table_batch.unique, counts_R = self._deduplicator.sort_by_owner(table_batch.unique, self._group.size())
                counts_GR.append(counts_R)
            table_batches.append(table_batch)
            first = place.stop
        stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        counts = SplitCounts(counts_GR, self._group, self._stream) if counts_GR else None
        return Batch(table_batches, self._deduplicator, stream, self._references, counts)


def _weights_of(features: KeyedJaggedTensor) -> Sequence[torch.Tensor]:
    """Returns the per-id weights of each feature.

    Raises:
        ValueError: there are none.
    """
    weights = features.weights_or_none()
    if weights is None:
        raise ValueError("the collection is weighted, but its input has no weights")
    weights_F: Sequence[torch.Tensor] = weights.detach().split_with_sizes(features.length_per_key())
    return weights_F
