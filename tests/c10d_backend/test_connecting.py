# SPDX-License-Identifier: Apache-2.0
"""Connecting again under the same store, under signals, interrupted, and with a failing rank."""

from __future__ import annotations

import os
import resource
import signal
import time
from datetime import timedelta
from typing import Any

import headway
import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks, shared_store
from torch.multiprocessing import start_processes


def sum_of_ones(group: Any = None) -> float:
    total = torch.ones(1)
    dist.all_reduce(total, group=group)
    return total.item()


def run_attempt(rank: int, port: int, attempt: int) -> None:
    """One rank of a job that its launcher restarts. It dies without leaving its groups."""
    torch.set_num_threads(1)
    if rank == attempt % 2:
        time.sleep(0.1)  # Sometimes the other rank looks for rank 0 before rank 0 has come.
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("headway", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=20))
    group = dist.new_group(backend="headway")
    os._exit(3 if sum_of_ones() == sum_of_ones(group) == 2 else 1)


def test_a_restarted_job_connects_whatever_its_store_holds() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for attempt in range(4):
        started = start_processes(run_attempt, (store.port, attempt), nprocs=2, join=False, start_method="fork")
        ranks = started.processes
        for rank in ranks:
            rank.join(30)
            rank.kill()
        assert [rank.exitcode for rank in ranks] == [3, 3], f"attempt {attempt}"


def make_the_default_group_again(rank: int) -> list[float]:
    sums = []
    store = dist.distributed_c10d._get_default_store()
    for _ in range(4):
        sums.append(sum_of_ones())
        dist.destroy_process_group()
        dist.init_process_group("headway", store=store, rank=rank, world_size=3)
    sums.append(sum_of_ones())
    return sums


def test_a_group_is_made_again_under_one_store_and_name() -> None:
    assert run_ranks(make_the_default_group_again, 3) == [[3.0] * 5] * 3


def make_groups_under_signals(rank: int, transport: str) -> None:
    signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    for _ in range(10):
        options = headway.Options(transport=transport, connect_timeout=timedelta(seconds=20))
        group = dist.new_group(backend="headway", pg_options=options)
        dist.barrier(group)
    signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_signals_do_not_disturb_connecting(transport: str) -> None:
    run_ranks(make_groups_under_signals, 4, transport)


def interrupt_connecting(rank: int) -> float:
    """Rank 1 never comes. Rank 0 gets a signal whose handler raises."""
    if rank == 1:
        shared_store().wait(["interrupted"], timedelta(seconds=20))
        return 0
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        dist.new_group(backend="headway", pg_options=headway.Options(connect_timeout=timedelta(seconds=60)))
    shared_store().set("interrupted", "")
    return time.monotonic() - start


def test_ctrl_c_interrupts_connecting() -> None:
    assert run_ranks(interrupt_connecting, 2)[0] < 2


def connect_with_a_rank_that_fails(rank: int) -> tuple[str, float]:
    """Rank 1 connects, and then fails to make its memory file."""
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    start = time.monotonic()
    options = headway.Options(transport="shm", connect_timeout=timedelta(seconds=30))
    with pytest.raises(dist.DistBackendError) as caught:
        dist.new_group(backend="headway", pg_options=options)
    return str(caught.value), time.monotonic() - start


def test_a_failure_after_the_ranks_are_connected_is_told_to_all() -> None:
    for rank, (message, seconds) in enumerate(run_ranks(connect_with_a_rank_that_fails, 3)):
        assert "File too large" in message
        assert ("rank 1 gave up" in message) == (rank != 1), message
        assert seconds < 5
