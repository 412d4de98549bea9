# SPDX-License-Identifier: Apache-2.0
"""Senders write directly into outputs from headway.empty() on CUDA devices."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import headway
import pytest
import torch
import torch.distributed as dist
from cuda_ranks import NEEDS_GPU, keep_busy, num_gpus, run_on_gpus, take_device
from rank_processes import DIED, kill_self

pytestmark = NEEDS_GPU

LARGE = 300_000  # Bytes. Only blocks above 64 KiB are written directly into an output.
PATIENCE = timedelta(seconds=20)


def local_copies(group: dist.ProcessGroup | None = None) -> tuple[int, int]:
    """Number and bytes of copies inside this rank's device: its own blocks, and blocks out of receive slots."""
    used = headway.stats(group)["cuda"]
    return used["local_copies"], used["local_copy_bytes"]


def value_of(source: int, destination: int, number: int) -> int:
    return (number * 31 + source * 7 + destination * 3) % 251


def exchange(
    rank: int, lengths: list[list[int]], number: int, device: torch.device, *, is_plain: bool = False, **options: Any
) -> tuple[torch.Tensor, list[int], dist.Work | None]:
    """Starts an exchange of ``lengths[source][destination]`` bytes. Returns output, lengths in it, and the Work."""
    size = len(lengths)
    received = [lengths[peer][rank] for peer in range(size)]
    source = torch.empty(sum(lengths[rank]), dtype=torch.uint8, device=device)
    output = (torch.empty if is_plain else headway.empty)(sum(received), dtype=torch.uint8, device=device)
    for peer, block in enumerate(source.split(lengths[rank])):
        block.fill_(value_of(rank, peer, number))
    work = dist.all_to_all_single(output, source, received, lengths[rank], **options)
    return output, received, work


def check(rank: int, output: torch.Tensor, received: list[int], number: int) -> None:
    for peer, block in enumerate(output.cpu().split(received)):
        assert bool((block == value_of(peer, rank, number)).all()), f"exchange {number}, from rank {peer}"


def even(size: int, length: int) -> list[list[int]]:
    return [[length] * size for _ in range(size)]


def exchange_all_sizes(rank: int, max_lag: int, mixes: bool) -> tuple[int, int]:
    """Exchanges blocks of all sizes. With ``mixes``, some ranks use ordinary outputs from time to time.

    Returns:
        bytes copied out of slots, and bytes of the large blocks that came from other ranks.
    """
    device = take_device(rank)
    size = dist.get_world_size()
    group = dist.new_group(backend="headway", pg_options=headway.Options(max_lag=max_lag), timeout=PATIENCE)
    sizes = [LARGE, 5, 9_000_001, 0, 70_000, LARGE, 65_536, 65_537]
    finish(rank, (0, *exchange(rank, even(size, LARGE), 0, device, group=group, async_op=True)))
    _, before = local_copies(group)
    pending: list[Any] = []
    own = large = 0
    for number in range(200):
        largest = sizes[number % len(sizes)]
        lengths = [[largest // (1 + (source + peer + number) % 3) for peer in range(size)] for source in range(size)]
        own += lengths[rank][rank] if any(lengths[rank][peer] > 65_536 for peer in range(size)) else 0
        large += sum(lengths[peer][rank] for peer in range(size) if peer != rank and lengths[peer][rank] > 65_536)
        if number % 17 == rank:
            time.sleep(0.002)  # Each rank is the first one in turn.
        is_plain = mixes and (number // 3 + rank) % 2 == 0
        pending.append(
            (number, *exchange(rank, lengths, number, device, is_plain=is_plain, group=group, async_op=True))
        )
        if len(pending) > max_lag:
            finish(rank, pending.pop(0))  # Its memory is used again.
    for each in pending:
        finish(rank, each)
    return local_copies(group)[1] - before - own, large


def finish(rank: int, pending: tuple[Any, ...]) -> None:
    number, output, received, work = pending
    work.wait()
    check(rank, output, received, number)


@pytest.mark.parametrize(("size", "max_lag", "mixes"), [(2, 0, False), (3, 2, False), (3, 1, True)])
def test_blocks_of_all_sizes_arrive_whole(size: int, max_lag: int, mixes: bool) -> None:
    copied, large = map(sum, zip(*run_on_gpus(exchange_all_sizes, size, max_lag, mixes), strict=True))
    if not mixes and num_gpus() >= size:
        assert 2 * copied <= large, "of two ranks the later one sends into the other's output"


def profile_copies(rank: int) -> tuple[int, int, int]:
    """Returns copies inside the device by Headway's count and by the profiler's, and kernels that are no copies."""
    device = take_device(rank)
    size = dist.get_world_size()
    output = headway.empty(size, LARGE, dtype=torch.uint8, device=device)
    source = torch.ones(size, LARGE, dtype=torch.uint8, device=device)
    dist.all_to_all_single(output, source)
    torch.cuda.synchronize()
    before, _ = local_copies()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(20):
            dist.all_to_all_single(output, source)
        torch.cuda.synchronize()
    names = [event.name for event in profile.events() if event.device_type == torch.profiler.DeviceType.CUDA]
    inside = sum("DtoD" in name for name in names)
    return local_copies()[0] - before, inside, sum("Memcpy" not in name for name in names)


def test_copies_inside_a_device_are_those_that_are_counted() -> None:
    if num_gpus() < 2:
        pytest.skip("copies between ranks that share a GPU are copies inside a device")
    for counted, inside, kernels in run_on_gpus(profile_copies, 2):
        assert (counted, kernels) == (inside, 0)
        assert 20 <= counted <= 40  # The own block, and at most one block out of a slot.


def wait_for_the_receiver(rank: int) -> bool:
    """Rank 1 reads its output late. Nothing may be written there before."""
    device = take_device(rank)
    output = headway.empty(2, LARGE, dtype=torch.int32, device=device)
    source = torch.ones(2, LARGE, dtype=torch.int32, device=device)
    dist.all_to_all_single(output, source)
    torch.cuda.synchronize()
    dist.barrier()
    source.fill_(2)
    before, _ = local_copies()
    if rank == 1:
        keep_busy(1000)
    else:
        time.sleep(0.1)  # Its host comes second, and would copy into the output that rank 1 still reads.
    seen = output.clone()
    dist.all_to_all_single(output, source)
    torch.cuda.synchronize()
    assert rank == 0 or num_gpus() < 2 or local_copies()[0] == before + 1, "rank 0 did not send directly"
    return bool((seen == 1).all()) and bool((output == 2).all())


def test_an_output_is_written_after_what_its_stream_did_before() -> None:
    assert all(run_on_gpus(wait_for_the_receiver, 2))


def collect(rank: int) -> int:
    device = take_device(rank)
    size = dist.get_world_size()
    root = size - 1
    own = torch.full((LARGE,), 3 * rank + 1, dtype=torch.int32, device=device)
    for _ in range(2):
        gathered = headway.empty(size, LARGE, dtype=torch.int32, device=device)
        dist.all_gather_into_tensor(gathered, own)
        assert [int(row[0]) for row in gathered.cpu()] == [3 * peer + 1 for peer in range(size)]
        received = headway.empty(LARGE, dtype=torch.int32, device=device).copy_(own)
        dist.broadcast(received, src=root)
        assert bool((received == 3 * root + 1).all())
    before, _ = local_copies()
    dist.barrier()
    if rank == root:
        time.sleep(0.05)  # The other ranks come first.
    dist.broadcast(received, src=root)
    return local_copies()[0] - before


def test_collectives_write_into_outputs() -> None:
    copies = run_on_gpus(collect, 2)
    assert num_gpus() < 2 or copies == [0, 0]


def exchange_a_little(rank: int, device: torch.device) -> None:
    for number in range(5):
        exchange(rank, even(2, 5), number, device, is_plain=True)
        time.sleep(0.02)


def exchange_until_nothing_is_mapped(rank: int, device: torch.device, limit_s: float = 20) -> int:
    """Exchanges until no rank has mapped memory. A loaded host may take long to see that large exchanges are done.

    Returns:
        bytes that this rank has mapped at the end.
    """
    deadline = time.monotonic() + limit_s
    while True:
        exchange_a_little(rank, device)
        mapped = int(headway.stats()["cuda"]["mapped_bytes"])
        goes_on = torch.tensor([float(mapped > 0 and time.monotonic() < deadline)])
        dist.all_reduce(goes_on)
        if goes_on.item() == 0:
            return mapped


def free_and_exchange(rank: int) -> list[int]:
    device = take_device(rank)
    mapped = []
    for number in range(3):
        for _ in range(2):
            output, received, _ = exchange(rank, even(2, 50_000_000), number, device)
            check(rank, output, received, number)
            time.sleep(0.2 * rank)  # Rank 1 sends last, directly into the output of rank 0.
        mapped.append(headway.stats()["cuda"]["mapped_bytes"])
        del output
        exchange_a_little(rank, device)  # Lets the host see that the large exchanges are done.
        headway.comm.memory._pools.clear()  # Frees all unused memory.
        # The first exchange announces the release, and a later one unmaps.
        mapped.append(exchange_until_nothing_is_mapped(rank, device))
    return mapped


def test_memory_that_was_freed_is_not_kept_by_peers() -> None:
    results = run_on_gpus(free_and_exchange, 2)
    assert [mapped[1::2] for mapped in results] == [[0, 0, 0]] * 2
    assert min(results[1][0::2]) >= 100_000_000


def lose_a_peer(rank: int) -> Any:
    device = take_device(rank)
    group = dist.new_group(backend="headway", timeout=timedelta(seconds=3))
    for number in range(3):
        output, received, _ = exchange(rank, even(2, LARGE), number, device, group=group)
        check(rank, output, received, number)
    pool = headway.mem_pool()
    assert headway.mem_pool().id == pool.id
    if rank == 1:
        kill_self()
    started = time.monotonic()
    with pytest.raises(dist.DistBackendError, match="rank 1"):
        for number in range(100):
            exchange(rank, even(2, LARGE), number, device, group=group)
            torch.cuda.synchronize()
            time.sleep(0.1)
    took_s = time.monotonic() - started
    assert headway.mem_pool().id != pool.id, "what a peer may still write to is handed out again"
    assert bool((headway.empty(1000, device=device).fill_(1) == 1).all())
    return took_s


def test_what_a_lost_peer_may_still_write_to_is_not_used_again() -> None:
    took_s, died = run_on_gpus(lose_a_peer, 2, may_die=True)
    assert died is DIED
    assert took_s < 10


def allocate(rank: int) -> int:
    device = take_device(rank)
    for size in ((), (0,), (2, 3)):
        tensor, expected = headway.empty(size, device="cuda"), torch.empty(size, device=device)
        assert (tensor.shape, tensor.dtype, tensor.device) == (expected.shape, expected.dtype, device)
    with pytest.raises(torch.OutOfMemoryError):
        headway.empty(1 << 45, dtype=torch.uint8, device=device)
    with torch.cuda.use_mem_pool(headway.mem_pool()):
        output = torch.zeros(2, LARGE, device=device)
    for _ in range(3):
        dist.barrier()
        time.sleep(0.1 * rank)
        dist.all_to_all_single(output, torch.ones_like(output))
    assert bool((output == 1).all())
    return headway.stats()["cuda"]["mapped_bytes"]


@pytest.mark.parametrize("expandable", [False, True])
def test_tensors_are_those_of_torch(expandable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", f"expandable_segments:{expandable}")
    assert run_on_gpus(allocate, 2)[1] > 0, "rank 1 comes last, and writes into the output of rank 0"
