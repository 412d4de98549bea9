"""What is known of the keys of a table: of rows and of those that wait for one, as values of a ``state_dict()``.

K keys with rows, P keys that wait, D columns, S floats of an optimizer's state.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch

from headway import _embedding
from headway._embedding import Keys, Table
from headway.embedding.merging import table_number, table_numbers


@dataclass(frozen=True)
class TablePart:
    """What a rank has of merged tables, whose records go into a state or come out of one."""

    names: tuple[str, ...]  #: of the tables
    table: Table
    updates: int  #: so far
    rank: int
    num_ranks: int

    @property
    def buckets(self) -> tuple[int, int]:
        """The first one of this rank, and the one behind its last."""
        begin, end = (_embedding.first_bucket_of(each, self.num_ranks) for each in (self.rank, self.rank + 1))
        return begin, end


@dataclass(frozen=True)
class Records:
    """What is known of K keys with rows and P keys that wait for one, all of one table."""

    routing_version: int
    updates: int  #: of the table
    buckets: tuple[int, int]  #: whose keys are all there: the first, and the one behind the last
    ids_K: torch.Tensor
    counts_K: torch.Tensor
    steps_K: torch.Tensor
    vectors_KD: torch.Tensor
    states_KS: torch.Tensor
    pending_P: torch.Tensor
    pending_counts_P: torch.Tensor

    def read(self) -> Records:
        return self


class LiveRecords:
    """Records that are read out of the table when they are pickled: a chunk at a time."""

    def __init__(self, listing: Listing, table: str, buckets: tuple[int, int]) -> None:
        self._listing, self._table, self._buckets = listing, table, buckets

    def read(self) -> Records:
        return self._listing.read(self._table, self._buckets)

    def __reduce__(self) -> tuple[Any, ...]:
        records = self.read()
        return Records, tuple(getattr(records, field.name) for field in fields(records))


class RecordsElsewhere:
    """Stands for what another rank writes, and this one may read."""

    def read(self) -> None:
        return None

    def __create_write_items__(self, fqn: str, object: Any) -> list[Any]:
        """The protocol of torch.distributed.checkpoint: nothing to write."""
        return []


AnyRecords = Records | LiveRecords | RecordsElsewhere

# For torch.load() with weights_only.
torch.serialization.add_safe_globals([Records, RecordsElsewhere])


class Listing:
    """The keys of merged tables as they are when they are first asked for, by virtual bucket."""

    def __init__(self, part: TablePart) -> None:
        self._table, self._updates = part.table, part.updates

    @cached_property
    def _rows(self) -> tuple[Keys, list[int]]:
        return _with_begins(self._table.list(0, _embedding.NUM_VIRTUAL_BUCKETS))

    @cached_property
    def _pending(self) -> tuple[Keys, list[int]]:
        return _with_begins(self._table.list_pending(0, _embedding.NUM_VIRTUAL_BUCKETS))

    def read(self, table: str, buckets: tuple[int, int]) -> Records:
        ids_K, _ = _select(*self._rows, table, buckets)
        pending_P, pending_counts_P = _select(*self._pending, table, buckets)
        columns = self._no_columns
        if len(ids_K) + len(pending_P) > 0:
            exported = self._table.export_records(Keys(ids_K, table=table_number(table)))
            columns = (ids_K, *exported, pending_P, pending_counts_P)
        return Records(_embedding.ROUTING_VERSION, self._updates, buckets, *columns)

    @cached_property
    def _no_columns(self) -> tuple[torch.Tensor, ...]:
        """Most parts are empty where ids are few: they are pickled fast, as their columns share memory."""
        ids, counts, values = (torch.empty(0, dtype=each) for each in (torch.int64, torch.int32, torch.float32))
        vectors, states = values.view(0, self._table.dim), values.view(0, self._table.state_size)
        return ids, counts, counts, vectors, states, ids, counts


def _with_begins(keys: Keys) -> tuple[Keys, list[int]]:
    _, counts = _embedding.route(keys, _embedding.NUM_VIRTUAL_BUCKETS)
    return keys, [0, *accumulate(counts.tolist())]


def _select(keys: Keys, begins: list[int], table: str, buckets: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and counts of one table in these buckets."""
    part = slice(begins[buckets[0]], begins[buckets[1]])
    assert keys.tables is not None, "listed keys have tables"
    mine = keys.tables[part] == table_numbers([table])
    counts = torch.empty(0, dtype=torch.int32) if keys.counts is None else keys.counts[part][mine]
    return keys.ids[part][mine].contiguous(), counts.contiguous()
