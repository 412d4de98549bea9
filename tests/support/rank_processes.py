# SPDX-License-Identifier: Apache-2.0
"""Runs a function on several ranks under a time limit. Each rank is a child process with a default group."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import headway
import torch
import torch.distributed as dist
from headway.comm.rank_processes import PRELOADED
from torch.multiprocessing import start_processes

#: Backends that tests compare.
BACKENDS = ["gloo", "headway"]

#: Outcome of a rank that ended without a result and without an exception, such as one that was killed.
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
    """Makes a further group of all ranks. The options apply to Headway only.

    Args:
        backend: one of BACKENDS.
        max_lag: exchanges by which a rank may run ahead of the slowest one.
        slot_bytes: receive buffer for the block that one rank sends to another in an exchange.
    """
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
    start_method: str = "fork",
    **group: Any,
) -> list[Any]:
    """Calls ``function(rank, *arguments)`` on ``size`` ranks and returns their results by rank.

    Args:
        function: runs in a process with a default group, which is destroyed afterwards.
        size: number of ranks.
        arguments: further arguments of ``function``.
        limit_s: a rank without a result after this time is an error; all ranks are then killed.
        may_die: a rank that ends without a result or an exception gives ``DIED`` instead of failing the test.
        start_method: "spawn" for ranks that use CUDA, which a forked child cannot use. "fork" becomes "forkserver" once
            this process has run a backward pass, because no forked child could then run one. Functions that cannot be
            pickled are still forked.
        group: keyword arguments of ``join_group()``.
    Raises:
        RankError: a rank raised, or died without ``may_die``, or ran out of time.
    """
    deadline = time.monotonic() + limit_s
    if start_method == "fork" and not _children_can_run_backward() and _can_be_pickled((function, arguments)):
        multiprocessing.set_forkserver_preload([*PRELOADED, __name__])
        start_method = "forkserver"
    with tempfile.TemporaryDirectory() as folder:
        settings = (function, size, folder, arguments, group)
        ranks = start_processes(_run, settings, nprocs=size, join=False, start_method=start_method)
        try:
            return [
                _wait(rank, process, Path(ranks.error_files[rank]), Path(folder, str(rank)), deadline, may_die)
                for rank, process in enumerate(ranks.processes)
            ]
        finally:
            for process in ranks.processes:
                process.kill()
                process.join()


def _children_can_run_backward() -> bool:
    """Whether a forked child can run a backward pass. Autograd refuses one after a pass in the parent.

    Inductor runs backward passes too, when it compiles its first model.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            torch.ones(1, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def _can_be_pickled(value: object) -> bool:
    try:
        pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True


def _run(
    rank: int,
    function: Callable[..., Any],
    size: int,
    folder: str,
    arguments: tuple[Any, ...],
    group: dict[str, Any],
) -> None:
    join_group(rank, size, f"{folder}/store", **group)
    result = function(rank, *arguments)
    if dist.is_initialized():
        dist.destroy_process_group()
    Path(folder, str(rank)).write_bytes(pickle.dumps(result))


def _wait(rank: int, process: BaseProcess, error: Path, result: Path, deadline: float, may_die: bool) -> Any:
    process.join(max(0.0, deadline - time.monotonic()))
    if process.exitcode is None:
        raise RankError(f"rank {rank} gave no answer in time")
    if error.exists():
        raise RankError(f"rank {rank} raised:\n{pickle.loads(error.read_bytes())}")
    if process.exitcode != 0 and result.exists():
        raise RankError(f"rank {rank} ended with exit code {process.exitcode} after its result")
    if result.exists():
        return pickle.loads(result.read_bytes())
    if may_die:
        return DIED
    raise RankError(f"rank {rank} died with exit code {process.exitcode}")


def kill_self() -> None:
    """Kills this process, as an out-of-memory killer would."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop_self(seconds: float) -> None:
    """Stops this process with all its threads for a while."""
    subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
