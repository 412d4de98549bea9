# SPDX-License-Identifier: Apache-2.0
"""Making, splitting, aborting and leaving groups; fork; Ctrl-C; groups inside other backends' jobs."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator

import headway
import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks


def use_a_group_of(group: dist.ProcessGroup | None = None) -> None:
    """Does one exchange and one reduction on a group, and checks both."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    output = torch.empty(size)
    dist.all_to_all_single(output, torch.arange(size) + 10.0 * rank, group=group)
    assert output.tolist() == [10.0 * peer + rank for peer in range(size)]
    total = torch.tensor([1.0])
    dist.all_reduce(total, group=group)
    assert total.item() == size


def destroy_with_work_pending(rank: int, keep_work: bool) -> None:
    output = torch.empty(2)
    works = [dist.all_to_all_single(output, torch.ones(2), async_op=True)] if rank == 0 else []
    works += [dist.irecv(torch.empty(3), 1 - rank)]
    dist.barrier()  # Both ranks have started, so neither finds the other gone.
    if not keep_work:
        works.clear()
    dist.destroy_process_group()
    works.clear()
    gc.collect()


@pytest.mark.parametrize("keep_work", [True, False])
def test_a_group_with_work_pending_is_destroyed_without_hang_or_crash(keep_work: bool) -> None:
    run_ranks(destroy_with_work_pending, 2, keep_work, limit_s=30)


def destroy_after_isend(rank: int, size: int) -> bool:
    if rank == 0:
        dist.isend(torch.full((size,), 3.0), 1)
        dist.destroy_process_group()
        return True
    time.sleep(0.5)
    received = torch.empty(size)
    dist.recv(received, 0)
    return bool((received == 3).all())


@pytest.mark.parametrize("size", [16, 1 << 20])
def test_destroying_a_group_delivers_what_was_sent(size: int) -> None:
    assert run_ranks(destroy_after_isend, 2, size, limit_s=20) == [True, True]


def destroy_with_a_message_for_nobody(rank: int) -> str:
    if rank == 1:
        time.sleep(2)  # The operation's timeout is 1 s.
        return ""
    dist.isend(torch.zeros(1 << 20), 1)
    with pytest.raises(dist.DistBackendError, match="waits for rank 1 to take 4194304 bytes") as caught:
        dist.destroy_process_group()
    dist.destroy_process_group()
    return str(caught.value)


def test_destroying_a_group_names_a_message_that_nobody_receives() -> None:
    message = run_ranks(destroy_with_a_message_for_nobody, 2, timeout_s=1, limit_s=20)[0]
    assert "timed out after 1000 ms" in message, message


def destroy_first(rank: int) -> str:
    group = dist.new_group(backend="headway")
    dist.barrier(group)
    if rank == 0:
        dist.destroy_process_group(group)
        dist.barrier()
        return ""
    dist.barrier()
    try:
        dist.broadcast(torch.zeros(1), 0, group=group)
    except dist.DistBackendError as error:
        return str(error)
    return "no error"


def test_a_rank_that_needs_one_which_left_is_told_so() -> None:
    message = run_ranks(destroy_first, 2, limit_s=30)[1]
    assert "rank 0" in message, message


def use_after_shutdown(rank: int) -> None:
    backend = headway.backend_of()
    dist.destroy_process_group()
    with pytest.raises(dist.DistBackendError, match="was shut down on rank"):
        backend.statistics()


def test_a_group_that_was_left_says_so() -> None:
    run_ranks(use_after_shutdown, 2)


def abort_on_one_rank(rank: int) -> str:
    work = dist.irecv(torch.empty(1), 1 - rank)
    if rank == 0:
        time.sleep(0.2)
        dist.distributed_c10d._get_default_group().abort()
    try:
        work.wait()
    except dist.DistBackendError as error:
        assert headway.backend_of().get_error() != torch._C._distributed_c10d.ErrorType.SUCCESS
        return str(error)
    return "no error"


def test_abort_fails_pending_work_everywhere() -> None:
    for message in run_ranks(abort_on_one_rank, 2, limit_s=30):
        assert "abort() was called on rank 0" in message, message


def make_again(rank: int, folder: str) -> None:
    for attempt in range(3):
        dist.destroy_process_group()
        dist.init_process_group("headway", init_method=f"file://{folder}/{attempt}", rank=rank, world_size=2)
        use_a_group_of()


def test_the_default_group_can_be_made_again(tmp_path: object) -> None:
    run_ranks(make_again, 2, str(tmp_path))


def make_many_groups(rank: int) -> None:
    for _ in range(30):
        group = dist.new_group(backend="headway")
        dist.barrier(group)
        dist.destroy_process_group(group)
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    use_a_group_of(halves[rank // 2])
    mine, _ = dist.new_subgroups(2)
    use_a_group_of(mine)
    assert dist.get_backend(mine) == "headway"
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    use_a_group_of(mesh["rows"].get_group())
    use_a_group_of(mesh["columns"].get_group())


def test_many_groups_subgroups_and_meshes_are_made() -> None:
    run_ranks(make_many_groups, 4)


def split(rank: int) -> None:
    parent = dist.distributed_c10d._get_default_group()
    assert headway.backend_of().supports_splitting
    mine = [0, 2] if rank % 2 == 0 else [1, 3]
    options = headway.Options(max_lag=1)
    part = parent.split_group(mine, opts=options, group_name=f"split of {mine}")
    assert (part.size(), part.rank()) == (2, mine.index(rank))
    backend = part._get_backend(torch.device("cpu"))
    assert backend.options.max_lag == 1
    output = torch.empty(2)
    backend.all_to_all_single(output, torch.full((2,), float(rank)), [], [], 0).wait()
    assert output.tolist() == [float(peer) for peer in mine]
    tensor = torch.ones(1)
    part.allreduce([tensor]).wait()
    assert tensor.item() == 2


def test_a_group_is_split_by_its_backend() -> None:
    run_ranks(split, 4)


def use_functional_collectives(rank: int) -> None:
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD
    assert functional.all_reduce(torch.ones(2), "sum", group).tolist() == [2.0, 2.0]
    assert functional.all_gather_tensor(torch.tensor([rank]), 0, group).tolist() == [0, 1]
    exchanged = functional.all_to_all_single(torch.arange(2) + 10 * rank, None, None, group)
    assert exchanged.tolist() == [rank, 10 + rank]
    assert functional.reduce_scatter_tensor(torch.arange(2.0), "sum", 0, group).tolist() == [2.0 * rank]
    objects: list[object] = [{"from": 0}] if rank == 0 else [None]
    dist.broadcast_object_list(objects, 0)
    assert objects == [{"from": 0}]
    received: list[object] = [None]
    dist.scatter_object_list(received, ["a", "b"] if rank == 0 else None, 0)
    assert received == ["ab"[rank]]


def test_functional_and_object_collectives_work() -> None:
    run_ranks(use_functional_collectives, 2)


def use_inside_gloo(rank: int) -> None:
    group = dist.new_group(backend="headway", pg_options=headway.Options(max_lag=1))
    assert (dist.get_backend(), dist.get_backend(group)) == ("gloo", "headway")
    use_a_group_of(group)
    use_a_group_of()


def test_a_headway_group_lives_inside_a_gloo_job() -> None:
    run_ranks(use_inside_gloo, 2, backend="gloo")


@pytest.fixture
def detailed_debugging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    dist.set_debug_level_from_env()
    yield
    monkeypatch.undo()
    dist.set_debug_level(dist.DebugLevel.OFF)


def use_with_checks(rank: int) -> None:
    assert type(dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))).__name__ == (
        "_ProcessGroupWrapper"
    )
    use_a_group_of()
    assert headway.stats()["operations"] == 1
    if rank == 0:
        with pytest.raises(RuntimeError):
            dist.broadcast(torch.zeros(2), 0)
    else:
        with pytest.raises(RuntimeError, match="mismatch"):
            dist.all_gather([torch.zeros(2), torch.zeros(2)], torch.zeros(2))


@pytest.mark.usefixtures("detailed_debugging")
def test_detailed_debugging_finds_ranks_that_call_different_collectives() -> None:
    run_ranks(use_with_checks, 2)


def fork_children(rank: int) -> None:
    use_a_group_of()
    pending = dist.irecv(torch.empty(1), 1 - rank)
    child = os.fork()
    if child == 0:
        os._exit(use_in_child(pending))
    assert os.waitpid(child, 0)[1] == 0
    use_a_group_of()
    dist.send(torch.ones(1), 1 - rank)
    pending.wait()
    loader = torch.utils.data.DataLoader(torch.arange(8), num_workers=2)
    assert sum(batch.item() for batch in loader) == 28
    use_a_group_of()


def use_in_child(pending: dist.Work) -> int:
    """Tries operations in a forked child. They must leave the parent's group alone."""
    try:
        dist.barrier()
    except ValueError as error:
        assert "parent process" in str(error)
    else:
        return 1
    del pending
    dist.destroy_process_group()
    gc.collect()
    return 0


def test_a_forked_child_never_tears_the_group_down() -> None:
    run_ranks(fork_children, 2, limit_s=60)


def interrupt(rank: int) -> float:
    if rank == 1:
        time.sleep(3)
        return 0.0
    seconds = 0.0
    for wait in (dist.irecv(torch.empty(1), 1).wait, lambda: dist.all_reduce(torch.ones(1))):
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            wait()
        seconds = max(seconds, time.monotonic() - started)
    return seconds


def test_ctrl_c_ends_a_wait() -> None:
    assert run_ranks(interrupt, 2, limit_s=30)[0] < 1.5


def other_threads_run(rank: int) -> int:
    if rank == 1:
        time.sleep(1)
        dist.barrier()
        return 0
    counter = [0]
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            counter[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    dist.barrier()
    stop.set()
    thread.join()
    return counter[0]


def test_other_threads_run_during_a_wait() -> None:
    assert run_ranks(other_threads_run, 2)[0] > 50
