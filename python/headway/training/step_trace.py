# SPDX-License-Identifier: Apache-2.0
"""``StepTrace``: one file for Perfetto (ui.perfetto.dev) with stages, kernels and exchanges of all ranks in some steps.

Idea: each rank records with PyTorch's profiler and with the recorder of headway groups, and writes a file of its own.
Then rank 0 joins the files. PyTorch's events have the time of day. Exchanges have the monotonic clock of the host, and
are shifted by the difference of both clocks.

Example: steps 100 to 109 of 2 ranks. ``trace/rank_0.json`` and ``trace/rank_1.json`` become ``trace.json``, in which
the processes of rank 1 have the numbers from 1,000 on.

Invariants: all ranks begin and end with the same steps, so the ends may wait for each other. Nothing is recorded in
other steps. Between hosts, events are as exact as their clocks agree.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from headway.comm.tracing import ExchangeRecorder

Row = dict[str, Any]
_PROCESSES_PER_RANK = 1_000  #: Distance between the process numbers of two ranks in the joined file.


class StepTrace:
    """Records steps ``first`` to before ``end``. Used as a context; all ranks do the same.

    Args:
        steps: the steps, counted from 0; None: none.
        folder: gets ``trace.json``; a folder that all ranks see.
        group: the ranks; None: this one alone.
    """

    def __init__(self, steps: range | None, folder: Path | None, group: dist.ProcessGroup | None) -> None:
        self._steps, self._folder, self._group = steps, folder, group
        self._rank = 0 if group is None else group.rank()
        self._num_ranks = 1 if group is None else group.size()
        self._profiler: Any = None
        self._exchanges: ExchangeRecorder | None = None
        self.path: Path | None = None  #: The joined file, on rank 0.
        self.has_begun = False  #: A step was recorded.

    def __enter__(self) -> StepTrace:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._profiler is not None:
            self._write()
            if kind is None:  # Else another rank may not come.
                self._join()

    def move_to(self, step: int) -> None:
        """Begins or ends the recording if it is due before ``step``."""
        if self._steps is None or self._folder is None:
            return
        if self._profiler is None and step in self._steps:
            self._start()
        elif self._profiler is not None and step >= self._steps.stop:
            self._write()
            self._join()

    def _start(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._exchanges = ExchangeRecorder()
        self.has_begun = True
        self._profiler = torch.profiler.profile(activities=activities)
        self._profiler.start()

    def _write(self) -> None:
        """Ends the recording, and writes the file of this rank."""
        assert self._folder is not None and self._exchanges is not None
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # For the kernels of the last step.
        self._profiler.stop()
        path = self._path_of(self._rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._profiler.export_chrome_trace(str(path))
        self._profiler = None
        found = json.loads(path.read_text(encoding="utf-8"))
        of_day_ns = time.time_ns() - time.monotonic_ns() - found["baseTimeNanoseconds"]
        # Exchanges are shown as a process of their own, beside those of the profiler. join_files() numbers them all.
        exchanges = self._exchanges.stop(rank=_PROCESSES_PER_RANK - 1)
        for row in exchanges:
            row["ts"] = row.get("ts", 0) + of_day_ns / 1e3
        found["traceEvents"] += exchanges
        path.write_text(json.dumps(found), encoding="utf-8")

    def _join(self) -> None:
        if self._group is not None:
            dist.barrier(group=self._group)
        if self._rank == 0:
            assert self._folder is not None
            files = [json.loads(self._path_of(rank).read_text(encoding="utf-8")) for rank in range(self._num_ranks)]
            self.path = self._folder / "trace.json"
            self.path.write_text(json.dumps({"traceEvents": join_files(files), "displayTimeUnit": "ms"}))

    def _path_of(self, rank: int) -> Path:
        assert self._folder is not None
        return self._folder / "trace" / f"rank_{rank}.json"


def join_files(files: list[Row]) -> list[Row]:
    """Returns the events of all ranks, in microseconds since the earliest one.

    Args:
        files: by rank, as PyTorch's profiler writes them.
    """
    rows: list[Row] = []
    for rank, file in enumerate(files):
        shift_us = (file["baseTimeNanoseconds"] - files[0]["baseTimeNanoseconds"]) / 1e3
        processes: dict[Any, int] = {}
        for row in file["traceEvents"]:
            number = processes.setdefault(row.get("pid"), rank * _PROCESSES_PER_RANK + len(processes))
            row |= {"pid": number, "ts": row.get("ts", 0) + shift_us}
            if "id" in row:  # Flows and exchanges of two ranks are different ones.
                row["id"] = f"{rank}.{row['id']}"
            if row.get("ph") == "M" and row["name"] == "process_name":
                row["args"] = {"name": f"rank {rank}: {row['args']['name']}"}
            elif row.get("ph") == "M" and row["name"] == "process_sort_index":
                row["args"] = {"sort_index": number}
            rows.append(row)
    begin = min((row["ts"] for row in rows if row.get("ph") != "M"), default=0)
    for row in rows:
        row["ts"] = 0 if row.get("ph") == "M" else row["ts"] - begin
    return rows
