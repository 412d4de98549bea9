"""Runs a function on several ranks under a time limit. Each rank is a forked process with a default group."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import headway
import torch
import torch.distributed as dist

#: Backends that tests compare.
BACKENDS = ["gloo", "headway"]

FORK = multiprocessing.get_context("fork")
#: Context for ranks that use CUDA. A forked child cannot use CUDA.
SPAWN = multiprocessing.get_context("spawn")

#: Outcome of a rank that ended without an answer: it was killed, or ran out of time and was killed then.
DIED = object()


class RankError(AssertionError):
    """Exception of a rank, with its traceback."""


def join_group(
    rank: int,
    size: int,
    path: str,
    *,
    backend: str = "headway",
    timeout_s: float = 30,
    options: Any = None,
    hosts: str = "",
) -> None:
    """Makes the default group of one rank, with a file as rendezvous.

    Args:
        rank, size, path: rank, size of the group, and path of the file.
        backend, timeout_s, options: settings of the group.
        hosts: one letter per rank. Ranks with different letters pretend to be on different hosts.
    """
    torch.set_num_threads(1)
    if hosts:
        os.environ["HEADWAY_HOST_ID"] = hosts[rank]
    dist.init_process_group(
        backend,
        init_method=f"file://{path}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout_s),
        pg_options=options,
    )
    if backend == "gloo":
        dist.barrier()  # A rank that leaves before the others are connected to it breaks their group.


def make_group(backend: str, *, max_lag: int, slot_bytes: int = 1 << 16) -> dist.ProcessGroup:
    """Makes a further group of all ranks. The bound applies to Headway only."""
    options = headway.Options(max_lag=max_lag, slot_bytes=slot_bytes) if backend == "headway" else None
    return dist.new_group(backend=backend, pg_options=options)


def shared_store() -> dist.Store:
    """Store of the ranks' rendezvous, for a test's own keys."""
    return dist.PrefixStore("test", dist.distributed_c10d._get_default_store())


def run_ranks(
    function: Callable[..., Any],
    size: int,
    *arguments: Any,
    limit_s: float = 120,
    may_die: bool = False,
    context: Any = FORK,
    **group: Any,
) -> list[Any]:
    """Calls ``function(rank, *arguments)`` on ``size`` ranks and returns their results by rank.

    Args:
        function: runs in a process with a default group, which is destroyed afterwards.
        size: number of ranks.
        arguments: further arguments of ``function``.
        limit_s: all ranks are killed after this time.
        context: method that starts the processes.
        may_die: a rank that ends without an answer gives ``DIED`` instead of failing the test.
        group: keyword arguments of ``join_group()``.
    Raises:
        RankError: a rank raised, or died without ``may_die``, or ran out of time.
    """
    with tempfile.TemporaryDirectory() as folder:
        started = [_start(context, function, rank, size, f"{folder}/store", arguments, group) for rank in range(size)]
        deadline = time.monotonic() + limit_s
        try:
            results = [_collect(rank, process, pipe, deadline, may_die) for rank, (process, pipe) in enumerate(started)]
        finally:
            for process, _ in started:
                if process.is_alive():
                    process.kill()
                process.join()
    return results


def _start(
    context: Any,
    function: Callable[..., Any],
    rank: int,
    size: int,
    path: str,
    arguments: tuple[Any, ...],
    group: dict[str, Any],
) -> tuple[Any, multiprocessing.connection.Connection]:
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(theirs, function, rank, size, path, arguments, group))
    process.start()
    theirs.close()
    return process, ours


def _run(
    pipe: multiprocessing.connection.Connection,
    function: Callable[..., Any],
    rank: int,
    size: int,
    path: str,
    arguments: tuple[Any, ...],
    group: dict[str, Any],
) -> None:
    try:
        join_group(rank, size, path, **group)
        result = function(rank, *arguments)
        if dist.is_initialized():
            dist.destroy_process_group()
        pipe.send(("result", result))
    except BaseException:  # The parent reports the error.
        pipe.send(("error", traceback.format_exc()))


def _collect(
    rank: int, process: Any, pipe: multiprocessing.connection.Connection, deadline: float, may_die: bool
) -> Any:
    if not pipe.poll(max(0.0, deadline - time.monotonic())):
        raise RankError(f"rank {rank} gave no answer in time")
    try:
        kind, value = pipe.recv()
    except EOFError:
        process.join()
        if may_die:
            return DIED
        raise RankError(f"rank {rank} died with exit code {process.exitcode}") from None
    if kind == "error":
        raise RankError(f"rank {rank} raised:\n{value}")
    process.join(max(1.0, deadline - time.monotonic()))
    if process.exitcode != 0:
        raise RankError(f"rank {rank} ended with exit code {process.exitcode} after its result")
    return value


def kill_self() -> None:
    """Kills this process, as an out-of-memory killer would."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop_self(seconds: float) -> None:
    """Stops this process with all its threads for a while."""
    subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
