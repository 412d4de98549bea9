# SPDX-License-Identifier: Apache-2.0
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
from headway._embedding import (
    Deduplicator,
    Keys,
    Table,
    ThreadPool,
    UniqueKeys,
    all_to_all_arguments,
    by_table,
    keys_of,
    messages_of,
    tables_of,
)
from headway.embedding.devices import tensor_on
from headway.embedding.gradient import BagGradients, Gradient, divided, join_gradients
from headway.embedding.lookup import BatchLookup, FoundRows, TableLookup
from headway.embedding.split_counts import SplitCounts
from headway.embedding.traffic import TrafficCounts, TrafficName, number_of

Dedup = Literal["none", "first", "second", "both"]


class ShardedLookup:
    """Looks keys up in tables that ranks share, and returns gradients to the owners of the keys.

    Args:
        tables: this rank's shard of each merged table, in the same order on all ranks. The list belongs to the caller,
            who may replace its elements.
        group: the ranks that share the keys; None: this rank has all keys.
        dedup: the stages at which duplicates are removed.
        thread_pool: threads of the deduplication on the CPU.
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
        thread_pool: ThreadPool,
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
        self._deduplicator = Deduplicator(thread_pool, device)
        self._stream: torch.cuda.Stream | None = None  #: Copies key counts to the host; None: CPU or one rank.
        if device.type == "cuda" and self._num_ranks > 1:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    # Forward

    def begin(self, keys_G: Sequence[Keys], *, inserts: bool, evaluates: bool) -> BatchLookup:
        """Starts a lookup: deduplicates, sorts keys by owner, and starts the exchange of key counts. Does not wait.

        Args:
            keys_G: the keys of the batch for each merged table.
            inserts: insert keys that have no row, and count lookups.
            evaluates: the module is in ``eval()`` mode.
        """
        assert len(keys_G) == len(self.tables), "keys of each table"
        table_lookups, counts_GR = [], []
        for keys in keys_G:
            table_lookup = TableLookup(self._unique(keys, stages=("first", "both")))
            if self._num_ranks > 1:
                table_lookup.unique, counts_R = self._deduplicator.sort_by_owner(table_lookup.unique, self._num_ranks)
                counts_GR.append(counts_R)
            table_lookups.append(table_lookup)
            self.traffic.add("keys", len(keys))
            self.traffic.add("keys_routed", number_of(table_lookup.unique.keys))
        counts = SplitCounts(counts_GR, self._group, self._stream) if self._num_ranks > 1 else None
        return BatchLookup(table_lookups, inserts, evaluates, counts)

    def finish(self, lookup: BatchLookup) -> None:
        """Finishes a lookup: exchanges keys, looks them up at their owners, and returns the embeddings.

        Sets ``lookup.embeddings_UD``, except where embeddings can be read from the rows directly. All ranks call it.
        """
        self._take_counts(lookup)
        embeddings_V, refused_G = [], []
        for table_lookup, table, keys, hides_unknown in zip(
            lookup.table_lookups, self.tables, self._exchange_keys(lookup), self._hides_unknown, strict=True
        ):
            table_lookup.received = self._unique_of_owner(table_lookup, keys)
            owned = table_lookup.received.keys
            rows_W, statuses_W = table.find_or_insert(owned) if lookup.inserts else table.find(owned)
            table_lookup.found = FoundRows(table, rows_W, table.generation)
            table_lookup.known_W = rows_W != 0 if lookup.evaluates and hides_unknown else None
            if not self._are_in_rows(table_lookup):
                embeddings_V.append(
                    table.gather_bags(table_lookup.received, rows_W, weights=_weights_of_known(table_lookup))
                )
            if self._counts_refused:
                refused_G.append((statuses_W == _embedding.KeyStatus.NO_ROOM.value).sum())
            self.traffic.add("keys_received", number_of(keys))
            self.traffic.add("keys_found", number_of(owned))
        refused = torch.stack(refused_G).to(torch.float32) if self._counts_refused else None
        lookup.embeddings_UD, lookup.refused = self._return_values(lookup, embeddings_V, refused)

    def _take_counts(self, lookup: BatchLookup) -> None:
        """Waits for the key counts if there are other ranks. The host knows U afterwards."""
        if lookup.counts is None:
            return
        lookup.sent_GR, lookup.received_GR = lookup.counts.wait()
        for table_lookup, num_sent in zip(lookup.table_lookups, lookup.sent_GR.sum(1).tolist(), strict=True):
            table_lookup.unique = table_lookup.unique.narrow(num_sent)
        lookup.counts = None

    def expand(
        self, lookup: BatchLookup, index: int, offsets: torch.Tensor | None, weights: torch.Tensor | None
    ) -> torch.Tensor:
        """Expands the embeddings of merged table ``index`` to bags.

        Args:
            lookup: a finished lookup.
            index: that of the merged table.
            offsets: (B + 1,) int64, bounds of the bags among the keys; None: each key is a bag.
            weights: (K,) weights of the keys; None: all 1.
        Returns:
            (B, D), the weighted sum of each bag.
        Raises:
            RuntimeError: embeddings are read from rows, and rows were removed or moved since ``finish()``.
        """
        table_lookup = lookup.table_lookups[index]
        if self._are_in_rows(table_lookup):
            rows_W = self._rows_to_read(table_lookup, index)
            return self.tables[index].gather_bags(
                table_lookup.unique, rows_W, offsets=offsets, weights=_weights_of_known(table_lookup, weights)
            )
        return self._deduplicator.expand(
            table_lookup.unique, lookup.embeddings_UD[index], offsets=offsets, weights=weights
        )

    def embeddings(self, lookup: BatchLookup, index: int) -> torch.Tensor:
        """Returns the embeddings of the unique keys of merged table ``index``, (U, D).

        Raises:
            RuntimeError: as ``expand()``.
        """
        table_lookup = lookup.table_lookups[index]
        if self._are_in_rows(table_lookup):
            embeddings_UD = self.tables[index].gather(table_lookup.unique.keys, self._rows_to_read(table_lookup, index))
            return embeddings_UD if table_lookup.known_W is None else embeddings_UD * table_lookup.known_W.unsqueeze(1)
        return lookup.embeddings_UD[index]

    def _rows_to_read(self, table_lookup: TableLookup, index: int) -> torch.Tensor:
        assert table_lookup.found is not None, "finish() has found rows"
        if not table_lookup.found.are_of(self.tables[index]):
            raise RuntimeError("rows of a table were given up, moved or replaced between a lookup and its embeddings")
        return table_lookup.found.rows_W

    def _are_in_rows(self, table_lookup: TableLookup) -> bool:
        """Can embeddings be read from rows directly? True with one rank, if the first stage found all duplicates."""
        return table_lookup.received is table_lookup.unique and self._num_ranks == 1

    # Backward

    def return_gradients(
        self, lookup: BatchLookup, bags_G: Sequence[BagGradients | None], *, may_wait: bool
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
        if all(self._are_in_rows(table_lookup) for table_lookup in lookup.table_lookups):
            for table_lookup, bags in zip(lookup.table_lookups, bags_G, strict=True):
                result.append(
                    Gradient(
                        table_lookup,
                        table_lookup.unique.keys,
                        table_lookup.unique,
                        bags,
                        self._deduplicator,
                        may_wait=may_wait,
                    )
                    if bags
                    else None
                )
            return result, [None] * len(result)
        sums_UD = [
            None
            if bags is None
            else self._deduplicator.reduce(
                table_lookup.unique, bags.values_BD, offsets=bags.offsets, weights=bags.weights
            )
            for table_lookup, bags in zip(lookup.table_lookups, bags_G, strict=True)
        ]
        received, are_any = self._send_gradients(lookup, sums_UD)
        for table_lookup, values_VD, is_any in zip(lookup.table_lookups, received, are_any, strict=True):
            assert table_lookup.received is not None, "gradients come after embeddings"
            if values_VD is None or is_any is False:
                result.append(None)
                continue
            keys = table_lookup.received.keys if is_any is True else _known_if(is_any, table_lookup.received.keys)
            bags = BagGradients(values_VD)
            result.append(
                Gradient(table_lookup, keys, table_lookup.received, bags, self._deduplicator, may_wait=may_wait)
            )
        return result, sums_UD if self._num_ranks > 1 else [None] * len(result)

    def _send_gradients(
        self, lookup: BatchLookup, gradients_UD: Sequence[torch.Tensor | None]
    ) -> tuple[Sequence[torch.Tensor | None], Sequence[bool | torch.Tensor]]:
        """Exchanges reduced gradients. A rank without a gradient sends zeros.

        Returns:
            for each merged table, (V, D) received gradients, and whether any rank has a gradient (on CUDA a bool
            tensor of shape ()).
        """
        if self._num_ranks == 1:
            return gradients_UD, [gradients is not None for gradients in gradients_UD]
        values = [
            torch.zeros(len(table_lookup.unique), table.dim, device=self._device) if gradients is None else gradients
            for table_lookup, table, gradients in zip(lookup.table_lookups, self.tables, gradients_UD, strict=True)
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
            table: this rank's shard of a merged table.
            gradients: gradients of its lookups since the last step, at least one.
            lr: learning rate by table id.
            step: number of the step, from 1.
            divisor: divides the gradients.
        """
        keys, found = gradients[0].keys, gradients[0].table_lookup.found
        assert found is not None, "gradients come after embeddings"
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
        return unique.keys, self._deduplicator.reduce(unique, values)

    def _has_duplicates(self) -> bool:
        """May a key of one batch occur twice at its owner after deduplication?"""
        return self._dedup == "none" or (self._dedup == "first" and self._num_ranks > 1)

    # Exchanges

    def _unique(self, keys: Keys, *, stages: tuple[Dedup, Dedup]) -> UniqueKeys:
        return self._deduplicator.deduplicate(keys) if self._dedup in stages else _embedding.from_unique(keys)

    def _unique_of_owner(self, table_lookup: TableLookup, keys: Keys) -> UniqueKeys:
        if self._num_ranks == 1 and self._dedup in ("first", "both"):
            return table_lookup.unique  # No other rank could send the same keys again.
        return self._unique(keys, stages=("second", "both"))

    def _exchange_keys(self, lookup: BatchLookup) -> list[Keys]:
        """Sends unique keys to their owners. Returns the received keys of each merged table, rank by rank."""
        if self._num_ranks == 1:
            return [table_lookup.unique.keys for table_lookup in lookup.table_lookups]
        messages = [messages_of(table_lookup.unique.keys) for table_lookup in lookup.table_lookups]
        received, _ = self._send_values(lookup, messages, kind="id_bytes")
        return [keys_of(messages) for messages in received]

    def _send_values(
        self,
        lookup: BatchLookup,
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
        self, lookup: BatchLookup, values_V: Sequence[torch.Tensor], notes: torch.Tensor | None
    ) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        """Sends rows of received keys back to the ranks that asked for them. The reverse of ``_send_values()``."""
        if self._num_ranks == 1:
            return list(values_V), None if notes is None else notes.unsqueeze(0)
        sent_GR, received_GR = _counts_of(lookup)
        return self._exchange_values(values_V, received_GR, sent_GR, notes, kind="vector_bytes")

    def _exchange_values(
        self,
        values_G: Sequence[torch.Tensor],
        sent_GR: torch.Tensor,
        received_GR: torch.Tensor,
        notes: torch.Tensor | None,
        *,
        kind: TrafficName,
    ) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        """Sends the rows of all merged tables in one all-to-all.

        Args:
            values_G: rows of each merged table, rank by rank.
            sent_GR: (G, R) int64 on the CPU, rows for each rank.
            received_GR: rows from each rank.
            notes: (N,) of the same type, sent to all ranks as one more row; None: none.
            kind: counter of the bytes.
        Returns:
            the received rows of each merged table, and (R, N) the notes of all ranks or None.
        """
        sent = sum(
            (len(values) - kept) * values.size(1)
            for values, kept in zip(values_G, sent_GR[:, self._rank].tolist(), strict=True)
        )
        self.traffic.add(kind, sent * values_G[0].element_size())
        if notes is not None:
            one_each = sent_GR.new_ones(1, self._num_ranks)
            values_G = [*values_G, notes.expand(self._num_ranks, -1)]
            sent_GR, received_GR = torch.cat([sent_GR, one_each]), torch.cat([received_GR, one_each])
        widths = [values.size(1) for values in values_G]
        arguments = all_to_all_arguments(values_G, sent_GR, received_GR)
        dist.all_to_all_single(*arguments, group=self._group)
        received = by_table(arguments[0], received_GR, widths)
        notes_RN = None if notes is None else received.pop()
        return received, notes_RN


def _counts_of(lookup: BatchLookup) -> tuple[torch.Tensor, torch.Tensor]:
    assert lookup.sent_GR is not None and lookup.received_GR is not None, "finish() takes the counts first"
    return lookup.sent_GR, lookup.received_GR


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
    for table_id, rate in lr.items():
        is_of_table_W = tables_W == torch.tensor(table_id, dtype=torch.int64).to(torch.int32).item()
        chosen = (is_of_table_W & is_known_W).nonzero().view(-1)
        if len(chosen) > 0:
            some = Keys(keys.ids[chosen], tables_W[chosen], are_unique=True)
            table.update(some, rows_W[chosen], values_WD[chosen], lr=rate, step=step)


def _weights_of_known(table_lookup: TableLookup, weights_V: torch.Tensor | None = None) -> torch.Tensor | None:
    """Sets the weights of keys without a row to 0 if such keys must give zeros; (V,), None: all 1."""
    if table_lookup.known_W is None:
        return weights_V
    assert table_lookup.received is not None, "finish() has found rows"
    known_V = table_lookup.known_W[table_lookup.received.inverse_indices.long()].to(torch.float32)
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
