"""Vectors of keys that ranks share out, with duplicates found before the exchange and again at the owner.

A step has three exchanges however many features and tables there are: how many keys go where, the keys with their
counts, and the vectors; and one for gradients, which go back the same way and are added up at each stage in the order
of the ranks and of their batches. So results do not differ from run to run.

G merged tables, R ranks, K keys of a rank, U of them unique, V keys that an owner got, W of them unique, D columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.distributed as dist

from headway import _embedding
from headway._embedding import Deduplicator, Keys, Table, UniqueKeys, Workers
from headway.embedding.key_words import keys_of, tables_of, words_of
from headway.embedding.rank_pieces import by_group, by_rank, splits

Dedup = Literal["none", "first", "second", "both"]


@dataclass
class TrafficCounts:
    """Keys and bytes of this rank since the collection was made; bytes to itself are not counted."""

    keys: int = 0  #: looked up
    keys_routed: int = 0  #: after the first stage
    keys_received: int = 0
    keys_found: int = 0  #: after the second stage: looked up in tables
    id_bytes: int = 0  #: sent, with counts
    vector_bytes: int = 0  #: sent by owners
    gradient_bytes: int = 0  #: sent to owners


@dataclass
class Part:
    """What a lookup has of one merged table."""

    table: Table
    unique: UniqueKeys  #: of this rank's keys
    order_U: torch.Tensor  #: its keys by owner
    counts_R: list[int]  #: of keys for each owner
    received: UniqueKeys | None = None  #: of the keys that this rank owns
    rows_W: torch.Tensor | None = None
    generation: int = -1  #: of the table, when the rows were found


@dataclass(frozen=True)
class Gradient:
    """Of the keys of one lookup that this rank owns."""

    part: Part
    values_WD: torch.Tensor


@dataclass
class Lookup:
    """A batch on its way; its parts are in the order of the tables."""

    parts: list[Part]
    inserts: bool
    counts_RG: torch.Tensor  #: of keys from each rank
    work: dist.Work | None = None
    vectors_UD: list[torch.Tensor] = field(default_factory=list)
    refused: int = 0  #: on all ranks


class ShardedLookup:
    """The tables of this rank, and the way to those of others.

    Args:
        tables: of this rank, the same ones in the same order on all; the caller's list, in which it may put others.
        group: whose ranks share the keys out; None: this rank has all.
        dedup: at which stages duplicates are found.
        workers: for duplicates.
    """

    def __init__(
        self, tables: Sequence[Table], *, group: dist.ProcessGroup | None, dedup: Dedup, workers: Workers
    ) -> None:
        if dedup not in ("none", "first", "second", "both"):
            raise ValueError(f"dedup must be none, first, second or both, not {dedup!r}")
        self.tables = tables
        self.traffic = TrafficCounts()
        self._group = group
        self._num_ranks = 1 if group is None else group.size()
        self._rank = 0 if group is None else group.rank()
        self._dedup = dedup
        self._deduplicator = Deduplicator(workers)

    # Forward

    def begin(self, keys_G: Sequence[Keys], *, inserts: bool) -> Lookup:
        """Finds duplicates and owners, and starts to tell each owner how many keys come; does not wait."""
        parts = []
        for table, keys in zip(self.tables, keys_G, strict=True):
            unique = self._unique(keys, stages=("first", "both"))
            order_U, counts_R = _embedding.route(unique.keys, self._num_ranks)
            parts.append(Part(table, unique, order_U, counts_R))
            self.traffic.keys += len(keys)
            self.traffic.keys_routed += len(unique)
        sent_RG = torch.tensor([part.counts_R for part in parts], dtype=torch.int64).t().contiguous()
        lookup = Lookup(parts, inserts, counts_RG=sent_RG)
        if self._num_ranks > 1:
            lookup.counts_RG = torch.empty_like(sent_RG)
            lookup.work = dist.all_to_all_single(lookup.counts_RG, sent_RG, group=self._group, async_op=True)
        return lookup

    def finish(self, lookup: Lookup) -> None:
        """Fills ``lookup.vectors_UD``: the vectors of each table's unique keys."""
        if lookup.work is not None:
            lookup.work.wait()
            lookup.work = None
        vectors_V, refused_G = [], []
        for part, keys in zip(lookup.parts, self._exchange_keys(lookup), strict=True):
            part.received = self._unique_of_owner(part, keys)
            owned = part.received.keys
            part.rows_W, statuses_W = part.table.find_or_insert(owned) if lookup.inserts else part.table.find(owned)
            part.generation = part.table.generation
            vectors_WD = part.table.gather(owned, part.rows_W)
            is_same = part.received is part.unique
            vectors_V.append(vectors_WD if is_same else self._deduplicator.hand_out(part.received, vectors_WD))
            refused_G.append(float((statuses_W == _embedding.KeyStatus.NO_ROOM.value).sum()))
            self.traffic.keys_received += len(keys)
            self.traffic.keys_found += len(owned)
        lookup.vectors_UD, refused_RG = self._return_values(lookup, vectors_V, torch.tensor(refused_G))
        lookup.refused = int(refused_RG.sum())

    def hand_out(
        self, lookup: Lookup, number: int, offsets: torch.Tensor, weights: torch.Tensor | None
    ) -> torch.Tensor:
        """Sums of vectors of table ``number``, one for each bag of the batch's keys; (B, D)."""
        return self._deduplicator.hand_out(
            lookup.parts[number].unique, lookup.vectors_UD[number], offsets=offsets, weights=weights
        )

    # Backward

    def add_up(
        self,
        lookup: Lookup,
        number: int,
        gradients_BD: torch.Tensor,
        offsets: torch.Tensor,
        weights: torch.Tensor | None,
    ) -> torch.Tensor:
        """Gradients of the unique keys of table ``number``; (U, D)."""
        return self._deduplicator.add_up(lookup.parts[number].unique, gradients_BD, offsets=offsets, weights=weights)

    def return_gradients(self, lookup: Lookup, gradients_UD: Sequence[torch.Tensor | None]) -> list[Gradient | None]:
        """Sends gradients to the owners of their rows, by table; None where no rank has any."""
        values = [
            torch.zeros(len(part.unique), part.table.dim) if gradients is None else gradients
            for part, gradients in zip(lookup.parts, gradients_UD, strict=True)
        ]
        is_there = torch.tensor([float(gradients is not None) for gradients in gradients_UD])
        received, is_there_RG = self._send_values(lookup, values, is_there, kind="gradient_bytes")
        result: list[Gradient | None] = []
        for part, values_VD, is_any in zip(lookup.parts, received, is_there_RG.any(0).tolist(), strict=True):
            assert part.received is not None, "gradients come after vectors"
            is_same = part.received is part.unique
            sums_WD = values_VD if is_same else self._deduplicator.add_up(part.received, values_VD)
            result.append(Gradient(part, sums_WD) if is_any else None)
        return result

    def update(self, table: Table, gradients: Sequence[Gradient], *, lr: float, step: int, divisor: float) -> None:
        """One step of the optimizer with the gradients of one or more lookups of ``table``."""
        part, values_WD = gradients[0].part, gradients[0].values_WD
        assert part.received is not None and part.rows_W is not None, "gradients come after vectors"
        keys, rows_W = part.received.keys, part.rows_W
        is_repeated = len(gradients) > 1 or self._has_duplicates()
        if is_repeated:
            keys, values_WD = self._sum_of(gradients)
        # Rows may have been given up or moved since, and the table may be another one after load().
        if is_repeated or part.table is not table or part.generation != table.generation:
            rows_W, _ = table.find(keys)
        table.update(keys, rows_W, values_WD if divisor == 1 else values_WD / divisor, lr=lr, step=step)

    def _sum_of(self, gradients: Sequence[Gradient]) -> tuple[Keys, torch.Tensor]:
        """Gradients of several lookups of one table, added up so that no key comes twice."""
        keys = [gradient.part.received.keys for gradient in gradients if gradient.part.received is not None]
        unique = self._deduplicator.deduplicate(
            Keys(torch.cat([each.ids for each in keys]), torch.cat([tables_of(each) for each in keys]))
        )
        values = torch.cat([gradient.values_WD for gradient in gradients])
        return unique.keys, self._deduplicator.add_up(unique, values)

    def _has_duplicates(self) -> bool:
        """Whether keys of one batch may come twice at their owner."""
        return self._dedup == "none" or (self._dedup == "first" and self._num_ranks > 1)

    # Exchanges

    def _unique(self, keys: Keys, *, stages: tuple[Dedup, Dedup]) -> UniqueKeys:
        return self._deduplicator.deduplicate(keys) if self._dedup in stages else _embedding.take_as_unique(keys)

    def _received_GR(self, lookup: Lookup) -> list[list[int]]:
        counts: list[list[int]] = lookup.counts_RG.t().tolist()
        return counts

    def _unique_of_owner(self, part: Part, keys: Keys) -> UniqueKeys:
        if self._num_ranks == 1 and self._dedup in ("first", "both"):
            return part.unique  # There are no others that the keys could be repeated by.
        return self._unique(keys, stages=("second", "both"))

    def _exchange_keys(self, lookup: Lookup) -> list[Keys]:
        """The keys of each table that this rank owns, with their counts, rank by rank."""
        if self._num_ranks == 1:
            return [part.unique.keys for part in lookup.parts]
        messages = [torch.stack((part.unique.keys.ids, words_of(part.unique.keys)), 1) for part in lookup.parts]
        received, _ = self._send_values(lookup, messages, torch.empty(0, dtype=torch.int64), kind="id_bytes")
        return [keys_of(message[:, 0], message[:, 1]) for message in received]

    def _send_values(
        self,
        lookup: Lookup,
        values_U: Sequence[torch.Tensor],
        notes: torch.Tensor,
        *,
        kind: Literal["id_bytes", "gradient_bytes"],
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """What owners get of this rank's unique keys, and this rank as an owner from all."""
        if self._num_ranks == 1:
            return list(values_U), notes.unsqueeze(0)
        routed = [values[part.order_U] for part, values in zip(lookup.parts, values_U, strict=True)]
        sent_GR = [part.counts_R for part in lookup.parts]
        return self._exchange_values(routed, sent_GR, self._received_GR(lookup), notes, kind=kind)

    def _return_values(
        self, lookup: Lookup, values_V: Sequence[torch.Tensor], notes: torch.Tensor
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """What owners have for this rank's unique keys."""
        if self._num_ranks == 1:
            return list(values_V), notes.unsqueeze(0)
        sent_GR = [part.counts_R for part in lookup.parts]
        routed_U, notes_RN = self._exchange_values(
            values_V, self._received_GR(lookup), sent_GR, notes, kind="vector_bytes"
        )
        values_U = []
        for part, routed in zip(lookup.parts, routed_U, strict=True):
            values = torch.empty_like(routed)
            values[part.order_U] = routed
            values_U.append(values)
        return values_U, notes_RN

    def _exchange_values(
        self,
        values_G: Sequence[torch.Tensor],
        sent_GR: Sequence[Sequence[int]],
        received_GR: Sequence[Sequence[int]],
        notes: torch.Tensor,
        *,
        kind: Literal["id_bytes", "vector_bytes", "gradient_bytes"],
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Sends rows of each table's values, rank by rank, all tables in one exchange.

        Args:
            notes: (N,) of the same type, for all ranks.
        Returns:
            the values of each table, and (R, N) the notes of all ranks.
        """
        one_each = [1] * self._num_ranks
        sent_GR, received_GR = [one_each, *sent_GR], [one_each, *received_GR]
        widths = [notes.numel(), *(values.size(1) for values in values_G)]
        send = by_rank([notes.expand(self._num_ranks, -1), *values_G], sent_GR)
        send_splits, receive_splits = splits(sent_GR, widths), splits(received_GR, widths)
        receive = send.new_empty(sum(receive_splits))
        dist.all_to_all_single(receive, send, receive_splits, send_splits, group=self._group)
        sent = (send.numel() - send_splits[self._rank]) - notes.numel() * (self._num_ranks - 1)
        setattr(self.traffic, kind, getattr(self.traffic, kind) + sent * send.element_size())
        notes_RN, *values = by_group(receive, received_GR, widths)
        return values, notes_RN
