"""The records of tables in a ``state_dict()``, so that any number of ranks loads what any other number saved.

A table has ``NUM_CHUNKS`` chunks of virtual buckets, each of two parts with names that never change: the part of the
owner of its first bucket, and that of the owner of its last one, which is empty if the chunk has one owner. A rank has
both names of every chunk that it owns a bucket of. It writes its own parts; the others have no items to write, and are
there to be read. On loading a rank takes what it owns of what it has read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch

from headway import _embedding
from headway._embedding import Keys
from headway.embedding.keys import owned_by
from headway.embedding.merging import table_number, table_numbers
from headway.torchrec.kernel import TableKernel

NUM_CHUNKS = 256
RECORDS = "records"

_BUCKETS_PER_CHUNK = _embedding.NUM_VIRTUAL_BUCKETS // NUM_CHUNKS


@dataclass(frozen=True)
class Records:
    """What is known of K keys with rows and P keys that wait for one, all of one table."""

    routing_version: int
    updates: int  #: of the table
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

    def __init__(self, listing: Listing, table: str, first_bucket: int, end_bucket: int) -> None:
        self._listing, self._table = listing, table
        self._first_bucket, self._end_bucket = first_bucket, end_bucket

    def read(self) -> Records:
        return self._listing.read(self._table, self._first_bucket, self._end_bucket)

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
    """The keys of a kernel as they are when they are first asked for, by virtual bucket."""

    def __init__(self, kernel: TableKernel) -> None:
        self._kernel, self._table = kernel, kernel.table
        self._updates = kernel.updates

    @cached_property
    def _rows(self) -> tuple[Keys, list[int]]:
        return _with_begins(self._table.list(0, _embedding.NUM_VIRTUAL_BUCKETS))

    @cached_property
    def _pending(self) -> tuple[Keys, list[int]]:
        return _with_begins(self._table.list_pending(0, _embedding.NUM_VIRTUAL_BUCKETS))

    def read(self, table: str, first_bucket: int, end_bucket: int) -> Records:
        ids_K, _ = _select(*self._rows, table, first_bucket, end_bucket)
        pending_P, pending_counts_P = _select(*self._pending, table, first_bucket, end_bucket)
        if len(ids_K) == len(pending_P) == 0:
            return self._nothing
        counts, steps, vectors, states = self._table.export_records(Keys(ids_K, table=table_number(table)))
        return self._records(ids_K, counts, steps, vectors, states, pending_P, pending_counts_P)

    @cached_property
    def _nothing(self) -> Records:
        """Most parts are empty where ids are few: they are pickled fast, as their columns share memory."""
        ids, counts, values = (torch.empty(0, dtype=each) for each in (torch.int64, torch.int32, torch.float32))
        vectors, states = values.view(0, self._table.dim), values.view(0, self._table.state_size)
        return self._records(ids, counts, counts, vectors, states, ids, counts)

    def _records(self, *columns: torch.Tensor) -> Records:
        return Records(_embedding.ROUTING_VERSION, self._updates, *columns)


def _with_begins(keys: Keys) -> tuple[Keys, list[int]]:
    _, counts = _embedding.route(keys, _embedding.NUM_VIRTUAL_BUCKETS)
    return keys, [0, *accumulate(counts.tolist())]


def _select(
    keys: Keys, begins: list[int], table: str, first_bucket: int, end_bucket: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and counts of one table in these buckets."""
    part = slice(begins[first_bucket], begins[end_bucket])
    assert keys.tables is not None, "listed keys have tables"
    mine = keys.tables[part] == table_numbers([table])
    counts = torch.empty(0, dtype=torch.int32) if keys.counts is None else keys.counts[part][mine]
    return keys.ids[part][mine].contiguous(), counts.contiguous()


def record_names(kernel: TableKernel, rank: int, num_ranks: int) -> Iterator[tuple[str, AnyRecords]]:
    """Names of a rank's records, after the submodule of tables, and what is under them."""
    listing = Listing(kernel)
    for table in kernel.merged.tables:
        for chunk, part, buckets in _parts(rank, num_ranks):
            records = RecordsElsewhere() if buckets is None else LiveRecords(listing, table.name, *buckets)
            yield f"{table.name}.{RECORDS}.{chunk:03d}.{part}", records


def table_of(name: str) -> str:
    """The table that a name of record_names() is of."""
    return name.split(f".{RECORDS}.")[0]


def _parts(rank: int, num_ranks: int) -> Iterator[tuple[int, int, tuple[int, int] | None]]:
    """Chunk, part and the buckets of this rank in it, for each part that it may read."""
    if num_ranks > NUM_CHUNKS:
        raise ValueError(f"checkpoints of dynamic tables are for at most {NUM_CHUNKS} ranks, not {num_ranks}")
    begin, end = (_embedding.first_bucket_of(each, num_ranks) for each in (rank, rank + 1))
    for chunk in range(begin // _BUCKETS_PER_CHUNK, -(-end // _BUCKETS_PER_CHUNK)):
        first = chunk * _BUCKETS_PER_CHUNK
        last = first + _BUCKETS_PER_CHUNK
        has_first, has_last = begin <= first, end >= last
        yield chunk, 0, (first, min(end, last)) if has_first else None
        own = (last, last) if has_first else (max(begin, first), last)
        yield chunk, 1, own if has_last else None


def load_records(kernel: TableKernel, own: Mapping[str, AnyRecords], loaded: Mapping[str, AnyRecords]) -> None:
    """Replaces all that a kernel knows by what it owns of what was loaded; a table without any keeps what it has.

    Args:
        own: of ``record_names()``, now.
        loaded: by the same names; others are passed over.
    Raises:
        ValueError: a part of a table is missing, or they are of another version of routing, or of another dimension or
            optimizer; nothing has changed.
    """
    there = {table_of(name) for name in own if name in loaded}
    if lacking := sorted({table_of(name) for name in own if name not in loaded} & there):
        raise ValueError(f"table {', '.join(lacking)}: a part of the records is missing")
    if not there:
        return
    chosen = {name: loaded.get(name, records).read() for name, records in own.items()}
    read = [(table_of(name), records) for name, records in chosen.items() if records is not None]
    for table, records in read:
        _expect_fitting(kernel, table, records)
    kernel.rebuild(updates=max((records.updates for _, records in read), default=0))
    for table, records in read:
        _import(kernel, table_number(table), records)


def _expect_fitting(kernel: TableKernel, table: str, records: Records) -> None:
    if records.routing_version != _embedding.ROUTING_VERSION:
        raise ValueError(
            f"table {table}: its records are of routing {records.routing_version}, not {_embedding.ROUTING_VERSION}"
        )
    saved = (records.vectors_KD.size(1), records.states_KS.size(1))
    if saved != (kernel.table.dim, kernel.table.state_size):
        raise ValueError(
            f"table {table}: its records have {saved[0]} columns and {saved[1]} values of an optimizer's state, not "
            f"{kernel.table.dim} and {kernel.table.state_size}"
        )


def _import(kernel: TableKernel, number: int, records: Records) -> None:
    rank, num_ranks = kernel.pg.rank(), kernel.pg.size()
    own = owned_by(Keys(records.ids_K, table=number), rank, num_ranks)
    columns = (records.counts_K[own], records.steps_K[own], records.vectors_KD[own], records.states_KS[own])
    kernel.table.import_records(Keys(records.ids_K[own], table=number), columns)
    waiting = owned_by(Keys(records.pending_P, table=number), rank, num_ranks)
    if len(waiting) > 0:
        keys = Keys(records.pending_P[waiting], table=number, counts=records.pending_counts_P[waiting])
        kernel.table.find_or_insert(keys.to(kernel.table.device))
