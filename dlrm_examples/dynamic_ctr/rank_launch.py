"""Runs a function on several ranks: processes of this host in a headway group."""

from __future__ import annotations

import ctypes
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from dlrm_examples.bls_dlrm.launch import RankFailedError
from dlrm_examples.bls_dlrm.rank_process import COLLECTIVE_TIMEOUT
from dlrm_examples.dynamic_ctr.group import all_ranks

T = TypeVar("T")
_PR_SET_PDEATHSIG = 1


def run_ranks(function: Callable[[dist.ProcessGroup], T], *, num_ranks: int, timeout_s: float) -> T:
    """Calls ``function`` on each rank with the group of all ranks.

    Args:
        function: a picklable function with a picklable result.
        num_ranks: number of processes. They are killed if this process dies.
        timeout_s: the processes are killed if they take longer.
    Returns:
        the result of rank 0.
    Raises:
        RankFailedError: a rank failed, died or ran out of time; the message is one line and names it.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=COLLECTIVE_TIMEOUT)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ranks: list[BaseProcess] = [
            context.Process(
                target=_rank_main, args=(rank, num_ranks, store.port, os.getpid(), function, folder), daemon=True
            )
            for rank in range(num_ranks)
        ]
        try:
            for process in ranks:
                process.start()
            _wait(ranks, folder, timeout_s=timeout_s)
        finally:
            for process in ranks:
                if process.is_alive():
                    process.kill()
                    process.join()
        result: T = pickle.loads(_result_file(folder).read_bytes())
    return result


def _wait(ranks: Sequence[BaseProcess], folder: Path, *, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while running := {rank: process for rank, process in enumerate(ranks) if process.exitcode is None}:
        sentinels = [process.sentinel for process in running.values()]
        if not multiprocessing.connection.wait(sentinels, timeout=max(0.0, deadline - time.monotonic())):
            raise RankFailedError(f"ranks {list(running)} did not finish within {timeout_s:g} s")
        _expect_success(ranks, folder)
    _expect_success(ranks, folder)


def _expect_success(ranks: Sequence[BaseProcess], folder: Path) -> None:
    """Raises RankFailedError if a rank has failed. It names a killed rank if there is one, else the earliest error."""
    status = {rank: process.exitcode for rank, process in enumerate(ranks) if process.exitcode not in (None, 0)}
    if not status:
        return
    for rank, code in status.items():
        if code is not None and code < 0:
            raise RankFailedError(f"rank {rank} was killed by {signal.Signals(-code).name}")
    errors = [path for path in (_error_file(folder, rank) for rank in range(len(ranks))) if path.exists()]
    if not errors:
        rank, code = next(iter(status.items()))
        raise RankFailedError(f"rank {rank} ended without a report (exit status {code})")
    first = min(errors, key=lambda path: path.stat().st_mtime_ns)
    raise RankFailedError(first.read_text())


def _rank_main(
    rank: int,
    num_ranks: int,
    store_port: int,
    launcher_pid: int,
    function: Callable[[dist.ProcessGroup], object],
    folder: Path,
) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher_pid:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher handles Ctrl-C for all ranks
    torch.set_num_threads(1)
    try:
        store = TCPStore("127.0.0.1", store_port, is_master=False, timeout=COLLECTIVE_TIMEOUT)
        dist.init_process_group("headway", store=store, rank=rank, world_size=num_ranks, timeout=COLLECTIVE_TIMEOUT)
        value = function(all_ranks())
        if rank == 0:
            _result_file(folder).write_bytes(pickle.dumps(value))
        dist.destroy_process_group()
    except Exception as error:
        new = folder / f"{rank}.new"
        new.write_text(f"rank {rank} failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
        new.rename(_error_file(folder, rank))
        raise SystemExit(1) from None


def _result_file(folder: Path) -> Path:
    return folder / "result.pickle"


def _error_file(folder: Path, rank: int) -> Path:
    return folder / f"{rank}.error"
