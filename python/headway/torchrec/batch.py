"""A batch of ids: unique keys with their counts, how they came about, and how they get to their owners and back.

On CUDA the host learns U when it learns how many keys other ranks ask for, and with one rank never.

G groups of merged tables, R ranks, F features of a group, K ids, U unique keys, V keys that a rank was asked for, B
bags, D columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torchrec import KeyedJaggedTensor

from headway._embedding import Deduplicator, FeatureJoiner, UniqueKeys, Workers
from headway.embedding.bag_weights import scaled_weights
from headway.embedding.config import Pooling
from headway.embedding.devices import place_name
from headway.embedding.key_words import keys_of, messages_of
from headway.embedding.merging import table_number
from headway.embedding.rank_pieces import join_rows
from headway.embedding.split_counts import SplitCounts
from headway.torchrec.kept import KeptTensors
from headway.torchrec.kernel import Lookup


@dataclass(frozen=True)
class GroupFeatures:
    """The features of one group, in TorchRec's order."""

    tables: tuple[str, ...]  #: (F) the table of each
    dim: int
    pooling: Pooling
    weighted: bool

    @property
    def num_features(self) -> int:
        return len(self.tables)


@dataclass
class Part:
    """What a batch has of one group."""

    unique: UniqueKeys  #: where there are several ranks, by owner
    offsets: torch.Tensor | None  #: (B + 1,) of bags; None: each id is one
    weights_K: torch.Tensor | None
    outputs: list[int]  #: bags of what is handed out: of each feature, where ids are bags, else of all of them
    lookup: Lookup | None = None  #: of the keys that this rank was asked for

    def found(self) -> Lookup:
        assert self.lookup is not None, "keys are looked up before"
        return self.lookup

    def split(self, vectors_BD: torch.Tensor) -> Sequence[torch.Tensor]:
        """By output."""
        return vectors_BD.split_with_sizes(self.outputs) if len(self.outputs) > 1 else [vectors_BD]

    def join(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """(B, D): the reverse; copies nothing where outputs lie one after the other."""
        if len(gradients) == 1:
            return gradients[0].contiguous()
        joined_BD = join_rows(gradients, self.outputs, dim=gradients[0].size(1))
        assert joined_BD is not None, "each output has a gradient"
        return joined_BD


@dataclass(eq=False)
class Batch:
    """Kept from the exchange of ids until the rows of this rank have learned."""

    parts: list[Part]
    deduplicator: Deduplicator
    stream: torch.cuda.Stream | None  #: on which it was made; None: on the CPU
    kept: KeptTensors
    counts: SplitCounts | None  #: on their way; None: they are there
    sent_GR: list[list[int]] = field(default_factory=list)  #: keys of this rank for each owner
    received_GR: list[list[int]] = field(default_factory=list)  #: keys that this rank was asked for, by each rank

    def take_counts(self) -> None:
        """Waits until it is known how many keys go where."""
        if self.counts is None:
            return
        self.sent_GR, self.received_GR = self.counts.wait()
        for part, sent_R in zip(self.parts, self.sent_GR, strict=True):
            part.unique = part.unique.narrow(sum(sent_R))
        self.counts = None

    def messages(self) -> list[torch.Tensor]:
        """For each group (U, 2) int64: ids and words, by owner."""
        return [messages_of(part.unique.keys) for part in self.parts]

    def hand_out(self, number: int, vectors_UD: torch.Tensor) -> torch.Tensor:
        """(B, D) of the vectors of unique keys."""
        part = self.parts[number]
        result = self.deduplicator.hand_out(part.unique, vectors_UD, offsets=part.offsets, weights=part.weights_K)
        self.keep()
        return result

    def add_up(self, number: int, gradients_BD: torch.Tensor, *, scale: float) -> torch.Tensor:
        """(U, D): sums of gradients times ``scale``, by owner."""
        part = self.parts[number]
        weights_K = scaled_weights(part.weights_K, scale, part.unique)
        sums_UD = self.deduplicator.add_up(part.unique, gradients_BD, offsets=part.offsets, weights=weights_K)
        self.keep()
        return sums_UD

    def join(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """(B, D) for each part, of the gradients of all outputs."""
        rest = iter(gradients)
        return [part.join([next(rest) for _ in part.outputs]) for part in self.parts]

    def keep(self) -> None:
        """Until the current stream has used it: pipelines make a batch on another stream than they use it on."""
        if self.stream is not None and self.stream != torch.cuda.current_stream(self.stream.device):
            self.kept.keep(self.parts)


class AskedKeys(KeyedJaggedTensor):  # type: ignore[misc]
    """What this rank is asked for by all ranks. It has no ids as TorchRec sees them.

    Args:
        batch: what this rank asks for.
        messages_G: (V, 2) int64 of each group, rank by rank; None: the batch is all, as there is one rank.
        nothing: (G) int64 zeros.
    """

    def __init__(self, batch: Batch, messages_G: Sequence[torch.Tensor] | None, nothing: torch.Tensor) -> None:
        sizes = [0] * len(batch.parts)
        names = [f"group_{number}" for number in range(len(sizes))]
        super().__init__(names, nothing[:0], lengths=nothing, stride=1, length_per_key=sizes)
        self.batch, self._messages_G = batch, messages_G

    def unique(self) -> list[UniqueKeys]:
        """Those of each group, each once."""
        if self._messages_G is None:
            return [part.unique for part in self.batch.parts]
        return [self.batch.deduplicator.deduplicate(keys_of(messages)) for messages in self._messages_G]

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        super().record_stream(stream)
        for messages in self._messages_G or ():
            messages.record_stream(stream)


class BatchMaker:
    """Finds duplicates and owners of ids.

    Args:
        groups: what features there are.
        group: whose ranks share the ids out.
        workers: for duplicates on the CPU.
        device: of ids and all else.
    """

    def __init__(
        self, groups: Sequence[GroupFeatures], group: dist.ProcessGroup, workers: Workers, device: torch.device
    ) -> None:
        self._groups = groups
        self._group = group
        self._device = device
        self._joiners = [
            FeatureJoiner(
                names=[f"{number} of table {table}" for number, table in enumerate(each.tables)],
                tables=[table_number(table) for table in each.tables],
                poolings=[each.pooling] * each.num_features,
                device=device,
            )
            for each in groups
        ]
        self._deduplicator = Deduplicator(workers, device)
        self._kept = KeptTensors()
        self._stream: torch.cuda.Stream | None = None  #: for counts
        if device.type == "cuda" and group.size() > 1:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def make(self, features: KeyedJaggedTensor) -> Batch:
        """Begins a batch, and to tell owners how many keys come. Waits for nothing, if the lengths per key are known.

        Args:
            features: those of all groups, one group after the other; ids are taken with all their 64 bits.
        Raises:
            ValueError: ids are no integers or on another device, or weights are missing.
        """
        ids = features.values()
        if ids.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"ids must be int64 or int32, not {ids.dtype}")
        if ids.device != self._device:
            raise ValueError(f"ids must be on {place_name(self._device)}, not on {place_name(ids.device)}")
        parts, counts_GR, first = [], [], 0
        ids_F = ids.split_with_sizes(features.length_per_key())
        lengths_F = features.lengths().split_with_sizes(features.stride_per_key())
        for group, joiner in zip(self._groups, self._joiners, strict=True):
            place = slice(first, first + group.num_features)
            weights_F = _weights_of(features)[place] if group.weighted else [None] * group.num_features
            joined = joiner.join(ids_F[place], lengths_F[place], weights_F)
            outputs = joined.num_bags if group.pooling is None else [sum(joined.num_bags)]
            part = Part(self._deduplicator.deduplicate(joined.keys), joined.offsets, joined.weights, outputs)
            if self._group.size() > 1:
                part.unique, counts_R = self._deduplicator.sort_by_owner(part.unique, self._group.size())
                counts_GR.append(counts_R)
            parts.append(part)
            first = place.stop
        stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        counts = SplitCounts(counts_GR, self._group, self._stream) if counts_GR else None
        return Batch(parts, self._deduplicator, stream, self._kept, counts)


def _weights_of(features: KeyedJaggedTensor) -> Sequence[torch.Tensor]:
    """Of ids, by feature."""
    weights = features.weights_or_none()
    if weights is None:
        raise ValueError("the collection is weighted, but its input has no weights")
    weights_F: Sequence[torch.Tensor] = weights.detach().split_with_sizes(features.length_per_key())
    return weights_F
