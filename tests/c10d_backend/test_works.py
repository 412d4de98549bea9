# SPDX-License-Identifier: Apache-2.0
"""Works and futures: waiting, timeouts, errors, profiler, threads."""

from __future__ import annotations

import sys
import threading
import time
from datetime import timedelta

import headway
import pytest
import torch
import torch.distributed as dist
from no_threads import no_threads
from rank_processes import kill_self, run_ranks


def describe_a_work(rank: int) -> None:
    size = dist.get_world_size()
    outputs = [torch.empty(2) for _ in range(size)]
    work = dist.all_gather(outputs, torch.full((2,), float(rank)), async_op=True)
    while not work.is_completed():
        time.sleep(0.001)
    assert work.is_success()
    assert work.wait(timedelta(seconds=5))
    assert [t.data_ptr() for t in work.result()] == [t.data_ptr() for t in outputs]
    assert work._get_op_type() == torch._C._distributed_c10d.OpType.ALLGATHER.value
    backend = headway.backend_of()
    before = backend._get_sequence_number_for_group()
    dist.barrier()
    assert backend._get_sequence_number_for_group() == before + 1
    assert backend.get_error() == torch._C._distributed_c10d.ErrorType.SUCCESS


def test_a_work_tells_its_state_and_results() -> None:
    run_ranks(describe_a_work, 2)


def use_futures(rank: int) -> None:
    size = dist.get_world_size()
    outputs = [torch.empty(1) for _ in range(size)]
    future = dist.all_gather(outputs, torch.tensor([rank + 1.0]), async_op=True).get_future()
    # A callback may start the next collective.
    chained = future.then(lambda done: dist.all_reduce(done.value()[0], async_op=True).get_future().wait())
    assert chained.wait()[0].item() == size
    works = [dist.all_to_all_single(torch.empty(size), torch.ones(size), async_op=True) for _ in range(3)]
    values = torch.futures.collect_all([work.get_future() for work in works]).wait()
    assert all(future.value()[0].tolist() == [1.0] * size for future in values)
    assert works[0].get_future().wait()[0].tolist() == [1.0] * size


def test_futures_complete_without_anyone_waiting_and_run_callbacks() -> None:
    run_ranks(use_futures, 3)


def ask_for_futures_while_waiting(rank: int) -> int:
    sys.setswitchinterval(1e-6)
    called = []
    for _ in range(300):
        work = dist.all_to_all_single(torch.zeros(2), torch.ones(2), async_op=True)
        start = threading.Barrier(2)

        def ask(work: dist.Work = work, start: threading.Barrier = start) -> None:
            start.wait()
            work.get_future().then(lambda future: called.append(future.value()))

        asker = threading.Thread(target=ask)
        asker.start()
        start.wait()
        work.wait()
        asker.join()
    deadline = time.monotonic() + 5
    while len(called) < 300 and time.monotonic() < deadline:
        time.sleep(0.001)
    return len(called)


def test_a_thread_may_ask_for_the_future_while_another_one_waits() -> None:
    assert run_ranks(ask_for_futures_while_waiting, 2) == [300, 300]


def run_out_of_threads(rank: int) -> None:
    received = torch.zeros(1)
    dist.barrier()
    if rank == 1:
        dist.recv(received, 0)
        dist.send(torch.tensor([7.0]), 0)
    else:
        work = dist.irecv(received, 1)
        with no_threads():
            with pytest.raises(RuntimeError, match="the thread that runs callbacks cannot be made"):
                work.get_future()
            with pytest.raises(RuntimeError, match="a thread could not be started"):
                dist.all_reduce(torch.ones(1))
        future = work.get_future()
        dist.send(torch.ones(1), 1)
        assert future.wait()[0].item() == 7
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 2


def test_a_process_without_threads_left_gets_an_error_and_may_try_again() -> None:
    run_ranks(run_out_of_threads, 2, limit_s=30)


def time_out_one_wait(rank: int) -> str:
    message = ""
    tensor = torch.zeros(1)
    if rank == 0:
        work = dist.irecv(tensor, 1)
        started = time.monotonic()
        with pytest.raises(dist.DistBackendError, match="Timed out") as caught:
            work.wait(timedelta(milliseconds=300))
        assert 0.25 < time.monotonic() - started < 5
        message = str(caught.value)
        dist.barrier()
        work.wait()  # Only the wait had ended.
        assert tensor.item() == 7
    else:
        dist.barrier()
        dist.send(torch.tensor([7.0]), 0)
    return message


def test_a_wait_with_a_limit_ends_and_the_operation_goes_on() -> None:
    assert "rank 1" in run_ranks(time_out_one_wait, 2)[0]


def wait_for_centuries(rank: int) -> None:
    centuries = timedelta(days=110_000)  # More nanoseconds than fit into 63 bits.
    if rank == 0:
        tensor = torch.zeros(1)
        dist.irecv(tensor, 1).wait(centuries)
        assert tensor.item() == 7
    else:
        time.sleep(0.4)
        dist.send(torch.tensor([7.0]), 0)
    # A work of another backend, and a work for several.
    tensors = [torch.ones(1) for _ in range(3)]
    work = dist.all_reduce(tensors[0], async_op=True)
    with dist._coalescing_manager(async_ops=True) as manager:
        for each in tensors[1:]:
            dist.all_reduce(each)
    if rank == 1:
        time.sleep(0.4)
    work.wait(centuries)
    for each in manager.works:
        each.wait(centuries)
    assert [each.item() for each in tensors] == [2.0] * 3


@pytest.mark.parametrize("timeout_s", [5.0, 110_000 * 86_400.0])
def test_a_wait_may_have_a_limit_of_centuries(timeout_s: float) -> None:
    run_ranks(wait_for_centuries, 2, timeout_s=timeout_s)


def time_out_the_group(rank: int) -> tuple[str, float]:
    started = time.monotonic()
    try:
        if rank == 0:
            dist.all_to_all_single(torch.empty(2), torch.ones(2))
        else:
            time.sleep(1.5)
            dist.all_to_all_single(torch.empty(2), torch.ones(2))
    except dist.DistBackendError as error:
        return str(error), time.monotonic() - started
    return "no error", 0.0


def test_an_exchange_that_a_rank_does_not_join_times_out_and_names_it() -> None:
    (message, seconds), (late, _) = run_ranks(time_out_the_group, 2, timeout_s=0.5)
    assert "Timed out" in message and "rank 1" in message, message
    assert 0.4 < seconds < 1.4
    assert late != "no error", "the group is broken for the late rank too"


def miss_a_rank(rank: int, is_killed: bool) -> list[str]:
    if rank == 1:
        time.sleep(0.2 if is_killed else 1)
    if rank == 1 and is_killed:
        kill_self()
    messages = []
    calls = (
        lambda: dist.all_to_all_single(torch.empty(3), torch.ones(3)),
        dist.barrier,
        lambda: dist.all_reduce(torch.ones(1)),
    )
    for call in calls:
        with pytest.raises(dist.DistBackendError) as caught:
            call()
        messages.append(str(caught.value))
    return messages


@pytest.mark.parametrize("is_killed", [False, True])
def test_an_error_says_once_whose_it_is_and_once_what_is_missing(is_killed: bool) -> None:
    results = run_ranks(miss_a_rank, 3, is_killed, timeout_s=20 if is_killed else 0.5, may_die=True, limit_s=30)
    for messages in results[::2]:
        for message, verb in zip(messages, ("all_to_all", "barrier", "all_reduce"), strict=True):
            assert message.startswith(f"headway:{verb} "), message
            assert message.count("headway") == 1, message
            assert message.count("lacks 4 bytes from rank 1") == 1, message


def set_a_shorter_timeout(rank: int) -> str:
    headway.backend_of()._set_default_timeout(timedelta(milliseconds=400))
    if rank == 0:
        try:
            dist.barrier()
        except dist.DistBackendError as error:
            return str(error)
    else:
        time.sleep(2)
    return "no error"


def test_a_timeout_may_be_set_later() -> None:
    message = run_ranks(set_a_shorter_timeout, 2, timeout_s=60)[0]
    # The message comes from the group or from the waiting Work, which aborts the group: from the first to look.
    assert "timed out after 400 ms" in message.lower(), message


def profile(rank: int) -> list[str]:
    size = dist.get_world_size()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        dist.all_to_all_single(torch.empty(size), torch.ones(size))
        dist.all_reduce(torch.ones(2))
        dist.barrier()
    return [event.name for event in profiler.events() if event.name.startswith("headway:")]


def test_the_profiler_shows_collectives_by_name() -> None:
    for names in run_ranks(profile, 2):
        assert sorted(names) == ["headway:all_reduce", "headway:all_to_all", "headway:barrier"]


def exchange_in_threads(rank: int) -> None:
    groups = [dist.new_group(backend="headway") for _ in range(4)]
    failures: list[BaseException] = []

    def run(group: dist.ProcessGroup, seed: int) -> None:
        try:
            for step in range(100):
                output = torch.empty(2)
                dist.all_to_all_single(output, torch.full((2,), rank * 1000.0 + step + seed), group=group)
                assert output.tolist() == [step + seed, 1000.0 + step + seed]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(group, seed)) for seed, group in enumerate(groups)]
    threads += [threading.Thread(target=channels, args=(rank, failures))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def channels(rank: int, failures: list[BaseException]) -> None:
    """Runs point-to-point messages of the default group beside the exchanges of the other groups."""
    try:
        for step in range(100):
            request = dist.isend(torch.tensor([step]), 1 - rank)
            tensor = torch.zeros(1, dtype=torch.long)
            dist.recv(tensor, 1 - rank)
            assert tensor.item() == step
            request.wait()
    except BaseException as error:
        failures.append(error)


def test_several_threads_use_several_groups_at_once() -> None:
    run_ranks(exchange_in_threads, 2)


def start_in_different_order(rank: int) -> None:
    first, second = dist.new_group(backend="headway"), dist.new_group(backend="headway")
    order = [first, second] if rank == 0 else [second, first]
    tensors = {group: torch.ones(1) for group in order}
    # Reductions need a helper group that is made at the first reduction. Making it must not block the start either.
    works = [dist.all_reduce(tensors[group], group=group, async_op=True) for group in order]
    works += [dist.barrier(group=group, async_op=True) for group in order]
    for work in works:
        work.wait()
    assert all(tensor.item() == 2 for tensor in tensors.values())


def test_two_groups_used_in_different_order_do_not_deadlock() -> None:
    run_ranks(start_in_different_order, 2)


def reduce_alone(rank: int) -> tuple[str, str]:
    dist.all_reduce(torch.ones(1))
    if rank:
        time.sleep(2)
        return "", ""
    messages = []
    for call in (lambda: dist.all_reduce(torch.ones(1)), dist.barrier):
        try:
            call()
        except dist.DistBackendError as error:
            messages.append(str(error))
    return messages[0], messages[1]


def test_a_reduction_that_fails_fails_the_group_with_the_same_kind_of_error() -> None:
    first, second = run_ranks(reduce_alone, 2, timeout_s=1)[0]
    assert "headway:all_reduce failed" in first
    assert "headway:all_reduce failed" in second, "later calls name the first failure"


def reduce_without_threads(rank: int) -> None:
    tensor = torch.ones(1)
    if rank == 0:
        with no_threads():
            for _ in range(2):  # A failed start leaves nothing behind, so it can be repeated.
                with pytest.raises(dist.DistBackendError, match="thread could not be started"):
                    dist.all_reduce(tensor)
        dist.barrier()
    else:
        dist.barrier()
    dist.all_reduce(tensor)
    assert tensor.item() == 2


def test_a_reduction_for_which_there_is_no_thread_fails_alone_and_can_be_tried_again() -> None:
    run_ranks(reduce_without_threads, 2)
