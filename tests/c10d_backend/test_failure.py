# SPDX-License-Identifier: Apache-2.0
"""A rank dies or stops: the others soon get an error that names it, and nobody hangs or crashes."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from datetime import timedelta

import headway
import pytest
import torch
import torch.distributed as dist
from rank_processes import DIED, kill_self, run_ranks, stop_self

LOST = "rank 1 is lost"


def die_during_an_exchange(rank: int, transport: str) -> tuple[str, float]:
    group = dist.new_group(backend="headway", pg_options=headway.Options(max_lag=2, transport=transport))
    size = dist.get_world_size()
    output = torch.empty(size)
    for _ in range(10):
        dist.all_to_all_single(output, torch.ones(size), group=group)
    if rank == 1:
        kill_self()
    started = time.monotonic()
    try:
        works = [
            dist.all_to_all_single(torch.empty(size), torch.ones(size), group=group, async_op=True) for _ in range(3)
        ]
        for work in works:
            work.wait()
    except dist.DistBackendError as error:
        return str(error), time.monotonic() - started
    return "no error", 0.0


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("attempt", range(3))
def test_survivors_of_a_killed_rank_learn_its_name_within_two_seconds(transport: str, attempt: int) -> None:
    results = run_ranks(die_during_an_exchange, 4, transport, may_die=True, limit_s=30)
    assert results[1] is DIED
    for message, seconds in results[:1] + results[2:]:
        assert LOST in message, message
        assert seconds < 2


def stop_during_exchanges(rank: int, transport: str, stop_s: float, timeout_s: float) -> tuple[str, float]:
    options = headway.Options(max_lag=1, transport=transport)
    group = dist.new_group(backend="headway", pg_options=options, timeout=timedelta(seconds=timeout_s))
    size = dist.get_world_size()
    output = torch.empty(size)
    started = time.monotonic()
    try:
        for step in range(20):
            if rank == 1 and step == 10:
                stop_self(stop_s)
            dist.all_to_all_single(output, torch.full((size,), float(rank + step)), group=group)
            assert output.tolist() == [float(peer + step) for peer in range(size)]
    except dist.DistBackendError as error:
        return str(error), time.monotonic() - started
    return "no error", time.monotonic() - started


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_stopped_for_longer_than_the_timeout_is_named_and_gets_an_error_itself(transport: str) -> None:
    results = run_ranks(stop_during_exchanges, 3, transport, 2.5, 1, limit_s=30)
    assert results[1][0] != "no error"
    for message, seconds in (results[0], results[2]):
        assert "rank 1" in message and "all_to_all_v" in message, message
        assert seconds < 2


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_stopped_for_less_than_the_timeout_harms_nobody(transport: str) -> None:
    results = run_ranks(stop_during_exchanges, 3, transport, 0.5, 10, limit_s=30)
    assert [message for message, _ in results] == ["no error"] * 3


def die_while_others_are_idle(rank: int) -> tuple[str, str]:
    dist.barrier()
    if rank == 1:
        kill_self()
    time.sleep(1.5)
    error = str(headway.backend_of().get_error())
    try:
        dist.barrier()
    except dist.DistBackendError as failure:
        return error, str(failure)
    return error, "no error"


def test_a_rank_with_nothing_outstanding_learns_at_its_next_call() -> None:
    error, message = run_ranks(die_while_others_are_idle, 3, may_die=True, limit_s=30)[0]
    assert "REMOTE_ERROR" in error
    assert LOST in message


def die_during_a_reduction(rank: int) -> str:
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        kill_self()
    try:
        for _ in range(100):
            dist.all_reduce(torch.ones(1 << 16))
    except dist.DistBackendError as error:
        return str(error)
    return "no error"


def test_a_rank_killed_during_a_reduction_fails_the_group() -> None:
    results = run_ranks(die_during_a_reduction, 2, may_die=True, limit_s=30)
    assert results[0] != "no error"


def other_groups_go_on(rank: int) -> list[float]:
    pair = dist.new_group([0, 2], backend="headway")
    everyone = dist.new_group(backend="headway")
    if rank == 1:
        dist.barrier(everyone)
        kill_self()
    dist.barrier(everyone)
    with pytest.raises(dist.DistBackendError, match=LOST):
        dist.barrier(everyone)
    output = torch.empty(2)
    for _ in range(20):
        dist.all_to_all_single(output, torch.full((2,), float(rank)), group=pair)
    return output.tolist()


def test_groups_without_the_killed_rank_go_on() -> None:
    results = run_ranks(other_groups_go_on, 3, may_die=True, limit_s=30)
    assert results[0] == results[2] == [0.0, 2.0]


def sockets() -> set[int]:
    """File descriptors of this process that are sockets."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.add(int(name))
    return found


def break_reductions(before: set[int]) -> None:
    """Shuts down the sockets that are not in ``before``: those of the reducing group, since Headway's own are older."""
    for descriptor in sockets() - before:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                connection.shutdown(socket.SHUT_RDWR)


def fail_in_a_reduction(rank: int, transport: str, is_killed: bool, ask: str) -> tuple[str, float]:
    group = dist.new_group(backend="headway", pg_options=headway.Options(transport=transport))
    dist.barrier(group)
    before = sockets()
    dist.all_reduce(torch.ones(1), group=group)
    if rank == 1:
        time.sleep(0.2)  # The other ranks have started the reduction.
        break_reductions(before)
        time.sleep(0.3 if is_killed else 2)  # In this order Gloo's error always precedes the news of the death.
        kill_self()
    started = time.monotonic()
    work = dist.all_reduce(torch.ones(1 << 16), group=group, async_op=True)
    try:
        if ask == "future":
            work.get_future().wait()
        elif ask == "is_completed":
            while not work.is_completed():
                time.sleep(0.01)
            assert not work.is_success()
            work.wait()
        else:
            work.wait()
    except (dist.DistBackendError, RuntimeError) as error:
        return str(error), time.monotonic() - started
    return "no error", 0.0


@pytest.mark.parametrize("ask", ["wait", "future", "is_completed"])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_death_that_shows_first_in_a_reduction_is_named_nevertheless(transport: str, ask: str) -> None:
    for message, seconds in run_ranks(fail_in_a_reduction, 2, transport, True, ask, may_die=True, limit_s=30)[:1]:
        assert LOST in message, message
        assert seconds < 2


def test_a_reduction_that_fails_without_a_death_says_why() -> None:
    message, seconds = run_ranks(fail_in_a_reduction, 2, "shm", False, "wait", may_die=True, limit_s=30)[0]
    assert "headway:all_reduce failed in the group that reduces for it" in message, message
    assert 1 < seconds < 3


def wait_for_a_future_far_from_the_death(rank: int, is_first: bool) -> tuple[str, float]:
    if not is_first:
        dist.all_reduce(torch.ones(1))
    if rank == 1:
        time.sleep(0.2)
        kill_self()
    started = time.monotonic()
    message = "no error"
    try:
        dist.all_reduce(torch.ones(10), async_op=True).get_future().wait()
    except (dist.DistBackendError, RuntimeError) as error:
        message = str(error)
    seconds = time.monotonic() - started
    dist.distributed_c10d._get_default_store().set(f"done/{rank}", "")
    for other in (0, 2, 3, 4):  # A rank that exits would break the waits of other ranks.
        dist.distributed_c10d._get_default_store().wait([f"done/{other}"], timedelta(seconds=20))
    return message, seconds


@pytest.mark.parametrize("is_first", [True, False])
def test_a_future_of_a_reduction_fails_soon_on_every_rank_when_one_dies(is_first: bool) -> None:
    results = run_ranks(wait_for_a_future_far_from_the_death, 5, is_first, may_die=True, limit_s=40, timeout_s=15)
    for message, seconds in results[:1] + results[2:]:
        assert LOST in message, message
        assert seconds < 2.5
