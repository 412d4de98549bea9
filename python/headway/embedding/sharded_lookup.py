"""Row-wise sharded lookup with two-stage deduplication: before the exchange, and again at the owner.

Idea: the hash of a key decides which rank owns it. A rank sends each distinct key of its batch to the owner once, with
the number of its lookups. The owner deduplicates again, because ranks share keys, looks each key up once, and returns
embeddings. The rank expands them to its bags. Gradients take the same way back and are reduced at both stages.

Example: 2 ranks; rank 0 owns id 3, rank 1 owns 7 and 9. Rank 0 looks up 7, 3, 7 and rank 1 looks up 3, 9.
  First stage: rank 0 sends 3 (count 1) to itself and 7 (count 2) to rank 1; rank 1 sends 3 to rank 0 and 9 to itself.
  Second stage: rank 0 has received 3 twice, and looks it up once with count 2. It returns one embedding to each rank.
  Backward: rank 0 reduces the two gradients of 7 and sends the sum. The owner of 3 adds the gradients of both ranks.

Invariants: all ranks make the same exchanges in every batch, even if they have no keys.
Gradients are added in the order of ranks, and for each rank in the order of its batch: same bits in every run.
Counts are exact, with and without deduplication. Unique keys are sorted by owner, so (U, D) tensors are sent in place.
On CUDA the host reads U with the key counts, and never W, so a lookup with one rank does not wait for the device. As
long as the host does not know U or W, tensors (U, D) and (W, D) have K or V rows, of which the first U or W are valid.

Complexity: 3 all-to-alls per forward pass (key counts, keys, embeddings) and 1 per backward pass (gradients), for any
number of features and tables. A unique key costs 16 bytes for the key, and D float32 each way.
Source: MTGRBoost, section 4.3 and figure 8.

G merged tables, R ranks, K keys of a rank, U of them unique, V keys that an owner gets, W of them unique, D columns.
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
    """Looks keys up in tables that ranks share, and returns gradients to the owners of the keys.

    Args:
        tables: this rank's part of each merged table, in the same order on all ranks. The list belongs to the caller,
            who may replace its elements.
        group: the ranks that share the keys; None: this rank has all keys.
        dedup: the stages at which duplicates are removed.
        workers: threads of the deduplication on the CPU.
        device: device of the tables and of all tensors.
        counts_refused: count the keys that get no row because their table is full.
        hides_unknown: for each merged table: do keys without a row give zeros with ``eval()``?
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
        self._stream: torch.cuda.Stream | None = None  #: Copies key counts to the host; None: CPU or one rank.
        if device.type == "cuda" and self._num_ranks > 1:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    # Forward

    def begin(self, keys_G: Sequence[Keys], *, inserts: bool, evaluates: bool) -> Lookup:
        """Starts a lookup: deduplicates, sorts keys by owner, and starts the exchange of key counts. Does not wait.

        Args:
            keys_G: the keys of the batch for each merged table.
            inserts: insert keys that have no row, and count lookups.
            evaluates: the module is in ``eval()`` mode.
        """
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
        """Finishes a lookup: exchanges keys, looks them up at their owners, and returns the embeddings.

        Sets ``lookup.vectors_UD``, except where embeddings can be read from the rows directly. All ranks call it.
        """
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
        """Waits for the key counts if there are other ranks. The host knows U afterwards."""
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
        """Expands the embeddings of merged table ``number`` to bags.

        Args:
            lookup: a finished lookup.
            number: index of the merged table.
            offsets: (B + 1,) int64, bounds of the bags among the keys; None: each key is a bag.
            weights: (K,) weights of the keys; None: all 1.
        Returns:
            (B, D), the weighted sum of each bag.
        Raises:
            RuntimeError: embeddings are read from rows, and rows were removed or moved since ``finish()``.
        """
        part = lookup.parts[number]
        if self._are_in_rows(part):
            rows_W = self._rows_to_read(part, number)
            return self.tables[number].gather_bags(
                part.unique, rows_W, offsets=offsets, weights=_weights_of_known(part, weights)
            )
        return self._deduplicator.hand_out(part.unique, lookup.vectors_UD[number], offsets=offsets, weights=weights)

    def vectors(self, lookup: Lookup, number: int) -> torch.Tensor:
        """Returns the embeddings of the unique keys of merged table ``number``, (U, D).

        Raises:
            RuntimeError: as ``hand_out()``.
        """
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
        """Can embeddings be read from rows directly? True with one rank, if the first stage found all duplicates."""
        return part.received is part.unique and self._num_ranks == 1

    # Backward

    def return_gradients(
        self, lookup: Lookup, bags_G: Sequence[BagGradients | None], *, may_wait: bool
    ) -> tuple[list[Gradient | None], list[torch.Tensor | None]]:
        """Sends gradients to the owners of the keys. All ranks call it, even without gradients.

        On CUDA only the device knows whether any rank has a gradient. If none has, ``num_known`` of the keys is 0.

        Args:
            lookup: a finished lookup.
            bags_G: gradients of bags for each merged table; None: the loss does not depend on the table.
            may_wait: may the reduction of received gradients be postponed?
        Returns:
            for each merged table, the gradient of the keys that this rank owns (None: no rank has one), and the
            reduced gradients that this rank sent, (U, D) (None: there are none, or there is one rank).
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
        """Exchanges reduced gradients. A rank without a gradient sends zeros.

        Returns:
            for each merged table, (V, D) received gradients, and whether any rank has a gradient (on CUDA a bool
            tensor of shape ()).
        """
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
        """Applies one optimizer step with the gradients of one or more lookups of ``table``.

        Args:
            table: this rank's part of a merged table.
            gradients: gradients of its lookups since the last step, at least one.
            lr: learning rate by table number.
            step: number of the step, from 1.
            divisor: divides the gradients.
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
        """Returns the L2 norm of one merged table's gradients on this rank, summed by key: () float64."""
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
        """Reduces the gradients of several lookups of one table, so that each key occurs once."""
        keys, values = join_gradients(gradients)
        unique = self._deduplicator.deduplicate(keys)
        return unique.keys, self._deduplicator.add_up(unique, values)

    def _has_duplicates(self) -> bool:
        """May a key of one batch occur twice at its owner after deduplication?"""
        return self._dedup == "none" or (self._dedup == "first" and self._num_ranks > 1)

    # Exchanges

    def _unique(self, keys: Keys, *, stages: tuple[Dedup, Dedup]) -> UniqueKeys:
        return self._deduplicator.deduplicate(keys) if self._dedup in stages else _embedding.take_as_unique(keys)

    def _unique_of_owner(self, part: Part, keys: Keys) -> UniqueKeys:
        if self._num_ranks == 1 and self._dedup in ("first", "both"):
            return part.unique  # No other rank could send the same keys again.
        return self._unique(keys, stages=("second", "both"))

    def _exchange_keys(self, lookup: Lookup) -> list[Keys]:
        """Sends unique keys to their owners. Returns the received keys of each merged table, rank by rank."""
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
        """Sends rows of unique keys to the owners. Returns the rows that this rank receives as an owner.

        Args:
            lookup: a lookup with key counts.
            values_U: (U, ...) for each merged table.
            notes: (N,) of the same type, sent to all ranks; None: none.
            kind: counter of the bytes.
        Returns:
            (V, ...) for each merged table, and (R, N) the notes of all ranks or None.
        """
        sent_GR, received_GR = _counts_of(lookup)
        return self._exchange_values(values_U, sent_GR, received_GR, notes, kind=kind)

    def _return_values(
        self, lookup: Lookup, values_V: Sequence[torch.Tensor], notes: torch.Tensor | None
    ) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        """Sends rows of received keys back to the ranks that asked for them. The reverse of ``_send_values()``."""
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
        """Sends the rows of all merged tables in one all-to-all.

        Args:
            values_G: rows of each merged table, rank by rank.
            sent_GR: rows for each rank.
            received_GR: rows from each rank.
            notes: (N,) of the same type, sent to all ranks as one more row; None: none.
            kind: counter of the bytes.
        Returns:
            the received rows of each merged table, and (R, N) the notes of all ranks or None.
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
    """Applies one optimizer step with a different learning rate for each table in a merged one: one update per table.

    On CUDA it waits for the device, because ``nonzero()`` does.
    """
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
    """Sets the weights of keys without a row to 0 if such keys must give zeros; (V,), None: all 1."""
    if part.known_W is None:
        return weights_V
    assert part.received is not None, "finish() has found rows"
    known_V = part.known_W[part.received.numbers.long()].to(torch.float32)
    return known_V if weights_V is None else weights_V * known_V


def _known_if(is_wanted: torch.Tensor, keys: Keys) -> Keys:
    """Returns ``keys`` with ``num_known`` set to 0 on the device if ``is_wanted``, () bool, is false."""
    num_known = (is_wanted.view(1) * number_of(keys)).to(torch.int32)
    return Keys(
        keys.ids,
        keys.tables,
        table=keys.table,
        counts=keys.counts,
        are_unique=keys.are_unique,
        num_known=num_known,
    )
