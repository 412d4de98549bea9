# SPDX-License-Identifier: Apache-2.0
"""Programs that end without ``destroy_process_group()``: exit status 0, and peers learn that the rank has left."""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from headway.comm import _exit
from rank_processes import join_group

#: Repeat the tests to find rare faults.
REPETITIONS = int(os.environ.get("EXIT_REPETITIONS", "1"))
KEPT: list[Any] = []  #: Objects that live until the interpreter has shut down.


def exit_as_a_program_does(rank: int, end: Callable[[int], None], path: str, size: int) -> None:
    """Runs ``end`` in a forked rank, and then CPython's steps at the end of a program, exit handlers included."""
    atexit._clear()  # Removes pytest's handlers.
    _exit.register()
    status = 0
    try:
        join_group(rank, size, path, timeout_s=20)
        end(rank)
    except SystemExit as error:
        status = int(error.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 99
    ctypes.pythonapi.Py_Exit(status)


def run_exits(end: Callable[[int], None], size: int = 2, limit_s: float = 20) -> list[int]:
    """Exit statuses of ranks that call ``end`` and then exit; -9 for a rank that did not exit in time."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(size):
            child = os.fork()
            if child == 0:
                exit_as_a_program_does(rank, end, f"{folder}/store", size)
                os._exit(98)
            children.append(child)
        watchdog = threading.Timer(limit_s, lambda: [os.kill(child, 9) for child in children])
        watchdog.start()
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        watchdog.cancel()
    return statuses


def reduce(rank: int) -> None:
    dist.all_reduce(torch.ones(5))


def drop_a_reduction(rank: int) -> None:
    dist.all_reduce(torch.ones(5), async_op=True)


def use_a_future(rank: int) -> None:
    work = dist.all_to_all_single(torch.empty(2), torch.ones(2), async_op=True)
    work.get_future().then(lambda done: done.value()).wait()


def keep_works_and_futures(rank: int) -> None:
    for _ in range(20):
        work = dist.all_to_all_single(torch.empty(2), torch.ones(2), async_op=True)
        KEPT.extend([work, work.get_future().then(lambda done: done.value())])
    KEPT.append(dist.all_reduce(torch.ones(5), async_op=True))
    KEPT.append(dist.irecv(torch.empty(3), 1 - rank))


def destroy_and_keep_works(rank: int) -> None:
    keep_works_and_futures(rank)
    dist.barrier()
    dist.destroy_process_group()


def drop_works(rank: int) -> None:
    for _ in range(20):
        dist.all_to_all_single(torch.empty(2000), torch.ones(2000), async_op=True)


def exit_in_the_middle(rank: int) -> None:
    dist.all_reduce(torch.ones(5))
    KEPT.append(dist.irecv(torch.empty(3), 1 - rank).get_future())
    sys.exit(0)


def destroy_in_an_exit_handler(rank: int) -> None:
    atexit._clear()
    atexit.register(dist.destroy_process_group)  # Runs after headway's own handler.
    _exit.register()
    use_a_future(rank)
    reduce(rank)


def exit_with_threads_that_wait(rank: int) -> None:
    threading.Thread(target=dist.recv, args=(torch.empty(1), 1 - rank), daemon=True).start()
    threading.excepthook = lambda _: None
    reduce(rank)


def exit_of_a_forked_child(rank: int) -> None:
    reduce(rank)
    KEPT.append(dist.irecv(torch.empty(3), 1 - rank))
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    dist.barrier()


ENDS = [
    reduce,
    drop_a_reduction,
    use_a_future,
    keep_works_and_futures,
    destroy_and_keep_works,
    drop_works,
    exit_in_the_middle,
    destroy_in_an_exit_handler,
    exit_with_threads_that_wait,
    exit_of_a_forked_child,
]


@pytest.mark.parametrize("end", ENDS)
def test_a_program_that_ends_normally_has_exit_status_0(end: Callable[[int], None]) -> None:
    for _ in range(REPETITIONS):
        assert run_exits(end) == [0, 0]


def expect_exit_handler_to_end_within(limit_s: float) -> None:
    ended = time.monotonic()

    def check() -> None:
        if time.monotonic() - ended > limit_s:
            os._exit(5)

    atexit._clear()
    atexit.register(check)  # Runs after headway's own handler.
    _exit.register()


def exit_while_the_peer_hangs(rank: int) -> None:
    dist.all_reduce(torch.ones(5))
    if rank == 1:
        time.sleep(3)
        return
    KEPT.append(dist.all_reduce(torch.ones(5), async_op=True))
    expect_exit_handler_to_end_within(2)


def test_an_exit_does_not_wait_long_for_a_reduction_that_hangs() -> None:
    assert run_exits(exit_while_the_peer_hangs) == [0, 0]


def leave_a_message(rank: int, size_bytes: int, folder: str) -> None:
    """Rank 0 sends and ends; rank 1 receives a little later."""
    if rank == 0:
        dist.isend(torch.full((size_bytes,), 3, dtype=torch.uint8), 1)
        return
    time.sleep(0.5)
    received = torch.empty(size_bytes, dtype=torch.uint8)
    dist.recv(received, 0)
    assert bool((received == 3).all())
    Path(folder, "received").touch()


@pytest.mark.parametrize("size_bytes", [64, 4 << 20])
def test_a_message_reaches_its_receiver_though_the_sender_ends_at_once(size_bytes: int, tmp_path: Path) -> None:
    assert run_exits(lambda rank: leave_a_message(rank, size_bytes, str(tmp_path))) == [0, 0]
    assert (tmp_path / "received").exists()


def run_in_child(rank: int, folder: str, size_bytes: int) -> None:
    join_group(rank, 2, f"{folder}/store", timeout_s=20)
    leave_a_message(rank, size_bytes, folder)


def test_a_child_of_multiprocessing_delivers_though_it_runs_no_exit_handlers(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=run_in_child, args=(rank, str(tmp_path), 64)) for rank in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(20)
    assert [child.exitcode for child in children] == [0, 0]
    assert (tmp_path / "received").exists()


def leave_a_message_to_nobody(rank: int) -> None:
    if rank == 0:
        dist.isend(torch.zeros(1 << 20), 1)
        expect_exit_handler_to_end_within(4)
        return
    time.sleep(3)


def test_a_message_that_nobody_receives_delays_the_end_a_little_and_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_exits(leave_a_message_to_nobody) == [0, 0]
    assert "before its messages are delivered" in capfd.readouterr().err


def use_a_group_after_the_exit_handler(rank: int) -> None:
    def use() -> None:
        with pytest.raises(dist.DistBackendError, match="as the program ended"):
            dist.barrier()
        with pytest.raises(Exception, match="the program ends"):
            dist.new_group(backend="headway")
        os.write(1, b"refused\n")

    atexit._clear()
    atexit.register(use)
    _exit.register()
    dist.barrier()


def test_a_group_that_the_exit_handler_has_left_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_exits(use_a_group_after_the_exit_handler) == [0, 0]
    assert capfd.readouterr().out.count("refused") == 2


def test_a_program_that_imports_headway_needs_nothing_else(tmp_path: Path) -> None:
    code = f"""
import torch, torch.distributed as dist, headway
dist.init_process_group("headway", init_method="file://{tmp_path}/store", rank=0, world_size=1)
dist.all_reduce(torch.ones(5))
work = dist.all_to_all_single(torch.empty(2), torch.ones(2), async_op=True)
work.get_future().then(lambda done: done.value())
"""
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0
