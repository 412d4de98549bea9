"""A batch of ids on its way to its owners: unique keys with their counts, and how they came about.

G groups of merged tables, R ranks, F features of a group, K ids, U unique keys, B bags, D columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torchrec import KeyedJaggedTensor

from headway import _embedding
from headway._embedding import Deduplicator, Keys, UniqueKeys
from headway.embedding.config import Pooling
from headway.embedding.key_words import keys_of, words_of
from headway.embedding.merging import table_numbers
from headway.embedding.rank_pieces import by_rank


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


@dataclass(frozen=True)
class Part:
    """What a batch has of one group."""

    unique: UniqueKeys
    order_U: torch.Tensor  #: its keys by owner
    counts_R: list[int]  #: of keys for each owner
    offsets: torch.Tensor | None  #: (B + 1,) of bags; None: each id is one
    weights_K: torch.Tensor | None


@dataclass(eq=False)
class Batch:
    """Kept from the exchange of ids until the gradients of their vectors are sent."""

    parts: list[Part]
    deduplicator: Deduplicator
    received_GR: list[list[int]] = field(default_factory=list)  #: keys that this rank was asked for, by each rank

    @property
    def counts_GR(self) -> list[list[int]]:
        return [part.counts_R for part in self.parts]

    def hand_out(self, number: int, routed_UD: torch.Tensor) -> torch.Tensor:
        """(B, D) of vectors in the order in which owners sent them."""
        part = self.parts[number]
        vectors_UD = torch.empty_like(routed_UD)
        vectors_UD[part.order_U] = routed_UD
        return self.deduplicator.hand_out(part.unique, vectors_UD, offsets=part.offsets, weights=part.weights_K)

    def add_up(self, number: int, gradients_BD: torch.Tensor) -> torch.Tensor:
        """(U, D) of gradients in the order in which they go to owners."""
        part = self.parts[number]
        sums_UD = self.deduplicator.add_up(
            part.unique, gradients_BD.contiguous(), offsets=part.offsets, weights=part.weights_K
        )
        return sums_UD[part.order_U]

    def to_exchange(self, num_ranks: int) -> KeyedJaggedTensor:
        """What TorchRec exchanges: for each owner a list of each group's ids, with table and count as weights."""
        names = [f"group_{number}" for number in range(len(self.parts))]
        lengths = [count for rank in zip(*self.counts_GR, strict=True) for count in rank]
        return KeyedJaggedTensor(
            keys=names * num_ranks,
            values=self._by_rank([part.unique.keys.ids for part in self.parts]),
            weights=self._by_rank([words_of(part.unique.keys) for part in self.parts]).view(torch.float64),
            lengths=torch.tensor(lengths, dtype=torch.int64),
            stride=1,
            length_per_key=lengths,
        )

    def _by_rank(self, columns_G: Sequence[torch.Tensor]) -> torch.Tensor:
        routed_G = [column[part.order_U] for column, part in zip(columns_G, self.parts, strict=True)]
        return by_rank(routed_G, self.counts_GR)


def make_batch(
    features: KeyedJaggedTensor, groups: Sequence[GroupFeatures], num_ranks: int, deduplicator: Deduplicator
) -> Batch:
    """Finds duplicates and owners.

    Args:
        features: those of all groups, one group after the other; ids are taken with all their 64 bits.
    Raises:
        ValueError: ids are no integers, or weights are missing or want gradients.
    """
    ids = features.values()
    if ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"ids must be int64 or int32, not {ids.dtype}")
    parts, first = [], 0
    lengths_F = torch.split(features.lengths().to(torch.int64), features.stride_per_key())
    for group in groups:
        end = first + group.num_features
        begin_id, end_id = features.offset_per_key()[first], features.offset_per_key()[end]
        keys = _keys_of(ids[begin_id:end_id], group, features.length_per_key()[first:end])
        unique = deduplicator.deduplicate(keys)
        order_U, counts_R = _embedding.route(unique.keys, num_ranks)
        offsets, weights_K = None, None
        if group.pooling is not None:
            lengths = torch.cat(lengths_F[first:end])
            offsets = torch.cat((lengths.new_zeros(1), lengths)).cumsum(0)
            weights_K = _weights(features, group, lengths, slice(begin_id, end_id))
        parts.append(Part(unique, order_U, counts_R, offsets, weights_K))
        first = end
    return Batch(parts, deduplicator)


def _keys_of(ids_K: torch.Tensor, group: GroupFeatures, sizes_F: Sequence[int]) -> Keys:
    tables_K = table_numbers(group.tables).repeat_interleave(torch.tensor(sizes_F, dtype=torch.int64))
    return Keys(ids_K.to(torch.int64).contiguous(), tables_K)


def _weights(
    features: KeyedJaggedTensor, group: GroupFeatures, lengths_B: torch.Tensor, part: slice
) -> torch.Tensor | None:
    if group.pooling == "mean":
        return (1.0 / lengths_B).to(torch.float32).repeat_interleave(lengths_B)
    if not group.weighted:
        return None
    weights = features.weights_or_none()
    if weights is None:
        raise ValueError("the collection is weighted, but its input has no weights")
    if weights.requires_grad:
        raise ValueError("weights of ids get no gradient from dynamic tables: detach them")
    result: torch.Tensor = weights[part].to(torch.float32).contiguous()
    return result


def unpack(features: KeyedJaggedTensor) -> Keys:
    """The keys of one group as their owner receives them, from all ranks."""
    words: torch.Tensor = features.weights().contiguous().view(torch.int64)
    return keys_of(features.values(), words)
