# SPDX-License-Identifier: Apache-2.0
"""Records of the keys of a table: keys with rows, and pending keys, which wait for one.

A key is the pair (table id, id). Tables of equal configuration are merged: they share one hash table (merging.py).
The hash of a key gives its virtual bucket, one of 16,384, and each rank owns a range of buckets. A fragment is the
records of a range of buckets.

K keys with rows, P pending keys, D columns, S floats of optimizer state per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch

from headway import _embedding
from headway._deprecation import warn_renamed
from headway._embedding import Keys, Table
from headway.embedding.merging import table_id_of, table_ids_of


@dataclass(frozen=True)
class TableShard:
    """One rank's shard of a merged table, as source or destination of records."""

    names: tuple[str, ...]  #: Names of the tables that are merged.
    table: Table
    updates: int  #: Optimizer steps so far.
    rank: int
    num_ranks: int
    is_read_only: bool = False  #: The table has no optimizer: drop the optimizer state of records.

    @property
    def buckets(self) -> tuple[int, int]:
        """The first virtual bucket of this rank, and the one after its last."""
        begin, end = (_embedding.first_bucket_of(each, self.num_ranks) for each in (self.rank, self.rank + 1))
        return begin, end


@dataclass(frozen=True)
class Records:
    """All keys of one table in a range of virtual buckets. Tensors are on the CPU."""

    routing_version: int  #: Version of the mapping from keys to buckets.
    updates: int  #: Optimizer steps of the table.
    buckets: tuple[int, int]  #: The range: its first bucket, and the one after its last.
    table: int  #: Table id; the buckets of ids depend on it.
    ids_K: torch.Tensor  #: int64
    counts_K: torch.Tensor  #: int32, lookups of each row.
    steps_K: torch.Tensor  #: int32, step of the last lookup of each row.
    embeddings_KD: torch.Tensor  #: float32 embeddings.
    states_KS: torch.Tensor  #: float32 optimizer state.
    pending_P: torch.Tensor  #: int64, ids of the pending keys.
    pending_counts_P: torch.Tensor  #: int32, their lookups.

    @property
    def rows(self) -> tuple[torch.Tensor, ...]:
        """The columns of keys with rows."""
        return self.ids_K, self.counts_K, self.steps_K, self.embeddings_KD, self.states_KS

    @property
    def vectors_KD(self) -> torch.Tensor:
        """The old name of ``embeddings_KD``."""
        warn_renamed("Records.vectors_KD", "embeddings_KD")
        return self.embeddings_KD

    @property
    def num_values(self) -> int:
        """Number of floats in embeddings and optimizer state."""
        return self.embeddings_KD.numel() + self.states_KS.numel()

    def values(self) -> tuple[Any, ...]:
        """Returns the values of all fields, in their order."""
        return tuple(getattr(self, field.name) for field in fields(self))

    def read(self, table_buckets: tuple[int, int] | None = None) -> Records:
        """Returns the records in a range of buckets (first, end); None: all."""
        if table_buckets is None or table_buckets == self.buckets:
            return self
        begin, end = table_buckets
        of_rows, of_pending = (_indices_within(each, begin, end) for each in self._buckets_of_keys)
        columns = [column[of_rows] for column in self.rows]
        ids, counts, steps, embeddings, states = columns
        return replace(
            self,
            buckets=table_buckets,
            ids_K=ids,
            counts_K=counts,
            steps_K=steps,
            embeddings_KD=embeddings,
            states_KS=states,
            pending_P=self.pending_P[of_pending],
            pending_counts_P=self.pending_counts_P[of_pending],
        )

    def clone(self) -> Records:
        copies: list[Any] = [each.clone() if isinstance(each, torch.Tensor) else each for each in self.values()]
        return Records(*copies)

    @cached_property
    def _buckets_of_keys(self) -> tuple[torch.Tensor, torch.Tensor]:
        rows_K, pending_P = (_embedding.buckets_of(Keys(ids, table=self.table)) for ids in (self.ids_K, self.pending_P))
        return rows_K, pending_P

    def encode(self) -> torch.Tensor:
        """Serialises the records as (1, bytes) uint8, with a checksum; embedding/src/checkpoint/record_fragment.cpp.

        Raises:
            ValueError: columns have different lengths.
        """
        return _embedding.encode_records(Records(*map(_contiguous, self.values())).values())

    @classmethod
    def decode(cls, encoded: torch.Tensor) -> Records:
        """Reads what ``encode()`` returned. The columns are views of ``encoded``.

        Raises:
            ValueError: the layout is another one, or the bytes are truncated or altered.
        """
        return cls(*_embedding.decode_records(encoded))


def _contiguous(value: Any) -> Any:
    return value.contiguous() if isinstance(value, torch.Tensor) else value


def _indices_within(buckets: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    return ((buckets >= begin) & (buckets < end)).nonzero().view(-1)


def join_records(fragments: Sequence[Records], buckets: tuple[int, int]) -> Records:
    """Concatenates fragments, which have no keys in common, to the records of ``buckets``."""
    first = fragments[0]
    if len(fragments) == 1:
        return replace(first, buckets=buckets)
    # From the fifth field on, values are columns.
    columns = [torch.cat(column) for column in zip(*(each.values()[4:] for each in fragments), strict=True)]
    return Records(first.routing_version, first.updates, buckets, first.table, *columns)


class LiveRecords:
    """Records of this rank that are read from the table on demand."""

    def __init__(self, listing: Listing, table: str, buckets: tuple[int, int]) -> None:
        self._listing, self._table, self.buckets = listing, table, buckets

    @property
    def num_values(self) -> int:
        return self._listing.num_values(self._table)

    def read(self, table_buckets: tuple[int, int] | None = None) -> Records:
        """Reads the records in a range of buckets (first, end); None: all buckets of this rank."""
        return self._listing.read(self._table, table_buckets or self.buckets)

    def __reduce__(self) -> tuple[Any, ...]:
        return Records, self.read().values()


class Listing:
    """The keys of a merged table by virtual bucket, listed once, on first use."""

    def __init__(self, shard: TableShard) -> None:
        self._table, self._updates, self._names = shard.table, shard.updates, shard.names

    @cached_property
    def _rows(self) -> tuple[Keys, list[int]]:
        return _with_offsets(self._table.list(0, _embedding.NUM_VIRTUAL_BUCKETS))

    @cached_property
    def _pending(self) -> tuple[Keys, list[int]]:
        return _with_offsets(self._table.list_pending(0, _embedding.NUM_VIRTUAL_BUCKETS))

    def num_values(self, table: str) -> int:
        """Returns the number of floats in the rows of a table."""
        return self._num_rows[table] * (self._table.dim + self._table.state_size)

    @cached_property
    def _num_rows(self) -> dict[str, int]:
        """Number of rows, by table name."""
        keys, _ = self._rows
        if len(self._names) == 1:
            return {self._names[0]: len(keys)}
        assert keys.tables is not None, "listed keys have tables"
        table_ids, counts = torch.unique(keys.tables, return_counts=True)
        by_id = dict(zip(table_ids.tolist(), counts.tolist(), strict=True))
        return {name: by_id.get(int(table_ids_of([name])), 0) for name in self._names}

    def read(self, table: str, buckets: tuple[int, int]) -> Records:
        """Reads the records of one table in a range of buckets (first, end)."""
        ids_K, _ = self._select(*self._rows, table, buckets)
        pending_P, pending_counts_P = self._select(*self._pending, table, buckets)
        columns = self._no_columns
        if len(ids_K) + len(pending_P) > 0:
            exported = self._table.export_records(Keys(ids_K, table=table_id_of(table)))
            columns = (ids_K, *exported, pending_P, pending_counts_P)
        return Records(_embedding.ROUTING_VERSION, self._updates, buckets, table_id_of(table), *columns)

    @cached_property
    def _no_columns(self) -> tuple[torch.Tensor, ...]:
        """Columns of an empty fragment. They share memory: a small table has many, which are then pickled fast."""
        ids, counts, values = (torch.empty(0, dtype=each) for each in (torch.int64, torch.int32, torch.float32))
        embeddings, states = values.view(0, self._table.dim), values.view(0, self._table.state_size)
        return ids, counts, counts, embeddings, states, ids, counts

    def _select(
        self, keys: Keys, offsets: list[int], table: str, buckets: tuple[int, int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns ids and counts of one table in a range of buckets; ``offsets`` has the first key of each bucket."""
        selection: slice | torch.Tensor = slice(offsets[buckets[0]], offsets[buckets[1]])
        ids, counts = (
            keys.ids[selection],
            torch.empty(0, dtype=torch.int32) if keys.counts is None else keys.counts[selection],
        )
        if len(self._names) > 1:
            assert keys.tables is not None, "listed keys have tables"
            mine = keys.tables[selection] == table_ids_of([table])
            ids, counts = ids[mine], counts if keys.counts is None else counts[mine]
        return ids.contiguous(), counts.contiguous()


def _with_offsets(keys: Keys) -> tuple[Keys, list[int]]:
    """Returns keys, which are in the order of their buckets, and the index of the first key of each bucket."""
    _, counts = _embedding.route(keys, _embedding.NUM_VIRTUAL_BUCKETS)
    return keys, [0, *accumulate(counts.tolist())]
