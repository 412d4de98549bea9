# SPDX-License-Identifier: Apache-2.0
"""Runs a function on several ranks: processes of this host that torch.multiprocessing starts, in one default group.

A rank that fails, dies or hangs ends all ranks, and the error names it. The ranks end with the process that started
them.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import pickle
import queue
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.multiprocessing import ProcessContext, start_processes  # type: ignore[attr-defined]

import headway  # noqa: F401 - registers the backend
from headway.comm.process_end import end_process

COLLECTIVE_TIMEOUT = timedelta(seconds=120)
_POLL_S = 0.2
#: Modules that are imported once, by the process that forks all ranks. It lives as long as this one, and has those of
#: the first call. Each rank would take 1.4 s of processor time to import torch.
PRELOADED = ["torch", "headway", __name__]
T = TypeVar("T")
M = TypeVar("M")


class RankFailedError(RuntimeError):
    """A rank stopped before it finished; the message is one line."""


def run_ranks(
    function: Callable[[int, Callable[[M], None]], T],
    *,
    num_ranks: int,
    timeout_s: float,
    backend: str,
    on_message: Callable[[M], None] = lambda message: None,
    wait_s: float = COLLECTIVE_TIMEOUT.total_seconds(),
    passes_sigterm: bool = False,
) -> T:
    """Calls ``function(rank, send)`` on each rank, with a default group of all ranks.

    Args:
        function: picklable, as are its result and what it sends. Its module is imported once for all ranks.
        num_ranks: number of processes. They are killed if this process dies.
        timeout_s: the processes are killed if they take longer.
        backend: backend of the default group.
        on_message: called in this process for each message that a rank sends; those of one rank keep their order.
        wait_s: timeout of the default group.
        passes_sigterm: send SIGTERM on to the ranks, which end by themselves. Otherwise it ends this process, and they
            with it.
    Returns:
        the result of rank 0.
    Raises:
        RankFailedError: a rank failed, died or ran out of time; the message names it.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=COLLECTIVE_TIMEOUT)
    # For the ranks; this process read the variables earlier.
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    multiprocessing.set_forkserver_preload([*PRELOADED, _module_of(function)])
    inbox: multiprocessing.Queue[Any] = multiprocessing.get_context("forkserver").Queue()
    arguments = (function, num_ranks, backend, store.port, inbox, wait_s, dict(os.environ))
    ranks = start_processes(  # type: ignore[no-untyped-call]
        _rank_main, arguments, nprocs=num_ranks, join=False, daemon=True, start_method="forkserver"
    )
    deadline = time.monotonic() + timeout_s
    restore = _pass_sigterm_to(ranks) if passes_sigterm else None
    results: list[T] = []
    try:
        while _are_running(ranks) or not inbox.empty():
            with suppress(queue.Empty):
                message, is_result = inbox.get(timeout=_POLL_S)
                results.append(message) if is_result else on_message(message)
            if time.monotonic() > deadline:
                running = [rank for rank, process in enumerate(ranks.processes) if process.exitcode is None]
                raise RankFailedError(f"ranks {running} did not finish within {timeout_s:g} s")
    finally:
        if restore is not None:
            restore()
        for process in ranks.processes:
            process.kill()
            process.join()
        inbox.close()
    return results[0]


def _module_of(function: Callable[..., Any]) -> str:
    while isinstance(function, partial):
        function = function.func
    return function.__module__


def _pass_sigterm_to(ranks: ProcessContext) -> Callable[[], None]:
    """Sends each SIGTERM of this process to all ranks; returns a function that restores the previous handler."""

    def pass_on(number: int, frame: Any) -> None:
        for process in ranks.processes:
            if process.exitcode is None:
                process.terminate()

    before = signal.signal(signal.SIGTERM, pass_on)

    def restore() -> None:
        signal.signal(signal.SIGTERM, before)

    return restore


def _are_running(ranks: ProcessContext) -> bool:
    """Whether some ranks still run.

    Raises:
        RankFailedError: a rank has failed. It names one that died without a report, else the one whose report came
            first: others report that they have lost it.
    """
    codes = {rank: process.exitcode for rank, process in enumerate(ranks.processes)}
    failed = {rank: code for rank, code in codes.items() if code}
    errors = {rank: path for rank in failed if (path := Path(ranks.error_files[rank])).exists()}
    for rank, code in failed.items():
        if rank in errors:
            continue
        if code < 0:
            raise RankFailedError(f"rank {rank} was killed by {signal.Signals(-code).name}")
        raise RankFailedError(f"rank {rank} ended without a report (exit status {code})")
    if errors:
        first = min(errors, key=lambda rank: errors[rank].stat().st_mtime_ns)
        text = pickle.loads(errors[first].read_bytes()).rpartition(f"{RankFailedError.__name__}: ")[2].strip()
        raise RankFailedError(f"rank {first} failed: {text}")
    return None in codes.values()


def _rank_main(
    rank: int,
    function: Callable[[int, Callable[[Any], None]], Any],
    num_ranks: int,
    backend: str,
    store_port: int,
    outbox: multiprocessing.Queue[Any],
    wait_s: float,
    environ: dict[str, str],
) -> None:
    os.environ.clear()  # The process that forks the ranks keeps what it was started with.
    os.environ |= environ
    _end_with_launcher()
    torch.set_num_threads(1)
    try:
        store = TCPStore("127.0.0.1", store_port, is_master=False, timeout=COLLECTIVE_TIMEOUT)
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=num_ranks, timeout=timedelta(seconds=wait_s)
        )
        result = function(rank, lambda message: outbox.put((message, False)))
        dist.destroy_process_group()
    except Exception as error:
        raise RankFailedError(_describe(error)) from None
    if rank == 0:
        outbox.put((result, True))
    end_process()


def _end_with_launcher() -> None:
    """Lets the kernel send SIGINT, which ends this process, when the launcher ends, even by SIGKILL.

    The parent of a rank is the process that forks all ranks, and that lives as long as they do. Each rank has the read
    end of a pipe that the launcher alone can write to. Ctrl-C also reaches the launcher, which reports it once.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    fcntl.fcntl(launcher.sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(launcher.sentinel, fcntl.F_SETSIG, signal.SIGINT)
    fcntl.fcntl(launcher.sentinel, fcntl.F_SETFL, fcntl.fcntl(launcher.sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    if not launcher.is_alive():  # It ended before.
        os.kill(os.getpid(), signal.SIGINT)


def _describe(error: Exception) -> str:
    """One line for the user: type, message, and the file and line that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" (at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
    return f"{type(error).__name__}: {first_line}{where}"
