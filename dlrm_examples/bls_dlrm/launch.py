"""Starts the ranks of a plan as processes of this host, and collects their reports."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.process import BaseProcess

from torch._C._distributed_c10d import TCPStore

from dlrm_examples.bls_dlrm.measurement import Failed, Finished, Message
from dlrm_examples.bls_dlrm.plan import Plan
from dlrm_examples.bls_dlrm.rank_process import rank_main

_POLL_S = 0.2
_SINGLE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class RankFailedError(RuntimeError):
    """A rank stopped before it finished; the message is one line."""


def run_plan(plan: Plan, on_message: Callable[[Message], None], *, timeout_s: float) -> None:
    """Runs all ranks until they finish. They are killed if this process dies.

    Args:
        plan: what to run.
        on_message: called in this process for each message of a rank; messages of one rank keep their order.
        timeout_s: the ranks are killed if they take longer.
    Raises:
        RankFailedError: a rank failed, died or ran out of time.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))
    context = multiprocessing.get_context("spawn")
    inbox: multiprocessing.Queue[Message] = context.Queue()
    ranks: list[BaseProcess] = [
        context.Process(target=rank_main, args=(rank, plan, store.port, os.getpid(), inbox), daemon=True)
        for rank in range(plan.num_ranks)
    ]
    try:
        with _environment(_SINGLE_THREAD):
            for process in ranks:
                process.start()
        _collect(inbox, ranks, on_message, deadline=time.monotonic() + timeout_s)
        for process in ranks:
            process.join(timeout=10)
    finally:
        for process in ranks:
            if process.is_alive():
                process.kill()
        inbox.close()


def _collect(
    inbox: multiprocessing.Queue[Message],
    ranks: list[BaseProcess],
    on_message: Callable[[Message], None],
    *,
    deadline: float,
) -> None:
    finished: set[int] = set()
    while len(finished) < len(ranks):
        try:
            message = inbox.get(timeout=_POLL_S)
        except queue.Empty:
            _check_alive(ranks, finished)
            if time.monotonic() > deadline:
                missing = sorted(set(range(len(ranks))) - finished)
                raise RankFailedError(f"ranks {missing} did not finish in time") from None
            continue
        if isinstance(message, Failed):
            _check_alive(ranks, finished | {message.rank})  # A dead rank is the cause of this failure: report it first.
            raise RankFailedError(f"rank {message.rank} failed: {message.text}")
        if isinstance(message, Finished):
            finished.add(message.rank)
        on_message(message)


def _check_alive(ranks: list[BaseProcess], reported: set[int]) -> None:
    """Raises RankFailedError if a rank has ended that is not in ``reported``."""
    for rank, process in enumerate(ranks):
        status = process.exitcode
        if rank in reported or status is None:
            continue
        if status < 0:
            raise RankFailedError(f"rank {rank} was killed by {signal.Signals(-status).name}")
        raise RankFailedError(f"rank {rank} ended without a report (exit status {status})")


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Sets variables for the processes started inside the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
