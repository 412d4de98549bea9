# SPDX-License-Identifier: Apache-2.0
"""Traces that show when exchanges started, were posted and completed, for Perfetto (ui.perfetto.dev) and
chrome://tracing.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any, TypedDict

import torch.distributed as dist

from headway.comm.groups import find_backend

#: Maximum number of exchanges recorded per channel of a group; later ones are dropped.
CAPACITY = 1_000_000


class TraceEvent(TypedDict):
    """One completed exchange. Times are in seconds of the host's monotonic clock.

    It starts with the call. It is posted when the transport has taken all messages of this rank. That is at once,
    unless max_lag is reached or the receive queue of a peer is full. It is completed when the data of all peers is
    here.
    """

    seq: int  #: position of the exchange among those of its channel, from 0
    channel: int  #: the group's all-to-all channel, below ``Options(num_channels=)``; channels lag independently
    started_s: float
    posted_s: float
    completed_s: float
    bytes_sent: int
    bytes_received: int
    last_peer: int  #: peer whose data arrived last; -1 if the rank waited for none
    lag: int  #: later exchanges of the channel that were posted when this one completed


@contextlib.contextmanager
def trace(path: str | pathlib.Path) -> Iterator[None]:
    """Records the exchanges of all headway groups that exist on entry, and writes them when the block ends.

    Each rank writes its own file. ``{rank}`` in ``path`` is replaced by the rank in the default group; without it,
    ``trace.json`` becomes ``trace.rank0.json``. All ranks of a host use one clock, so their files can be loaded
    together.

    Args:
        path: file to write, in Chrome's JSON format; its folder must exist.
    Raises:
        ValueError: no headway group exists.
    """
    recorder = ExchangeRecorder()
    if not recorder.num_groups:
        raise ValueError("there is no headway group to trace: call dist.init_process_group() first")
    rank = dist.get_rank()
    try:
        yield
    finally:
        rows = recorder.stop(rank=rank)
        _path_for(pathlib.Path(path), rank).write_text(json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"}))


class ExchangeRecorder:
    """Records the exchanges of all headway groups that exist now, until ``stop()``."""

    def __init__(self) -> None:
        self._backends = {name: backend for name, backend in _headway_backends().items() if backend is not None}
        for backend in self._backends.values():
            backend.drain_trace()
            backend.set_trace_capacity(CAPACITY)

    @property
    def num_groups(self) -> int:
        return len(self._backends)

    def stop(self, *, rank: int) -> list[dict[str, Any]]:
        """Ends the recording; returns its events in Chrome's format, as those of process ``rank``."""
        rows = [_label("process_name", rank, 0, f"rank {rank}")] if self._backends else []
        for track, (name, backend) in enumerate(self._backends.items()):
            rows.append(_label("thread_name", rank, track, f"group {name}"))
            for event in backend.drain_trace():
                rows.extend(trace_rows(event, rank=rank, track=track))
            backend.set_trace_capacity(0)
        return rows


def trace_rows(event: TraceEvent, *, rank: int, track: int) -> list[dict[str, Any]]:
    """Events in Chrome's format for one exchange: from start to completion, and within it the time until it was posted.

    Exchanges overlap if the rank lags, so these are asynchronous events, which the viewer matches by id. ``track`` is
    the index of the group, which has a row of its own in the viewer.
    """
    name = f"all_to_all {event['seq']}"
    key = f"{track}.{event['channel']}.{event['seq']}"
    common = {"cat": "headway", "pid": rank, "tid": track, "id": f"{rank}.{key}"}
    arguments = {word: event[word] for word in ("channel", "bytes_sent", "bytes_received", "last_peer", "lag")}
    rows = [
        {**common, "ph": "b", "name": name, "ts": event["started_s"] * 1e6, "args": arguments},
        {**common, "ph": "e", "name": name, "ts": event["completed_s"] * 1e6},
    ]
    if event["posted_s"] > event["started_s"]:
        rows[1:1] = [
            {**common, "ph": "b", "name": "not yet posted", "ts": event["started_s"] * 1e6},
            {**common, "ph": "e", "name": "not yet posted", "ts": event["posted_s"] * 1e6},
        ]
    return rows


def _headway_backends() -> dict[str, Any]:
    """Maps the name of each existing group to its headway backend; None for groups of other backends."""
    if not dist.is_available() or not dist.is_initialized():
        return {}
    world = dist.distributed_c10d._world
    return {name: find_backend(group) for group, name in world.pg_names.items()}


def _label(kind: str, rank: int, track: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": rank, "tid": track, "args": {"name": text}}


def _path_for(path: pathlib.Path, rank: int) -> pathlib.Path:
    if "{rank}" in str(path):
        return pathlib.Path(str(path).replace("{rank}", str(rank)))
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}")
