"""Runs a test's function as several processes that are connected by a Gloo group, and collects what they return."""

from __future__ import annotations

import multiprocessing
import queue
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=60)


def _headway_missing() -> str | None:
    """Why the headway backend cannot be used; None if it can."""
    try:
        import headway

        _ = headway.Options
    except (ImportError, AttributeError) as error:
        return f"headway cannot be imported: {error}"
    return None


HEADWAY_MISSING = _headway_missing()
HEADWAY = pytest.param("headway", marks=pytest.mark.skipif(HEADWAY_MISSING is not None, reason=str(HEADWAY_MISSING)))
BACKENDS = ["gloo", HEADWAY]


def make_group(backend: str, *, max_lag: int, slot_bytes: int = 1 << 16) -> dist.ProcessGroup:
    """A group of all ranks."""
    if backend != "headway":
        return dist.new_group(backend=backend)
    import headway

    return dist.new_group(backend="headway", pg_options=headway.Options(max_lag=max_lag, slot_bytes=slot_bytes))


def run_ranks(target: Callable[..., Any], num_ranks: int, *arguments: Any, timeout_s: float = 90) -> list[Any]:
    """Calls ``target(rank, num_ranks, store, *arguments)`` in each process; returns what they return, by rank.

    Raises:
        AssertionError: a rank raised, died or did not end within ``timeout_s``.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[tuple[int, bool, Any]] = context.Queue()
    processes = [
        context.Process(target=_rank, args=(target, rank, num_ranks, store.port, results, arguments), daemon=True)
        for rank in range(num_ranks)
    ]
    for process in processes:
        process.start()
    try:
        returned = _collect(results, num_ranks, time.monotonic() + timeout_s)
        for process in processes:
            process.join(timeout=20)
    finally:
        for process in processes:
            process.kill()
    return [returned[rank] for rank in range(num_ranks)]


def _collect(results: Any, num_ranks: int, deadline: float) -> dict[int, Any]:
    returned: dict[int, Any] = {}
    while len(returned) < num_ranks:
        try:
            rank, passed, value = results.get(timeout=max(0.1, deadline - time.monotonic()))
        except queue.Empty:
            missing = sorted(set(range(num_ranks)) - set(returned))
            raise AssertionError(f"ranks {missing} did not end in time") from None
        assert passed, f"rank {rank}: {value}"
        returned[rank] = value
    return returned


def _rank(target: Any, rank: int, num_ranks: int, port: int, results: Any, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
        dist.init_process_group(
            "gloo", store=dist.PrefixStore("group", store), rank=rank, world_size=num_ranks, timeout=TIMEOUT
        )
        value = target(rank, num_ranks, store, *arguments)
        dist.barrier()
        dist.destroy_process_group()
        results.put((rank, True, value))
    except BaseException:
        results.put((rank, False, traceback.format_exc()))
