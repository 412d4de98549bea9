"""Vectors of keys that ranks share out, with duplicates found before the exchange and again at the owner.

A step has three exchanges however many features and tables there are: how many keys go where, the keys with their
counts, and the vectors; and one for gradients, which go back the same way and are added up at each stage in the order
of the ranks and of their batches. So results do not differ from run to run.

With several ranks unique keys are in the order of their owners, rank by rank, so that what is (U, D) travels as it is.
On CUDA the host learns U when it learns how many keys come from other ranks, and W never: with one rank it waits for
nothing. Until then what is (U, D) or (W, D) here has a row for each of the K or V keys, the first of which are set.

G merged tables, R ranks, K keys of a rank, U of them unique, V keys that an owner got, W of them unique, D columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.distributed as dist

from headway import _embedding
from headway._embedding import Deduplicator, Keys, Table, UniqueKeys, Workers
from headway.embedding.devices import tensor_on
from headway.embedding.gradient import BagGradients, Gradient, divided, join_gradients
from headway.embedding.key_words import keys_of, messages_of, tables_of
from headway.embedding.lookup import FoundRows, Lookup, Part
from headway.embedding.rank_pieces import all_to_all_arguments, by_group
from headway.embedding.split_counts import SplitCounts
from headway.embedding.traffic import TrafficCounts, TrafficName, number_of

Dedup = Literal["none", "first", "second", "both"]


class ShardedLookup:
    """The tables of this rank, and the way to those of others.

    Args:
        tables: of this rank, the same ones in the same order on all; the caller's list, in which it may put others.
        group: whose ranks share the keys out; None: this rank has all.
        dedup: at which stages duplicates are found.
        workers: for duplicates.
        device: of the tables and all tensors.
        counts_refused: whether a lookup says how many keys got no row.
        hides_unknown: whether each table gives zeros for keys without a row in an evaluation.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        group: dist.ProcessGroup | None,
        dedup: Dedup,
        workers: Workers,
        device: torch.device,
        counts_refused: bool,
        hides_unknown: Sequence[bool],
    ) -> None:
        if dedup not in ("none", "first", "second", "both"):
            raise ValueError(f"dedup must be none, first, second or both, not {dedup!r}")
        self.tables = tables
        self.traffic = TrafficCounts()
        self._group = group
        self._num_ranks = 1 if group is None else group.size()
        self._rank = 0 if group is None else group.rank()
        self._dedup = dedup
        self._device = device
        self._counts_refused = counts_refused
        self._hides_unknown = hides_unknown
        self._deduplicator = Deduplicator(workers, device)
        self._stream: torch.cuda.Stream | None = None  #: for counts
        if device.type == "cuda" and self._num_ranks > 1:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    # Forward

    def begin(self, keys_G: Sequence[Keys], *, inserts: bool, evaluates: bool) -> Lookup:
        """Finds duplicates and owners, and starts to tell each owner how many keys come; does not wait."""
        assert len(keys_G) == len(self.tables), "keys of each table"
        parts, counts_GR = [], []
        for keys in keys_G:
            part = Part(self._unique(keys, stages=("first", "both")))
            if self._num_ranks > 1:
                part.unique, counts_R = self._deduplicator.sort_by_owner(part.unique, self._num_ranks)
                counts_GR.append(counts_R)
            parts.append(part)
            self.traffic.add("keys", len(keys))
            self.traffic.add("keys_routed", number_of(part.unique.keys))
        counts = SplitCounts(counts_GR, self._group, self._stream) if self._num_ranks > 1 else None
        return Lookup(parts, inserts, evaluates, counts)

    def finish(self, lookup: Lookup) -> None:
        """Fills ``lookup.vectors_UD``: the vectors of each table's unique keys, unless they can stay in their rows."""
        self._take_counts(lookup)
        vectors_V, refused_G = [], []
        for part, table, keys, hides_unknown in zip(
            lookup.parts, self.tables, self._exchange_keys(lookup), self._hides_unknown, strict=True
        ):
            part.received = self._unique_of_owner(part, keys)
            owned = part.received.keys
            rows_W, statuses_W = table.find_or_insert(owned) if lookup.inserts else table.find(owned)
            part.found = FoundRows(table, rows_W, table.generation)
            part.known_W = rows_W != 0 if lookup.evaluates and hides_unknown else None
            if not self._are_in_rows(part):
                vectors_V.append(table.gather_bags(part.received, rows_W, weights=_weights_of_known(part)))
            if self._counts_refused:
                refused_G.append((statuses_W == _embedding.KeyStatus.NO_ROOM.value).sum())
            self.traffic.add("keys_received", number_of(keys))
            self.traffic.add("keys_found", number_of(owned))
        refused = torch.stack(refused_G).to(torch.float32) if self._counts_refused else None
        lookup.vectors_UD, lookup.refused = self._return_values(lookup, vectors_V, refused)

    def _take_counts(self, lookup: Lookup) -> None:
        """Waits for the counts, if there are other ranks: U is known from here on."""
        if lookup.counts is None:
            return
        sent_GR, received_GR = lookup.counts.wait()
        for part, sent_R, received_R in zip(lookup.parts, sent_GR, received_GR, strict=True):
            part.sent_R, part.received_R = sent_R, received_R
            part.unique = part.unique.narrow(sum(sent_R))
        lookup.counts = None

    def hand_out(
        self, lookup: Lookup, number: int, offsets: torch.Tensor | None, weights: torch.Tensor | None
    ) -> torch.Tensor:
        """Sums of vectors of table ``number``, one for each bag of the batch's keys; (B, D).

        Without ``offsets`` each key is a bag; likewise below.

        Raises:
            RuntimeError: vectors are read from rows, which have changed since ``finish()``; likewise below.
        """
        part = lookup.parts[number]
        if self._are_in_rows(part):
            rows_W = self._rows_to_read(part, number)
            return self.tables[number].gather_bags(
                part.unique, rows_W, offsets=offsets, weights=_weights_of_known(part, weights)
            )
        return self._deduplicator.hand_out(part.unique, lookup.vectors_UD[number], offsets=offsets, weights=weights)

    def vectors(self, lookup: Lookup, number: int) -> torch.Tensor:
        """(U, D): those of the unique keys of table ``number``."""
        part = lookup.parts[number]
        if self._are_in_rows(part):
            vectors_UD = self.tables[number].gather(part.unique.keys, self._rows_to_read(part, number))
            return vectors_UD if part.known_W is None else vectors_UD * part.known_W.unsqueeze(1)
        return lookup.vectors_UD[number]

    def _rows_to_read(self, part: Part, number: int) -> torch.Tensor:
        assert part.found is not None, "finish() has found rows"
        if not part.found.are_of(self.tables[number]):
            raise RuntimeError("rows of a table were given up, moved or replaced between a lookup and its vectors")
        return part.found.rows_W

    def _are_in_rows(self, part: Part) -> bool:
        """Vectors need not be copied, as nobody else has any."""
        return part.received is part.unique and self._num_ranks == 1

    # Backward

    def return_gradients(
        self, lookup: Lookup, bags_G: Sequence[BagGradients | None], *, may_wait: bool
    ) -> tuple[list[Gradient | None], list[torch.Tensor | None]]:
        """Sends gradients to the owners of their rows, by table.

        On CUDA, where only the device knows whether other ranks have any, no keys are known if there is none.

        Returns:
            what this rank owns, None where no rank has any; and what it sent, (U, D), None where it has none or there
            are no others.
        """
        result: list[Gradient | None] = []
        if all(self._are_in_rows(part) for part in lookup.parts):
            for part, bags in zip(lookup.parts, bags_G, strict=True):
                result.append(
                    Gradient(part, part.unique.keys, part.unique, bags, self._deduplicator, may_wait=may_wait)
                    if bags
                    else None
                )
            return result, [None] * len(result)
        sums_UD = [
            None
            if bags is None
            else self._deduplicator.add_up(part.unique, bags.values_BD, offsets=bags.offsets, weights=bags.weights)
            for part, bags in zip(lookup.parts, bags_G, strict=True)
        ]
        received, are_any = self._send_gradients(lookup, sums_UD)
        for part, values_VD, is_any in zip(lookup.parts, received, are_any, strict=True):
            assert part.received is not None, "gradients come after vectors"
            if values_VD is None or is_any is False:
                result.append(None)
                continue
            keys = part.received.keys if is_any is True else _known_if(is_any, part.received.keys)
            bags = BagGradients(values_VD)
            result.append(Gradient(part, keys, part.received, bags, self._deduplicator, may_wait=may_wait))
        return result, sums_UD if self._num_ranks > 1 else [None] * len(result)

    def _send_gradients(
        self, lookup: Lookup, gradients_UD: Sequence[torch.Tensor | None]
    ) -> tuple[Sequence[torch.Tensor | None], Sequence[bool | torch.Tensor]]:
        """What owners get, and whether any rank has some; zeros stand for what a rank has not."""
        if self._num_ranks == 1:
            return gradients_UD, [gradients is not None for gradients in gradients_UD]
        values = [
            torch.zeros(len(part.unique), table.dim, device=self._device) if gradients is None else gradients
            for part, table, gradients in zip(lookup.parts, self.tables, gradients_UD, strict=True)
        ]
        is_there = tensor_on(self._device, [gradients is not None for gradients in gradients_UD], torch.float32)
        received, is_there_RG = self._send_values(lookup, values, is_there, kind="gradient_bytes")
        assert is_there_RG is not None, "they were sent"
        is_any_G = is_there_RG.any(0)
        return received, is_any_G.tolist() if self._device.type == "cpu" else list(is_any_G)

    def update(
        self, table: Table, gradients: Sequence[Gradient], *, lr: Mapping[int, float], step: int, divisor: float
    ) -> None:
        """One step of the optimizer with the gradients of one or more lookups of ``table``.

        Args:
            lr: the rates, by the numbers of the tables that are merged in ``table``.
        """
        keys, found = gradients[0].keys, gradients[0].part.found
        assert found is not None, "gradients come after vectors"
        rows_W = found.rows_W
        is_repeated = len(gradients) > 1 or self._has_duplicates()
        if is_repeated:
            keys, values_WD = self._sum_of(gradients)
        if is_repeated or not found.are_of(table):
            rows_W, _ = table.find(keys)
        rate, *others = set(lr.values())
        if others:
            values_WD = values_WD if is_repeated else gradients[0].sums_WD()
            _update_by_rate(table, keys, rows_W, divided(values_WD, divisor), lr=lr, step=step)
        elif is_repeated:
            table.update(keys, rows_W, divided(values_WD, divisor), lr=rate, step=step)
        else:
            gradients[0].apply(table, rows_W, lr=rate, step=step, divisor=divisor)

    def gradient_norm(self, gradients: Sequence[Gradient]) -> torch.Tensor:
        """() float64: the L2 norm of the gradients of one table on this rank, added up by key."""
        if len(gradients) > 1 or self._has_duplicates():
            keys, values_WD = self._sum_of(gradients)
        else:
            keys, values_WD = gradients[0].keys, gradients[0].sums_WD()
        if keys.num_known is not None:
            is_unknown = torch.arange(len(keys), device=values_WD.device) >= keys.num_known
            values_WD = values_WD[: len(keys)].masked_fill(is_unknown.unsqueeze(1), 0)
        norm: torch.Tensor = torch.linalg.vector_norm(values_WD, dtype=torch.float64)
        return norm

    def _sum_of(self, gradients: Sequence[Gradient]) -> tuple[Keys, torch.Tensor]:
        """Gradients of several lookups of one table, added up so that no key comes twice."""
        keys, values = join_gradients(gradients)
        unique = self._deduplicator.deduplicate(keys)
        return unique.keys, self._deduplicator.add_up(unique, values)

    def _has_duplicates(self) -> bool:
        """Whether keys of one batch may come twice at their owner."""
        return self._dedup == "none" or (self._dedup == "first" and self._num_ranks > 1)

    # Exchanges

    def _unique(self, keys: Keys, *, stages: tuple[Dedup, Dedup]) -> UniqueKeys:
        return self._deduplicator.deduplicate(keys) if self._dedup in stages else _embedding.take_as_unique(keys)

    def _unique_of_owner(self, part: Part, keys: Keys) -> UniqueKeys:
        if self._num_ranks == 1 and self._dedup in ("first", "both"):
            return part.unique  # There are no others that the keys could be repeated by.
        return self._unique(keys, stages=("second", "both"))

    def _exchange_keys(self, lookup: Lookup) -> list[Keys]:
        """The keys of each table that this rank owns, with their counts, rank by rank."""
        if self._num_ranks == 1:
            return [part.unique.keys for part in lookup.parts]
        messages = [messages_of(part.unique.keys) for part in lookup.parts]
        received, _ = self._send_values(lookup, messages, kind="id_bytes")
        return [keys_of(messages) for messages in received]

    def _send_values(
        self,
        lookup: Lookup,
        values_U: Sequence[torch.Tensor],
        notes: torch.Tensor | None = None,
        *,
        kind: TrafficName,
    ) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        """What owners get of this rank's unique keys, and this rank as an owner from all."""
        sent_GR, received_GR = _counts_of(lookup)
        return self._exchange_values(values_U, sent_GR, received_GR, notes, kind=kind)

    def _return_values(
        self, lookup: Lookup, values_V: Sequence[torch.Tensor], notes: torch.Tensor | None
    ) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        """What owners have for this rank's unique keys."""
        if self._num_ranks == 1:
            return list(values_V), None if notes is None else notes.unsqueeze(0)
        sent_GR, received_GR = _counts_of(lookup)
        return self._exchange_values(values_V, received_GR, sent_GR, notes, kind="vector_bytes")

    def _exchange_values(
        self,
        values_G: Sequence[torch.Tensor],
        sent_GR: Sequence[Sequence[int]],
        received_GR: Sequence[Sequence[int]],
        notes: torch.Tensor | None,
        *,
        kind: TrafficName,
    ) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        """Sends rows of each table's values, rank by rank, all tables in one exchange; those of one alone as they lie.

        Args:
            notes: (N,) of the same type, for all ranks; None: there are none.
        Returns:
            the values of each table, and (R, N) the notes of all ranks.
        """
        sent = sum(
            (len(values) - sent_R[self._rank]) * values.size(1)
            for values, sent_R in zip(values_G, sent_GR, strict=True)
        )
        self.traffic.add(kind, sent * values_G[0].element_size())
        if notes is not None:
            one_each = [1] * self._num_ranks
            values_G = [*values_G, notes.expand(self._num_ranks, -1)]
            sent_GR, received_GR = [*sent_GR, one_each], [*received_GR, one_each]
        widths = [values.size(1) for values in values_G]
        arguments = all_to_all_arguments(values_G, sent_GR, received_GR, widths)
        dist.all_to_all_single(*arguments, group=self._group)
        received = by_group(arguments[0], received_GR, widths)
        notes_RN = None if notes is None else received.pop()
        return received, notes_RN


def _counts_of(lookup: Lookup) -> tuple[list[list[int]], list[list[int]]]:
    return [part.sent_R for part in lookup.parts], [part.received_R for part in lookup.parts]


def _update_by_rate(
    table: Table, keys: Keys, rows_W: torch.Tensor, values_WD: torch.Tensor, *, lr: Mapping[int, float], step: int
) -> None:
    """One step of the optimizer, with another rate for each table that is merged in ``table``."""
    tables_W = tables_of(keys)
    is_known_W = torch.ones(len(keys), dtype=torch.bool, device=rows_W.device)
    if keys.num_known is not None:
        is_known_W = torch.arange(len(keys), device=rows_W.device) < keys.num_known
    for number, rate in lr.items():
        is_of_table_W = tables_W == torch.tensor(number, dtype=torch.int64).to(torch.int32).item()
        chosen = (is_of_table_W & is_known_W).nonzero().view(-1)
        if len(chosen) > 0:
            some = Keys(keys.ids[chosen], tables_W[chosen], are_unique=True)
            table.update(some, rows_W[chosen], values_WD[chosen], lr=rate, step=step)


def _weights_of_known(part: Part, weights_V: torch.Tensor | None = None) -> torch.Tensor | None:
    """Weights of the keys at their owner with which keys without a row add zeros, if they are to."""
    if part.known_W is None:
        return weights_V
    assert part.received is not None, "finish() has found rows"
    known_V = part.known_W[part.received.numbers.long()].to(torch.float32)
    return known_V if weights_V is None else weights_V * known_V


def _known_if(is_wanted: torch.Tensor, keys: Keys) -> Keys:
    """The same keys if the device finds that they are wanted, else none of them."""
    num_known = (is_wanted.view(1) * number_of(keys)).to(torch.int32)
    return Keys(
        keys.ids,
        keys.tables,
        table=keys.table,
        counts=keys.counts,
        are_unique=keys.are_unique,
        num_known=num_known,
    )
