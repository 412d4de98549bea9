# SPDX-License-Identifier: Apache-2.0
"""The overlaps in table I of arXiv 2512.19342. Each test shows an order of events that needs its overlap.

Ranks tell each other through a store which points they have reached. Without the overlap a rank would never reach its
point, and the test would time out.
"""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from rank_processes import BACKENDS, make_group, run_ranks, shared_store

ROWS = 64


def start_exchange(group: dist.ProcessGroup, step: int) -> tuple[dist.Work, torch.Tensor]:
    """Sends ROWS copies of ``100 * step + rank`` to every rank."""
    world = dist.get_world_size(group)
    received = torch.zeros(world * ROWS)
    sent = torch.full((world * ROWS,), 100.0 * step + dist.get_rank(group))
    work = dist.all_to_all_single(received, sent, [ROWS] * world, [ROWS] * world, group=group, async_op=True)
    return work, received


def check(received: torch.Tensor, step: int) -> None:
    by_source = received.view(-1, ROWS)
    assert by_source.tolist() == [[100.0 * step + rank] * ROWS for rank in range(len(by_source))]


def warm_up(group: dist.ProcessGroup) -> None:
    """Connects the group, so that the first exchange does not wait for connections."""
    start_exchange(group, 0)[0].wait()


def compute_within_the_iteration(rank: int, backend: str) -> None:
    group = make_group(backend, max_lag=0)
    warm_up(group)
    store = shared_store()
    if rank == 1:
        store.wait(["computed"], timedelta(seconds=30))
    work, received = start_exchange(group, 1)
    if rank == 0:
        store.set("computed", "while the exchange was open")
    work.wait()
    check(received, 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_computes_while_the_exchange_of_the_same_iteration_is_open(backend: str) -> None:
    run_ranks(compute_within_the_iteration, 2, backend)


def compute_across_iterations(rank: int, backend: str, max_lag: int) -> None:
    group = make_group(backend, max_lag=max_lag)
    warm_up(group)
    store = shared_store()
    if rank == 1:
        store.wait(["computed"], timedelta(seconds=30))
    started = [start_exchange(group, step) for step in range(max_lag + 1)]
    if rank == 0:
        store.set("computed", f"iteration {max_lag} before exchange 0 was complete")
    for step, (work, received) in enumerate(started):
        work.wait()
        check(received, step)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("max_lag", [1, 3])
def test_a_rank_computes_later_iterations_while_an_exchange_is_open(backend: str, max_lag: int) -> None:
    run_ranks(compute_across_iterations, 2, backend, max_lag)


def exchange_across_iterations(rank: int, max_lag: int) -> None:
    group = make_group("headway", max_lag=max_lag)
    warm_up(group)
    store = shared_store()
    if rank == 1:
        store.wait(["posted"], timedelta(seconds=30))
    started = [start_exchange(group, step) for step in range(max_lag + 1)]
    if rank == 0:
        store.set("posted", str(os.getpid()))
        store.wait(["complete"], timedelta(seconds=30))
    for step, (work, received) in enumerate(started):
        work.wait()
        check(received, step)
    if rank == 1:
        store.set("complete", "by rank 1, though rank 0 waited for none of them")


@pytest.mark.parametrize("max_lag", [1, 4])
def test_exchanges_of_all_iterations_within_the_bound_are_open_at_once(max_lag: int) -> None:
    run_ranks(exchange_across_iterations, 2, max_lag)


def exchange_with_a_stopped_peer(rank: int, max_lag: int) -> None:
    """Rank 0 posts all exchanges, none of which can complete, and is stopped. The others complete every one."""
    group = make_group("headway", max_lag=max_lag)
    warm_up(group)
    store = shared_store()
    if rank == 0:
        started = [start_exchange(group, step) for step in range(max_lag + 1)]
        store.set("posted", str(os.getpid()))
        store.wait(["woken"], timedelta(seconds=30))
    else:
        stopped = int(store.get("posted"))
        if rank == 1:
            os.kill(stopped, signal.SIGSTOP)
            store.set("stopped", "")
        store.wait(["stopped"], timedelta(seconds=30))
        try:
            started = [start_exchange(group, step) for step in range(max_lag + 1)]
            for work, _ in started:
                work.wait()
            store.add("finished", 1)
            if rank == 1:
                while store.add("finished", 0) < dist.get_world_size() - 1:
                    pass
        finally:
            if rank == 1:
                os.kill(stopped, signal.SIGCONT)
                store.set("woken", "")
    for step, (work, received) in enumerate(started):
        if rank == 0:
            work.wait()
        check(received, step)


def test_exchanges_complete_without_a_rank_that_is_stopped_after_posting() -> None:
    """Data that rank 0 sent for several iterations has arrived although none of its exchanges was complete."""
    run_ranks(exchange_with_a_stopped_peer, 3, 2)
