"""The flight recorder: what the ranks of a group did last, for a job that hangs or has failed.

A group records its last operations all the time. Where ``HEADWAY_FLIGHT_RECORDER`` names a folder, each rank writes
them there when a group fails. ``export()`` makes of these files what PyTorch's analyzer reads::

    HEADWAY_FLIGHT_RECORDER=~/flight torchrun ...
    headway flight-records ~/flight --output ~/flight-torch
    torchfrtrace ~/flight-torch
"""

from __future__ import annotations

import argparse
import json
import pathlib
import pickle
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple, TypedDict

import torch
import torch.distributed as dist

from headway.groups import backend_of
from headway.one_line_parser import OneLineParser

#: Version of PyTorch's format that is written.
_TORCH_FORMAT = "2.10"
#: The analyzer knows no other library's names, and "barrier" by that of NCCL's way to do it.
_TORCH_NAMES = {"all_to_all_v": "all_to_all", "barrier": "all_reduce_barrier"}
#: An operation that failed was pending: see ``_torch_state()``.
_TORCH_STATES = {"queued": "scheduled", "posted": "started", "completed": "completed"}


class FlightRecord(TypedDict):
    """One operation of a group on this rank. Times are nanoseconds since 1970; None where it did not come to that."""

    operation: str  #: "all_to_all_v", "broadcast", "gather", "scatter", "all_gather", "barrier", "send", "receive", ...
    number: int  #: alike on all ranks: of a channel's all-to-alls, of all other collectives, or of a pair's messages
    channel: int | None  #: of an all-to-all; those of ``headway.slots`` have numbers after the group's own
    device: int | None  #: of CUDA tensors: operations on them are numbered by themselves
    peer: int | None  #: root, or other side of a message; a rank in the group
    data_type: str
    input_bytes: int  #: what this rank gives, its own part included
    output_bytes: int
    state: str  #: "queued", "posted", "completed", or "failed": pending when the group failed
    started_ns: int
    posted_ns: int | None
    completed_ns: int | None
    waiting_for: list[int]  #: ranks in the group whose data has not come; if none, that have not taken this rank's


class FlightDump(TypedDict):
    """What one rank tells of one group: the contents of a file."""

    group: str  #: c10d's name of it
    rank: int  #: in the group
    global_ranks: list[int]  #: rank in the default group, by rank in this one
    failure: str | None
    capacity: int  #: completed operations kept: of each channel's all-to-alls, of all others, of all on CUDA tensors
    records: list[FlightRecord]


def flight_records(group: dist.ProcessGroup | None = None) -> list[FlightRecord]:
    """What is pending in a headway group on this rank, and the last operations that completed, by their start.

    Local; works from any thread, and after the group has failed: then it tells what was pending at that moment.
    ``Options(flight_records=)``, rounded up to a power of two, is how many are kept of each channel's exchanges, and of
    all other operations together, and of all on CUDA tensors; 0 switches the recorder off. Reductions are Gloo's or
    NCCL's, and not among them. An operation on CUDA tensors is posted when it is enqueued, and completed when it was
    seen that all had come that its streams wait for, which is looked at several times a second.

    Raises:
        ValueError: the group is not a headway group.
    """
    dump: FlightDump = json.loads(backend_of(group).flight_text())
    return dump["records"]


def dump_flight_records(path: str | pathlib.Path, *, group: dist.ProcessGroup | None = None) -> None:
    """Writes what this rank knows of a headway group, as JSON: a ``FlightDump``.

    Args:
        path: file to write; each rank needs one of its own, and ``export()`` reads all ``*.json`` of a folder.
    Raises:
        ValueError: the group is not a headway group.
        OSError: the file cannot be written.
    """
    pathlib.Path(path).write_text(backend_of(group).flight_text())


def export(folder: str | pathlib.Path, output: str | pathlib.Path) -> list[pathlib.Path]:
    """Makes of the files of all ranks what PyTorch's flight-recorder analyzer (``torchfrtrace``) reads.

    The analyzer compares the ranks' sequences of each process group. Headway has several sequences in a group that
    need not be started in one order: the all-to-alls of each channel, the other collectives, and the messages of each
    pair; those on CUDA tensors by themselves. Each is a process group to the analyzer, named
    ``GROUP:all_to_all:CHANNEL``, ``GROUP:collectives`` or ``GROUP:messages:SOURCE:DESTINATION`` (global ranks), with
    ``:cuda`` after ``GROUP`` of CUDA tensors. Messages are left out of a group in which a rank receives
    from any rank, since nothing then says which of them belong together.

    Args:
        folder: all ``*.json`` files in it are read; they must be of one job.
        output: folder for one file a rank, ``rank_N``; it is made where it is missing.
    Returns:
        the files.
    Raises:
        ValueError: there is no such file, or one is not what a group wrote.
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
    return dump


class _Sequence(NamedTuple):
    """Operations that the ranks of it number alike."""

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
    """Source and destination of a message, as ranks in the group."""
    assert record["peer"] is not None
    own, peer = dump["rank"], record["peer"]
    return (own, peer) if record["operation"] == "send" else (peer, own)


def _torch_dumps(dumps: list[FlightDump]) -> dict[int, dict[str, Any]]:
    """Contents of the file of each global rank."""
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
            contents[rank]["entries"] += [_entry(sequence, each) for each in records if each["number"] >= first]
    for each in contents.values():
        each["entries"].sort(key=lambda entry: entry["time_created_ns"])
    return contents


def _has_forgotten(dump: FlightDump) -> bool:
    """Whether collectives or messages of the group, or anything on a device, may be no longer among the records."""
    completed = [record for record in dump["records"] if record["state"] == "completed"]
    on_device = [record for record in completed if record["device"] is not None]
    others = [record for record in completed if record["device"] is None and record["channel"] is None]
    return max(len(on_device), len(others)) >= dump["capacity"]


def _first_comparable(by_rank: dict[int, list[FlightRecord]], forgetful: set[int]) -> int:
    """The first operation of a sequence from which on no rank has forgotten any: absence means that it was not started.

    The analyzer would find it by the places of entries among all those of a rank, which differ between ranks here.
    Where a forgetful rank knows none of the sequence, only what others have pending can be compared.
    """
    firsts = [0]
    for rank, records in by_rank.items():
        numbers = {record["number"] for record in records}
        if numbers:
            first = max(numbers)
            while first - 1 in numbers:
                first -= 1
            firsts.append(first)
        elif rank in forgetful:
            others = [record for each in by_rank.values() for record in each]
            pending = [record["number"] for record in others if record["state"] != "completed"]
            firsts.append(min(pending, default=max((record["number"] for record in others), default=0) + 1))
    return max(firsts)


def _entry(sequence: _Sequence, record: FlightRecord) -> dict[str, Any]:
    name = _TORCH_NAMES.get(record["operation"], record["operation"])
    is_message = name in ("send", "receive")
    if is_message:
        source, destination = (int(word) for word in sequence.name.split(":")[-2:])
        places = [sequence.global_ranks.index(each) for each in (source, destination)]
        name = f"send {places[0]}->{places[1]}" if name == "send" else f"recv {places[1]}<-{places[0]}"
    element_bytes = getattr(torch, record["data_type"]).itemsize
    state = record["state"]
    if state == "failed":
        state = "queued" if record["posted_ns"] is None else "posted"
    return {
        "record_id": 0,
        "pg_id": 0,
        "process_group": (sequence.name, sequence.name),
        "collective_seq_id": record["number"] + 1,
        "p2p_seq_id": record["number"] + 1 if is_message else 0,
        "op_id": record["number"] + 1,
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


def main(arguments: list[str]) -> int:
    """``headway flight-records``."""
    parser = OneLineParser(
        prog="headway flight-records",
        description="Makes of the flight records of all ranks what PyTorch's analyzer (torchfrtrace) reads.",
        epilog="Records come from a run with HEADWAY_FLIGHT_RECORDER=FOLDER in which a group failed.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="FOLDER", help="where the ranks wrote them")
    parser.add_argument("--output", metavar="FOLDER", required=True, help="where to put the analyzer's files")
    chosen = parser.parse_args(arguments)
    try:
        written = export(chosen.folder, chosen.output)
    except (OSError, ValueError) as error:
        parser.error(" ".join(str(error).split()))
    print(f"{len(written)} ranks; now: torchfrtrace {chosen.output}")
    return 0
