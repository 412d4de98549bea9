# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: the last operations of each rank of a group, for a job that hangs or has failed.

Every group records its last operations all the time. If ``HEADWAY_FLIGHT_RECORDER`` names a folder, each rank writes
its records there when a group fails. ``export()`` converts these files for PyTorch's flight-recorder analyzer::

    HEADWAY_FLIGHT_RECORDER=~/flight torchrun ...
    headway flight-records ~/flight --output ~/flight-torch
    torchfrtrace ~/flight-torch
"""

from __future__ import annotations

import json
import pathlib
import pickle
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple, TypedDict, cast

import torch
import torch.distributed as dist

from headway.comm._former_keys import WithFormerKeys
from headway.comm.groups import backend_of

#: Version of PyTorch's flight-recorder format that export() writes.
_TORCH_FORMAT = "2.10"
#: Names that the analyzer expects. It knows only names of NCCL, where a barrier is an all-reduce.
_TORCH_NAMES = {"all_to_all_v": "all_to_all", "barrier": "all_reduce_barrier"}
#: PyTorch's name of each state. ``_entry()`` maps "failed" to "queued" or "posted", as the operation was pending.
_TORCH_STATES = {"queued": "scheduled", "posted": "started", "completed": "completed"}


#: New name of each former key of a record.
_NEW_NAMES = {"number": "seq"}


class FlightRecord(TypedDict):
    """One operation of a group on this rank. Times are in nanoseconds since 1970; None: it has not happened."""

    operation: str  #: "all_to_all_v", "broadcast", "gather", "scatter", "all_gather", "barrier", "send", "receive", ...
    #: From 0, equal on all ranks. Counts the all-to-alls of a channel, all other collectives, or a pair's messages.
    seq: int
    #: Channel of an all-to-all, else None. A ``headway.slots.Ring`` has one after the group's own channels.
    channel: int | None
    device: int | None  #: CUDA device ordinal, None for host memory; each kind of memory has sequences of its own
    peer: int | None  #: root of a collective, or other end of a message; a rank in the group
    data_type: str  #: name of the dtype in ``torch``, such as "float32"
    input_bytes: int  #: bytes that this rank contributes, including its block to itself
    output_bytes: int
    #: "queued" (started; not all messages of this rank are with the transport), "posted" (they are), "completed", or
    #: "failed" (was pending when the group failed).
    state: str
    started_ns: int
    posted_ns: int | None
    completed_ns: int | None
    waiting_for: list[int]  #: ranks whose data is missing; if none is, ranks that have not received this rank's data


class FlightDump(TypedDict):
    """Flight records of one group on one rank: the contents of one file."""

    group: str  #: c10d's name of the group
    rank: int  #: this rank in the group
    global_ranks: list[int]  #: (size,) rank in the default group, indexed by rank in this group
    failure: str | None  #: reason of the group's failure; None: it has not failed
    capacity: int  #: completed operations kept of each channel, of all others together, and of all on CUDA tensors
    records: list[FlightRecord]


def flight_records(group: dist.ProcessGroup | None = None) -> list[FlightRecord]:
    """Pending and last completed operations of a headway group on this rank, in the order of their start.

    Local; may be called from any thread. After a failure it returns the operations that were pending at that moment.

    ``Options(flight_records=)``, rounded up to a power of two, is the number of completed operations kept: of each
    channel's exchanges, of all other operations together, and of all operations on CUDA tensors. 0 turns the recorder
    off. Reductions run in Gloo or NCCL and are not recorded. An operation on CUDA tensors is "posted" when it is
    enqueued. It is "completed" when the host has seen that all data arrived, which it checks several times a second.

    Raises:
        ValueError: the group is not a headway group.
    """
    dump: FlightDump = json.loads(backend_of(group).flight_text())
    return [
        cast(FlightRecord, WithFormerKeys(each, new_names=_NEW_NAMES, owner="flight_records()"))
        for each in dump["records"]
    ]


def dump_flight_records(path: str | pathlib.Path, *, group: dist.ProcessGroup | None = None) -> None:
    """Writes the flight records of a headway group on this rank as JSON, a ``FlightDump``.

    Args:
        path: file to write, a different one on each rank; ``export()`` reads all ``*.json`` files of a folder.
    Raises:
        ValueError: the group is not a headway group.
        OSError: the file cannot be written.
    """
    pathlib.Path(path).write_text(backend_of(group).flight_text())


def export(folder: str | pathlib.Path, output: str | pathlib.Path) -> list[pathlib.Path]:
    """Converts the files of all ranks for PyTorch's flight-recorder analyzer (``torchfrtrace``).

    The analyzer compares one sequence of operations per process group over the ranks. A headway group has several
    sequences that ranks may start in different order: the all-to-alls of each channel, the other collectives, and the
    messages of each pair of ranks. Operations on CUDA tensors form sequences of their own. Each sequence becomes a
    process group of the analyzer: ``GROUP:all_to_all:CHANNEL``, ``GROUP:collectives`` or
    ``GROUP:messages:SOURCE:DESTINATION`` (global ranks). For CUDA tensors ``GROUP`` is followed by ``:cuda``. If any
    rank of a group receives from any source, the group's messages are left out: the records do not tell which send
    matched such a receive.

    Args:
        folder: all its ``*.json`` files are read; they must belong to one job.
        output: folder for one file per rank, ``rank_N``; created if missing.
    Returns:
        paths of the written files.
    Raises:
        ValueError: the folder has no ``*.json`` file, or one of them is not a ``FlightDump``.
    """
    dumps = [_read(path) for path in sorted(pathlib.Path(folder).glob("*.json"))]
    if not dumps:
        raise ValueError(f"{folder}: there are no flight records (*.json)")
    target = pathlib.Path(output)
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for rank, contents in _torch_dumps(dumps).items():
        path = target / f"rank_{rank}"
        path.write_bytes(pickle.dumps(contents))
        written.append(path)
    return written


def _read(path: pathlib.Path) -> FlightDump:
    try:
        dump: FlightDump = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(dump, dict) or not FlightDump.__annotations__.keys() <= dump.keys():
        raise ValueError(f"{path}: not the flight records of a headway group")
    for record in dump["records"]:
        for old, new in _NEW_NAMES.items():  # Files of an earlier release have the former keys.
            if old in record:
                record[new] = record.pop(old)  # type: ignore[literal-required, misc]
    return dump


class _Sequence(NamedTuple):
    """Operations that ``global_ranks`` number alike; one process group of the analyzer."""

    name: str
    global_ranks: tuple[int, ...]


def _sequences_of(dump: FlightDump) -> Iterator[tuple[_Sequence, FlightRecord]]:
    ranks = tuple(dump["global_ranks"])
    for record in dump["records"]:
        group = dump["group"] if record["device"] is None else f"{dump['group']}:cuda"
        if record["channel"] is not None:
            yield _Sequence(f"{group}:all_to_all:{record['channel']}", ranks), record
        elif record["operation"] not in ("send", "receive", "receive_any"):
            yield _Sequence(f"{group}:collectives", ranks), record
        elif record["peer"] is not None:
            source, destination = (ranks[rank] for rank in _ends(dump, record))
            pair = (min(source, destination), max(source, destination))
            yield _Sequence(f"{group}:messages:{source}:{destination}", pair), record


def _ends(dump: FlightDump, record: FlightRecord) -> tuple[int, int]:
    """(source, destination) of a message, as ranks in the group."""
    assert record["peer"] is not None
    own, peer = dump["rank"], record["peer"]
    return (own, peer) if record["operation"] == "send" else (peer, own)


def _torch_dumps(dumps: list[FlightDump]) -> dict[int, dict[str, Any]]:
    """Maps each global rank to the contents of its file."""
    by_sequence: dict[_Sequence, dict[int, list[FlightRecord]]] = defaultdict(dict)
    ambiguous = {dump["group"] for dump in dumps if any(r["operation"] == "receive_any" for r in dump["records"])}
    for dump in dumps:
        global_rank = dump["global_ranks"][dump["rank"]]
        for sequence, record in _sequences_of(dump):
            if ":messages:" in sequence.name and dump["group"] in ambiguous:
                continue
            by_sequence[sequence].setdefault(global_rank, []).append(record)
    ranks = sorted({dump["global_ranks"][dump["rank"]] for dump in dumps})
    contents: dict[int, dict[str, Any]] = {
        rank: {"version": _TORCH_FORMAT, "pg_config": {}, "pg_status": {}, "entries": []} for rank in ranks
    }
    forgetful = {dump["global_ranks"][dump["rank"]] for dump in dumps if _has_forgotten(dump)}
    for sequence, by_rank in by_sequence.items():
        known = {rank: by_rank.get(rank, []) for rank in ranks if rank in sequence.global_ranks}
        first = _first_comparable(known, forgetful)
        for rank, records in known.items():
            contents[rank]["pg_config"][sequence.name] = {
                "name": sequence.name,
                "desc": sequence.name,
                "ranks": str(list(sequence.global_ranks)),
            }
            contents[rank]["entries"] += [_entry(sequence, each) for each in records if each["seq"] >= first]
    for each in contents.values():
        each["entries"].sort(key=lambda entry: entry["time_created_ns"])
    return contents


def _has_forgotten(dump: FlightDump) -> bool:
    """Whether the recorder may have overwritten collectives, messages, or any operation on CUDA tensors."""
    completed = [record for record in dump["records"] if record["state"] == "completed"]
    on_device = [record for record in completed if record["device"] is not None]
    others = [record for record in completed if record["device"] is None and record["channel"] is None]
    return max(len(on_device), len(others)) >= dump["capacity"]


def _first_comparable(by_rank: dict[int, list[FlightRecord]], forgetful: set[int]) -> int:
    """Sequence number of the first operation from which on the records of all ranks are complete.

    From there on, a missing record means that the rank has not started the operation. Before it, a recorder may have
    overwritten the record. The analyzer would align ranks by the position of entries among all entries of a rank, but
    these positions differ between ranks here. ``forgetful``: ranks whose recorder may have overwritten records. If such
    a rank has no record of the sequence, only the operations that are pending on other ranks can be compared.

    Example: rank 0 has records 3 to 6, rank 1 has 5 to 7: the result is 5. Rank 0 has not started 7.
    """
    firsts = [0]
    for rank, records in by_rank.items():
        seqs = {record["seq"] for record in records}
        if seqs:
            first = max(seqs)
            while first - 1 in seqs:
                first -= 1
            firsts.append(first)
        elif rank in forgetful:
            others = [record for each in by_rank.values() for record in each]
            pending = [record["seq"] for record in others if record["state"] != "completed"]
            firsts.append(min(pending, default=max((record["seq"] for record in others), default=0) + 1))
    return max(firsts)


def _entry(sequence: _Sequence, record: FlightRecord) -> dict[str, Any]:
    """One operation as an entry of PyTorch's flight recorder, whose sequence numbers begin at 1."""
    name = _TORCH_NAMES.get(record["operation"], record["operation"])
    is_message = name in ("send", "receive")
    if is_message:
        source, destination = (int(word) for word in sequence.name.split(":")[-2:])
        ends = [sequence.global_ranks.index(each) for each in (source, destination)]
        name = f"send {ends[0]}->{ends[1]}" if name == "send" else f"recv {ends[1]}<-{ends[0]}"
    element_bytes = getattr(torch, record["data_type"]).itemsize
    state = record["state"]
    if state == "failed":
        state = "queued" if record["posted_ns"] is None else "posted"
    return {
        "record_id": 0,
        "pg_id": 0,
        "process_group": (sequence.name, sequence.name),
        "collective_seq_id": record["seq"] + 1,
        "p2p_seq_id": record["seq"] + 1 if is_message else 0,
        "op_id": record["seq"] + 1,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": record["started_ns"],
        "time_discovered_started_ns": record["posted_ns"],
        "time_discovered_completed_ns": record["completed_ns"] if state == "completed" else None,
        "input_sizes": [[record["input_bytes"] // element_bytes]],
        "input_dtypes": [record["data_type"]],
        "output_sizes": [[record["output_bytes"] // element_bytes]],
        "output_dtypes": [record["data_type"]],
        "state": _TORCH_STATES[state],
        "retired": record["state"] == "completed",
        "timeout_ms": 0,
        "is_p2p": is_message,
        "frames": [],
    }
