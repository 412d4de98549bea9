"""The records of tables in a ``state_dict()``, so that any number of ranks loads what any other number saved.

A table has ``NUM_CHUNKS`` chunks of virtual buckets, each of two parts with names that never change: the part of the
owner of its first bucket, and that of the owner of its last one, which is empty if the chunk has one owner. A rank has
both names of every chunk that it owns a bucket of. It writes its own parts; the others have no items to write, and are
there to be read. On loading a rank takes what it owns of what it has read. Records say which buckets they are of, so
that a state without some of them is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from headway import _embedding
from headway._embedding import Keys, KeyStatus, Table
from headway.embedding.keys import owned_by
from headway.embedding.merging import keep_within_limit, table_number
from headway.embedding.table_records import AnyRecords, Listing, LiveRecords, Records, RecordsElsewhere, TablePart

NUM_CHUNKS = 256
RECORDS = "records"

_BUCKETS_PER_CHUNK = _embedding.NUM_VIRTUAL_BUCKETS // NUM_CHUNKS
_PARTS = frozenset(f"{chunk:03d}.{part}" for chunk in range(NUM_CHUNKS) for part in range(2))

#: Tables, each with some of its records.
ReadRecords = list[tuple[str, Records]]


def add_records(parts: Iterable[TablePart], state: MutableMapping[str, Any], prefix: str) -> None:
    """Puts the records of all tables into a state, by ``prefix`` and the table's name."""
    for part in parts:
        state.update((prefix + name, records) for name, records in _named_records(part))


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
    ours = [name for name in state if name.startswith(prefix) and f".{RECORDS}." in name]
    loaded: dict[str, dict[str, AnyRecords]] = {}
    for name in ours:
        short = name[len(prefix) :]
        records = state.pop(name)
        if records is None:  # As what torch.distributed.checkpoint was not to load.
            continue
        table, part_of_chunk = short.rsplit(f".{RECORDS}.", 1)
        if part_of_chunk not in _PARTS:
            unexpected_keys.append(name)
            continue
        if not isinstance(records, AnyRecords):
            error_msgs.append(f"table {table}: {name} is a {type(records).__name__}, and no records")
            return [[] for _ in parts]
        loaded.setdefault(table, {})[short] = records
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


def _named_records(part: TablePart) -> Iterator[tuple[str, AnyRecords]]:
    """Names of a rank's records, and what is under them."""
    listing = Listing(part)
    for table in part.names:
        for name, buckets in _names_of(table, part):
            yield name, RecordsElsewhere() if buckets is None else LiveRecords(listing, table, buckets)


def _names_of(table: str, part: TablePart) -> Iterator[tuple[str, tuple[int, int] | None]]:
    """A table's names that a rank may read, each with the buckets of its own that it writes there."""
    if part.num_ranks > NUM_CHUNKS:
        raise ValueError(f"the state of tables is for at most {NUM_CHUNKS} ranks, not {part.num_ranks}")
    begin, end = part.buckets
    for chunk in range(begin // _BUCKETS_PER_CHUNK, -(-end // _BUCKETS_PER_CHUNK)):
        first = chunk * _BUCKETS_PER_CHUNK
        last = first + _BUCKETS_PER_CHUNK
        has_first, has_last = begin <= first, end >= last
        rest = (last, last) if has_first else (max(begin, first), last)
        name = f"{table}.{RECORDS}.{chunk:03d}"
        yield f"{name}.0", (first, min(end, last)) if has_first else None
        yield f"{name}.1", rest if has_last else None


def _read_records(part: TablePart, loaded: Mapping[str, Mapping[str, AnyRecords]]) -> ReadRecords:
    if not any(table in loaded for table in part.names):
        return []
    own = dict(_named_records(part))
    result: ReadRecords = []
    for table in part.names:
        names = [name for name, _ in _names_of(table, part)]
        source = loaded.get(table, own)
        chosen = [records for name in names if name in source and (records := source[name].read()) is not None]
        for records in chosen:
            _expect_fitting(part.table, table, records)
        _expect_whole(part.buckets, table, chosen)
        result.extend((table, records) for records in chosen)
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
