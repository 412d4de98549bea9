"""The records of tables in a ``state_dict()``, so that any number of ranks loads what any other number saved.

Each table has one value, ``TableRecords``, of which a rank has the virtual buckets that it owns. On loading a rank
takes what it owns of what it has read. Records say which buckets they are of, so a state that lacks some is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

from headway import _embedding
from headway._embedding import Keys, KeyStatus, Table
from headway.embedding.keys import owned_by
from headway.embedding.merging import keep_within_limit, table_number
from headway.embedding.table_records import Listing, LiveRecords, Records, TablePart
from headway.embedding.table_state import TableRecords

RECORDS = "records"

#: Tables, each with some of its records.
ReadRecords = list[tuple[str, Records]]


def add_records(parts: Iterable[TablePart], state: MutableMapping[str, Any], prefix: str) -> None:
    """Puts the records of all tables into a state, by ``prefix`` and the table's name."""
    for part in parts:
        state.update((f"{prefix}{table}.{RECORDS}", records) for table, records in _named_records(part))


def take_records(
    parts: Sequence[TablePart],
    state: MutableMapping[str, Any],
    prefix: str,
    *,
    missing_keys: list[str],
    unexpected_keys: list[str],
    error_msgs: list[str],
) -> list[ReadRecords]:
    """Removes the records from a state, and reads those that ``import_records()`` puts into the tables of each part.

    As in ``Module._load_from_state_dict``, what is wrong is added to the lists: tables that the state has not, others
    that it has, names that no state has, and what is missing of a table or does not fit.

    Returns:
        by part, what it must have from now on: nothing if all of it stays as it is, as it does where records do not
        fit. A table that the state has not keeps what it has.
    """
    loaded: dict[str, TableRecords] = {}
    for name in [name for name in state if name.startswith(prefix) and f".{RECORDS}" in name]:
        table, end, rest = name[len(prefix) :].rpartition(f".{RECORDS}")
        records = state.pop(name)
        if rest or not end:
            unexpected_keys.append(name)
        elif not isinstance(records, TableRecords):
            error_msgs.append(f"table {table}: {name} is a {type(records).__name__}, and no records")
            return [[] for _ in parts]
        else:
            loaded[table] = records
    tables = [table for part in parts for table in part.names]
    missing_keys.extend(f"{prefix}{table}.{RECORDS}" for table in tables if table not in loaded)
    unexpected_keys.extend(f"{prefix}{table}.{RECORDS}" for table in loaded if table not in tables)
    try:
        return [_read_records(part, loaded) for part in parts]
    except ValueError as error:
        error_msgs.append(str(error))
        return [[] for _ in parts]


def import_records(part: TablePart, read: ReadRecords) -> None:
    """Puts records into the table of ``part``, which has none of their keys. Nothing counts as a lookup.

    Raises:
        MemoryError: there is no room for all of them.
    """
    for name, records in read:
        number = table_number(name)
        own = owned_by(Keys(records.ids_K, table=number), part.rank, part.num_ranks)
        columns = (records.counts_K[own], records.steps_K[own], records.vectors_KD[own], records.states_KS[own])
        statuses = part.table.import_records(Keys(records.ids_K[own], table=number), columns)
        if (statuses == KeyStatus.NO_ROOM.value).any():
            raise MemoryError(f"table {name}: there is no room for its records")
    for name, records in read:
        number = table_number(name)
        waiting = owned_by(Keys(records.pending_P, table=number), part.rank, part.num_ranks)
        if len(waiting) > 0:
            keys = Keys(records.pending_P[waiting], table=number, counts=records.pending_counts_P[waiting])
            part.table.import_pending(keys)
    keep_within_limit(part.names, part.table)


def updates_of(read: ReadRecords) -> int:
    """How many updates tables with these records have had."""
    return max((records.updates for _, records in read), default=0)


def _named_records(part: TablePart) -> Iterator[tuple[str, TableRecords]]:
    """The records of a rank, by table."""
    listing = Listing(part)
    for table in part.names:
        yield table, TableRecords.of(LiveRecords(listing, table, part.buckets))


def _read_records(part: TablePart, loaded: Mapping[str, TableRecords]) -> ReadRecords:
    if not any(table in loaded for table in part.names):
        return []
    own = dict(_named_records(part))
    result: ReadRecords = []
    for table in part.names:
        pieces = loaded.get(table, own[table]).pieces()
        if part.is_read_only:
            pieces = [replace(records, states_KS=records.states_KS[:, :0]) for records in pieces]
        for records in pieces:
            _expect_fitting(part.table, table, records)
        # Ids of a table that had another name are in other buckets here.
        keeps_buckets = all(records.table == table_number(table) for records in pieces)
        _expect_whole(part.buckets if keeps_buckets else (0, _embedding.NUM_VIRTUAL_BUCKETS), table, pieces)
        result.extend((table, records) for records in pieces)
    return result


def _expect_fitting(table: Table, name: str, records: Records) -> None:
    if records.routing_version != _embedding.ROUTING_VERSION:
        raise ValueError(
            f"table {name}: its records are of routing {records.routing_version}, not {_embedding.ROUTING_VERSION}"
        )
    saved = (records.vectors_KD.size(1), records.states_KS.size(1))
    if saved != (table.dim, table.state_size):
        raise ValueError(
            f"table {name}: its records have {saved[0]} columns and {saved[1]} values of an optimizer's state, not "
            f"{table.dim} and {table.state_size}"
        )
    rows = (records.ids_K, records.counts_K, records.steps_K, records.vectors_KD, records.states_KS)
    for columns in (rows, (records.pending_P, records.pending_counts_P)):
        if len({len(column) for column in columns}) > 1:
            raise ValueError(f"table {name}: a column of its records is truncated")


def _expect_whole(buckets: tuple[int, int], table: str, chosen: Iterable[Records]) -> None:
    """Records of one state are there for all buckets of this rank."""
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
