"""Runs one function on several ranks, each a forked process with a default group, under a time limit."""

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
#: For ranks that use CUDA, which a forked child cannot.
SPAWN = multiprocessing.get_context("spawn")

#: Outcome of a rank that ended without an answer: it was killed, or ran out of time and was killed for it.
DIED = object()


class RankError(AssertionError):
    """What a rank raised, with its traceback."""


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
        rank, size, path: of the rank, of the group, of the file.
        backend, timeout_s, options: of the group.
        hosts: a letter for each rank; ranks with different ones act as if they were on different hosts.
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
        dist.barrier()  # A rank that leaves before others are connected to it breaks their group.


def make_group(backend: str, *, max_lag: int, slot_bytes: int = 1 << 16) -> dist.ProcessGroup:
    """A further group of all ranks; the bound is for Headway alone."""
    options = headway.Options(max_lag=max_lag, slot_bytes=slot_bytes) if backend == "headway" else None
    return dist.new_group(backend=backend, pg_options=options)


def shared_store() -> dist.Store:
    """The store that the ranks met in, for a test's own keys."""
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
        function: runs in a process whose default group is made; the group is destroyed afterwards.
        limit_s: all ranks are killed after that.
        context: how the processes are made.
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
    except BaseException:  # the parent reports it
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
    """Ends this process as an out-of-memory killer would."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop_self(seconds: float) -> None:
    """Stops this process, all its threads, for a while."""
    subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
