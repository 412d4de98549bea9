# SPDX-License-Identifier: Apache-2.0
"""Records of tables in a ``state_dict()``: N ranks save, M ranks load.

Idea: a key is the pair (table id, id). Its hash gives it one of 16,384 virtual buckets, and each rank owns a range of
them (routing). Tables of equal configuration are merged: they share one hash table (merging.py). A table has one
entry, ``TableRecords``, sharded by buckets. On loading, a rank keeps the records of its own buckets from all that it
has read.

Example: the entry of table "item" is ``<prefix>item.records``. Each of 2 ranks saved it as one fragment (the records of
a range of buckets), since it is small. Both fragments overlap the range of the second of 3 ranks. That rank reads both,
and imports only the keys that it owns.

Invariants: records state their buckets and the step count of their table, so a state that lacks buckets, or mixes two
steps, is rejected. Loading replaces all tables that the state has, or none if any records do not fit. Entries
are matched by table name, never by position. Importing does not count as a lookup. Pending keys, which wait for a row,
are imported after all rows.
Complexity: linear in the records that a rank has read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

from headway import _embedding
from headway._embedding import Table
from headway.embedding.merging import keep_within_limit, table_id_of
from headway.embedding.table_records import Listing, LiveRecords, Records, TableShard
from headway.embedding.table_state import TableRecords

RECORDS = "records"

#: Table names, each with some of the table's records.
ReadRecords = list[tuple[str, Records]]


def add_records(shards: Iterable[TableShard], state: MutableMapping[str, Any], prefix: str) -> None:
    """Adds the records of all tables to a state, under ``<prefix><table>.records``."""
    for shard in shards:
        state.update((f"{prefix}{table}.{RECORDS}", records) for table, records in _named_records(shard))


def take_records(
    shards: Sequence[TableShard],
    state: MutableMapping[str, Any],
    prefix: str,
    *,
    missing_keys: list[str],
    unexpected_keys: list[str],
    error_msgs: list[str],
) -> list[ReadRecords]:
    """Removes the records from a state, and reads those that ``import_records()`` must put into each shard.

    Errors are appended to the lists, as in ``Module._load_from_state_dict``.

    Args:
        shards: this rank's shards of the merged tables.
        state: the ``state_dict()`` to load; entries that are read are removed.
        prefix: start of the entries' names, up to the table name.
        missing_keys: gets the names of entries that the state lacks; their tables keep their records.
        unexpected_keys: gets entries of other tables, and misspelt ones.
        error_msgs: gets messages about records that are incomplete or do not fit.
    Returns:
        for each shard the records that its new table must hold; empty if the table stays as it is. If any records do
        not fit, all shards stay. A table that the state lacks keeps its records.
    """
    tables = [table for shard in shards for table in shard.names]
    loaded: dict[str, TableRecords] = {}
    is_wrong = False
    for name in [name for name in state if name.startswith(prefix)]:
        table, separator, rest = name[len(prefix) :].rpartition(f".{RECORDS}")
        if not separator or (rest and table not in tables):
            continue  # An entry of another module.
        records = state.pop(name)
        if rest:
            unexpected_keys.append(name)
        elif not isinstance(records, TableRecords):
            error_msgs.append(f"table {table}: {name} is a {type(records).__name__}, and no records")
            is_wrong = True
        else:
            loaded[table] = records
    if is_wrong:
        return [[] for _ in shards]
    missing_keys.extend(f"{prefix}{table}.{RECORDS}" for table in tables if table not in loaded)
    unexpected_keys.extend(f"{prefix}{table}.{RECORDS}" for table in loaded if table not in tables)
    try:
        return [_read_records(shard, loaded) for shard in shards]
    except ValueError as error:
        error_msgs.append(str(error))
        return [[] for _ in shards]


def import_records(shard: TableShard, read: ReadRecords) -> None:
    """Imports the records that this rank owns into ``shard.table``, which must not have their keys.

    A record is an id with its lookup count (``counts_K``), the step of its last lookup (``steps_K``), embedding and
    optimizer state. Rows beyond ``max_rows`` are evicted at the end, with a warning.

    Nothing counts as a lookup.

    Raises:
        MemoryError: the table has no room for all of them.
    """
    for pending in (False, True):  # Rows first: a key with a row never waits.
        for name, records in read:
            named = replace(records, table=table_id_of(name)).values()
            try:
                shard.table.import_records(named, pending=pending, rank=shard.rank, num_ranks=shard.num_ranks)
            except MemoryError as error:
                raise MemoryError(f"table {name}: {error}") from error
    keep_within_limit(shard.names, shard.table)


def updates_of(read: ReadRecords) -> int:
    """Returns the number of optimizer steps of the tables that these records are from."""
    return max((records.updates for _, records in read), default=0)


def _named_records(shard: TableShard) -> Iterator[tuple[str, TableRecords]]:
    """Yields the records of this rank, by table name. They read the table on demand, from one list of its keys."""
    listing = Listing(shard)
    for table in shard.names:
        yield table, TableRecords.of(LiveRecords(listing, table, shard.buckets))


def _read_records(shard: TableShard, loaded: Mapping[str, TableRecords]) -> ReadRecords:
    """Returns the records of all tables of a shard, or none if the state has none of them.

    Raises:
        ValueError: records do not fit the table, or some are missing.
    """
    if not any(table in loaded for table in shard.names):
        return []
    own = dict(_named_records(shard))
    result: ReadRecords = []
    for table in shard.names:
        fragments = loaded.get(table, own[table]).fragments()
        if shard.is_read_only:
            fragments = [replace(records, states_KS=records.states_KS[:, :0]) for records in fragments]
        for records in fragments:
            _expect_fitting(shard.table, table, records)
        # The bucket of an id depends on the table's name. If the table was renamed, ids are in other buckets now, so
        # this rank needs all of them.
        keeps_buckets = all(records.table == table_id_of(table) for records in fragments)
        _expect_whole(shard.buckets if keeps_buckets else (0, _embedding.NUM_VIRTUAL_BUCKETS), table, fragments)
        result.extend((table, records) for records in fragments)
    return result


def _expect_fitting(table: Table, name: str, records: Records) -> None:
    if records.routing_version != _embedding.ROUTING_VERSION:
        raise ValueError(
            f"table {name}: its records are of routing {records.routing_version}, not {_embedding.ROUTING_VERSION}"
        )
    saved = (records.embeddings_KD.size(1), records.states_KS.size(1))
    if saved != (table.dim, table.state_size):
        raise ValueError(
            f"table {name}: its records have {saved[0]} columns and {saved[1]} values of an optimizer's state, not "
            f"{table.dim} and {table.state_size}"
        )
    rows = (records.ids_K, records.counts_K, records.steps_K, records.embeddings_KD, records.states_KS)
    for columns in (rows, (records.pending_P, records.pending_counts_P)):
        if len({len(column) for column in columns}) > 1:
            raise ValueError(f"table {name}: a column of its records is truncated")


def _expect_whole(buckets: tuple[int, int], table: str, chosen: Iterable[Records]) -> None:
    """Checks that records cover all ``buckets``, and are of one state.

    Raises:
        ValueError: a bucket is missing, or the fragments have different step counts.
    """
    reached, end = buckets
    updates = set()
    for records in sorted(chosen, key=lambda each: each.buckets):
        updates.add(records.updates)
        if records.buckets[0] <= reached:
            reached = max(reached, records.buckets[1])
    if reached < end:
        raise ValueError(f"table {table}: a part of its records is missing, from bucket {reached} on")
    if len(updates) > 1:
        raise ValueError(f"table {table}: its records are of {sorted(updates)} updates, so of more than one state")
