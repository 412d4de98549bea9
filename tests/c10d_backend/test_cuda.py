"""Collectives on CUDA tensors, in the order of streams. Ranks share the GPUs that are there."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import headway
import pytest
import torch
import torch.distributed as dist
from rank_processes import DIED, SPAWN, kill_self, run_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not any(Path("/dev").glob("nvidia[0-9]*")), reason="this host has no GPU"),
]

KIB, MIB = 1 << 10, 1 << 20


def run_on_gpus(function: Any, size: int, *arguments: Any, **options: Any) -> list[Any]:
    return run_ranks(function, size, *arguments, context=SPAWN, **options)


def take_device(rank: int) -> torch.device:
    torch.cuda.set_device(rank % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


def keep_busy(milliseconds: float) -> None:
    """Enqueues that much work on the current stream."""
    torch.cuda._sleep(int(milliseconds * 1e6))


def block_of(source: int, destination: int, length: int, dtype: torch.dtype, number: int = 0) -> torch.Tensor:
    """What a rank sends another: known to both."""
    generator = torch.Generator().manual_seed(source * 1009 + destination * 31 + number * 7919 + length)
    return torch.randint(0, 100, (length,), generator=generator, dtype=torch.int32).to(dtype)


def exchange(
    rank: int, lengths: list[list[int]], device: torch.device, dtype: torch.dtype, number: int, **options: Any
) -> tuple[torch.Tensor, torch.Tensor, dist.Work | None]:
    """Starts an exchange of ``lengths[source][destination]``; gives output, what it must be, and the work."""
    size = len(lengths)
    sends = [block_of(rank, peer, lengths[rank][peer], dtype, number) for peer in range(size)]
    receives = [block_of(peer, rank, lengths[peer][rank], dtype, number) for peer in range(size)]
    output = torch.full((sum(map(len, receives)),), -1, dtype=dtype, device=device)
    source = torch.cat(sends).to(device)
    work = dist.all_to_all_single(
        output, source, [len(each) for each in receives], [len(each) for each in sends], **options
    )
    return output, torch.cat(receives), work


def exchange_all(rank: int, cases: list[tuple[list[list[int]], torch.dtype]], slot_bytes: int) -> None:
    device = take_device(rank)
    group = dist.new_group(backend="headway", pg_options=headway.Options(cuda_slot_bytes=slot_bytes))
    for number, (lengths, dtype) in enumerate(cases):
        output, expected, _ = exchange(rank, lengths, device, dtype, number, group=group)
        torch.testing.assert_close(output.cpu(), expected, rtol=0, atol=0, msg=f"case {number}")


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("slot_bytes", [64 * KIB, 16 * MIB])
def test_blocks_of_all_sizes_and_types_arrive_whole(size: int, slot_bytes: int) -> None:
    def even(length: int) -> list[list[int]]:
        return [[length] * size for _ in range(size)]

    uneven = [[1000 * source + 7 * destination for destination in range(size)] for source in range(size)]
    lonely = [[0] * size for _ in range(size)]
    lonely[size - 1][0] = 3 * MIB
    some = (3, 70_000, 2_000_000)
    mixed = [[some[(source + destination) % 3] for destination in range(size)] for source in range(size)]
    cases = [(even(length), torch.int64) for length in (0, 1, 100, 8 * KIB, 8 * KIB + 1, MIB)]
    cases += [(even(17), dtype) for dtype in (torch.uint8, torch.bool, torch.bfloat16, torch.float64, torch.complex64)]
    cases += [(uneven, torch.float32), (lonely, torch.float32), (mixed, torch.float16), (lonely, torch.uint8)]
    cases += [(mixed, torch.int32), (even(5), torch.float32)] * 5  # More than there are slots.
    run_on_gpus(exchange_all, size, cases, slot_bytes)


def run_ahead(rank: int, max_lag: int, rounds: int) -> list[float]:
    device = take_device(rank)
    group = dist.new_group(backend="headway", pg_options=headway.Options(max_lag=max_lag, cuda_slot_bytes=MIB))
    size = dist.get_world_size()
    pending: list[Any] = []
    sums = []

    def finish_oldest() -> None:
        output, expected, work = pending.pop(0)
        work.wait()
        sums.append(float(output.double().sum()))
        torch.testing.assert_close(output.cpu(), expected, rtol=0, atol=0)

    for number in range(rounds):
        length = (5, 200_000, 1_000_000, 0)[number % 4]
        lengths = [[length + source * 3 + destination for destination in range(size)] for source in range(size)]
        if number % 3 == rank:
            keep_busy(2)
        pending.append(exchange(rank, lengths, device, torch.float32, number, group=group, async_op=True))
        if len(pending) > max_lag:
            finish_oldest()
    while pending:
        finish_oldest()
    return sums


def test_results_do_not_depend_on_the_bound() -> None:
    by_bound = [run_on_gpus(run_ahead, 2, max_lag, 30) for max_lag in (0, 1, 3)]
    assert by_bound[0] == by_bound[1] == by_bound[2]


def use_streams(rank: int) -> None:
    device = take_device(rank)
    size = dist.get_world_size()
    for length in (10, 3_000_000):
        source, output = torch.empty(size * length, device=device), torch.empty(size * length, device=device)
        for number in range(12):
            stream = torch.cuda.Stream() if number % 2 else torch.cuda.current_stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                keep_busy(1 + rank)
                source.fill_(number * 10 + rank)  # After the sleep: an exchange that does not wait sends the old value.
                output.fill_(-1)
                work = dist.all_to_all_single(output, source, async_op=True)
                work.wait()
                source.fill_(-5)  # At once: an exchange that is not done sends this.
                got = output.view(size, length).clone()
                output.fill_(-7)
            torch.cuda.current_stream().wait_stream(stream)
            for peer in range(size):
                assert torch.all(got[peer] == number * 10 + peer), (length, number, peer, got[peer].unique())


def test_an_exchange_stands_where_its_stream_has_it() -> None:
    run_on_gpus(use_streams, 2)


def drop_works(rank: int) -> None:
    device = take_device(rank)
    size = dist.get_world_size()
    for number in range(50):
        keep_busy(0.2)
        dist.all_to_all_single(
            torch.empty(size * 100_000, device=device),
            torch.full((size * 100_000,), float(number), device=device),
            async_op=True,
        )
    output = torch.empty(size, device=device)
    dist.all_to_all_single(output, torch.full((size,), float(rank), device=device))
    assert output.tolist() == list(range(size))


def test_works_may_be_dropped() -> None:
    run_on_gpus(drop_works, 2)


def move_otherwise(rank: int) -> None:
    device = take_device(rank)
    size = dist.get_world_size()
    for length in (3, 2_000_000):
        own = torch.arange(length, device=device, dtype=torch.float32) + rank
        want = [torch.arange(length, dtype=torch.float32) + peer for peer in range(size)]

        whole = torch.empty(size * length, device=device)
        dist.all_gather_into_tensor(whole, own)
        assert torch.equal(whole.cpu(), torch.cat(want))
        parts = [torch.empty(length, device=device) for _ in range(size)]
        dist.all_gather(parts, own)
        assert all(torch.equal(part.cpu(), each) for part, each in zip(parts, want, strict=True))

        for root in range(size):
            tensor = own.clone()
            dist.broadcast(tensor, root)
            assert torch.equal(tensor.cpu(), want[root])
            parts = [torch.empty(length, device=device) for _ in range(size)]
            dist.gather(own, parts if rank == root else None, dst=root)
            if rank == root:
                assert all(torch.equal(part.cpu(), each) for part, each in zip(parts, want, strict=True))
            tensor = torch.empty(length, device=device)
            sources = [own + 10 * peer for peer in range(size)] if rank == root else None
            dist.scatter(tensor, sources, src=root)
            assert torch.equal(tensor.cpu(), want[root] + 10 * rank)

        received = torch.empty(length, device=device)
        ring = [
            dist.P2POp(dist.isend, own, (rank + 1) % size),
            dist.P2POp(dist.irecv, received, (rank - 1) % size),
        ]
        for work in dist.batch_isend_irecv(ring):
            work.wait()
        assert torch.equal(received.cpu(), want[(rank - 1) % size])
        for number in range(20):
            if rank == 0:
                dist.send(own + number, 1, tag=number)
            if rank == 1:
                dist.recv(received, 0, tag=number)
                assert torch.equal(received.cpu(), want[0] + number)
    output = [torch.empty(peer + 1, device=device) for peer in range(size)]
    dist.all_to_all(output, [torch.full((rank + 1,), float(rank), device=device) for _ in range(size)])
    assert [each.tolist() for each in output] == [[float(peer)] * (peer + 1) for peer in range(size)]
    strided = torch.zeros(4, size * 2, device=device)[:, ::2]
    dist.all_to_all_single(strided.t(), torch.arange(4 * size, device=device).float().view(4, size).t() + 100 * rank)
    assert strided[0].tolist() == [rank * 1.0 + 100 * peer for peer in range(size)]
    future = dist.all_gather_into_tensor(whole := torch.empty(size, device=device), own[:1], async_op=True).get_future()
    assert future.then(lambda done: done.value()[0].sum()).wait().item() == sum(range(size))
    assert whole.tolist() == list(range(size))


def test_the_other_movements() -> None:
    run_on_gpus(move_otherwise, 3)


def reduce_some(rank: int) -> None:
    device = take_device(rank)
    tensor = torch.full((5,), float(rank), device=device)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [1.0] * 5
    layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).to(device), device_ids=[device.index])
    layer(torch.randn(3, 4, device=device)).sum().backward()


def test_reductions_go_to_nccl() -> None:
    if len(list(Path("/dev").glob("nvidia[0-9]*"))) < 2:
        pytest.skip("NCCL wants a GPU for each rank")
    run_on_gpus(reduce_some, 2)


def disagree(rank: int, what: str) -> str:
    device = take_device(rank)
    dist.all_to_all_single(torch.empty(2, device=device), torch.ones(2, device=device))
    sizes = {"size": (4, 4 - 2 * rank), "type": (4, 4)}[what]
    dtype = torch.int32 if what == "type" and rank == 1 else torch.float32
    try:
        for _ in range(2):
            dist.all_to_all_single(
                torch.empty(sizes[1], device=device, dtype=dtype), torch.ones(sizes[1], device=device, dtype=dtype)
            )
            torch.cuda.synchronize()
            time.sleep(1.5)
    except dist.DistBackendError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("what", ["size", "type"])
def test_a_disagreement_names_both_ranks_and_what_each_meant(what: str) -> None:
    for text in run_on_gpus(disagree, 2, what):
        assert "rank 0" in text and "rank 1" in text, text
        assert ("8 bytes" in text and "4 bytes" in text) if what == "size" else "type" in text, text


def capture(rank: int) -> str:
    device = take_device(rank)
    output, source = torch.empty(2, device=device), torch.ones(2, device=device)
    dist.all_to_all_single(output, source)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            dist.all_to_all_single(output, source)
    except ValueError as error:
        text = str(error)
    dist.all_to_all_single(output, source)
    assert output.tolist() == [1, 1]
    return text


def test_capture_in_a_graph_is_refused() -> None:
    assert all("CUDA graph" in text for text in run_on_gpus(capture, 2))


def lose_a_peer(rank: int, length: int) -> tuple[str, float]:
    device = take_device(rank)
    size = dist.get_world_size()
    tensors = torch.empty(size * length, device=device), torch.ones(size * length, device=device)
    dist.all_to_all_single(*tensors)
    torch.cuda.synchronize()
    if rank == 1:
        kill_self()
    started = time.monotonic()
    try:  # A loss that is known already shows at the start.
        work = dist.all_to_all_single(*tensors, async_op=True)
        work.wait()
        torch.cuda.synchronize()
        work.wait()
    except dist.DistBackendError as error:
        text = str(error)
        torch.cuda.synchronize()  # Nothing hangs on the device, which does other work.
        assert float(torch.ones(10, device=device).sum()) == 10
        return text, time.monotonic() - started
    return "no error", 0


@pytest.mark.parametrize("length", [1, 1_000_000])
def test_a_stream_that_waits_for_a_dead_peer_goes_on_and_the_work_fails(length: int) -> None:
    results = run_on_gpus(lose_a_peer, 3, length, may_die=True)
    assert results[1] is DIED
    for text, seconds in (results[0], results[2]):
        assert "rank 1" in text and seconds < 5, (text, seconds)


def wait_in_vain(rank: int) -> tuple[str, float]:
    device = take_device(rank)
    group = dist.new_group(backend="headway", pg_options=headway.Options(timeout=timedelta(seconds=3)))
    tensors = torch.empty(2, device=device), torch.ones(2, device=device)
    dist.all_to_all_single(*tensors, group=group)
    if rank == 1:
        time.sleep(10)
        return "", 0
    started = time.monotonic()
    work = dist.all_to_all_single(*tensors, group=group, async_op=True)
    work.wait()
    torch.cuda.synchronize()
    seconds = time.monotonic() - started
    try:
        work.wait()
    except dist.DistBackendError as error:
        return str(error), seconds
    return "no error", seconds


def test_a_peer_that_does_not_come_is_named_when_the_time_is_over() -> None:
    text, seconds = run_on_gpus(wait_in_vain, 2)[0]
    assert "timed out" in text and "4 bytes from rank 1" in text, text
    assert 2.5 < seconds < 6


def profile_kernels(rank: int) -> tuple[list[str], dict[str, int]]:
    device = take_device(rank)
    size = dist.get_world_size()
    tensors = torch.empty(size * 1000, device=device), torch.ones(size * 1000, device=device)
    dist.all_to_all_single(*tensors)
    before = dict(headway.stats()["cuda"])
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(10):
            dist.all_to_all_single(*tensors)
        torch.cuda.synchronize()
    names = [event.name for event in profile.events() if event.device_type == torch.profiler.DeviceType.CUDA]
    after = headway.stats()["cuda"]
    return names, {key: after[key] - before[key] for key in before}


def test_small_exchanges_use_no_multiprocessor() -> None:
    for names, used in run_on_gpus(profile_kernels, 2):
        assert used["operations"] == 10 and used["local_copies"] == 0
        assert names and all("Memcpy" in name and "DtoD" not in name for name in names), names


FILL = """
extern "C" __global__ void fill(volatile unsigned* stop, unsigned* started) {
  if (threadIdx.x == 0) atomicAdd_system(started, 1u);
  while (*stop == 0) __nanosleep(1000);
}
"""


class FullDevice:
    """Keeps every multiprocessor busy until it is left: no other kernel gets a place."""

    def __enter__(self) -> FullDevice:
        blocks = 2 * torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        self._stop = torch.zeros(1, dtype=torch.int32).pin_memory()
        started = torch.zeros(1, dtype=torch.int32).pin_memory()
        self._stream = torch.cuda.Stream()
        kernel = torch.cuda._compile_kernel(FILL, "fill")
        kernel((blocks, 1, 1), (1024, 1, 1), (self._stop, started), stream=self._stream)
        deadline = time.monotonic() + 20
        while int(started[0]) < blocks:
            assert time.monotonic() < deadline, f"only {int(started[0])} of {blocks} blocks started"
        return self

    def __exit__(self, *_: object) -> None:
        self._stop[0] = 1
        self._stream.synchronize()


def needs_two_gpus() -> None:
    if len(list(Path("/dev").glob("nvidia[0-9]*"))) < 2:
        pytest.skip("copies between ranks that share a GPU are copies inside a device")


def exchange_beside_full_device(rank: int, length: int, uses_slots: bool) -> bool:
    device = take_device(rank)
    size = dist.get_world_size()
    source = torch.arange(size * length, device=device) + 1000 * rank
    ring = headway.slots.Ring(capacity=length, dtype=torch.int64) if uses_slots else None
    output = torch.zeros(size * length, dtype=torch.int64, device=device)
    kept: list[Any] = []

    def run() -> None:
        if ring is None:
            dist.all_to_all_single(output, source)
        else:
            slot = ring.take()
            slot.exchange(list(source.split(length)), [length] * size)
            kept[:] = [slot]

    run()
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    before = headway.stats()["cuda"]["local_copies"]
    with FullDevice():
        run()
        done.record()
        deadline = time.monotonic() + 5
        while not done.query() and time.monotonic() < deadline:
            time.sleep(0.001)
        completed = done.query()
    torch.cuda.synchronize()
    assert headway.stats()["cuda"]["local_copies"] == before
    peer = 1 - rank
    got = kept[0].received()[peer] if ring else output.view(size, length)[peer]
    assert torch.equal(got.cpu(), torch.arange(size * length).view(size, length)[rank] + 1000 * peer)
    return completed


@pytest.mark.parametrize(("length", "uses_slots"), [(64, True), (1 << 20, True), (64, False), (8000, False)])
def test_exchanges_complete_beside_a_kernel_that_fills_every_multiprocessor(length: int, uses_slots: bool) -> None:
    needs_two_gpus()
    assert all(run_on_gpus(exchange_beside_full_device, 2, length, uses_slots))


def exchange_slots(rank: int, capacity: int, max_lag: int) -> dict[str, int]:
    device = take_device(rank)
    size = dist.get_world_size()
    num_slots = max_lag + 2
    ring = headway.slots.Ring(
        capacity=capacity, features=(8,), dtype=torch.float32, num_slots=num_slots, max_lag=max_lag
    )
    pending: list[Any] = []

    def check(number: int, slot: Any, work: Any) -> None:
        work.wait()
        keep_busy(0.3 * rank)  # Others must not overwrite what is still to be read.
        for peer, block in enumerate(slot.received()):
            assert block.shape == ((number * 3 + peer + rank) % (capacity + 1), 8)
            assert torch.all(block == number * 100 + peer * 10 + rank), (number, peer, rank, block)

    for number in range(4 * num_slots):
        slot = ring.take()
        rows = [(number * 3 + rank + peer) % (capacity + 1) for peer in range(size)]
        keep_busy(0.3)
        inputs = [torch.full((rows[peer], 8), number * 100.0 + rank * 10 + peer, device=device) for peer in range(size)]
        slot.own(rows[rank]).copy_(inputs[rank])
        pending.append((number, slot, slot.exchange(inputs, rows, async_op=True)))
        if len(pending) > max_lag:
            check(*pending.pop(0))
        del slot
    for each in pending:
        check(*each)
    return dict(headway.stats()["cuda"])


@pytest.mark.parametrize("capacity", [16, 100_000])
@pytest.mark.parametrize("max_lag", [0, 2])
def test_slots_hold_what_ranks_sent_until_their_tensors_are_gone(capacity: int, max_lag: int) -> None:
    for used in run_on_gpus(exchange_slots, 2, capacity, max_lag):
        assert used["operations"] == 4 * (max_lag + 2)
        if len(list(Path("/dev").glob("nvidia[0-9]*"))) >= 2:
            assert used["local_copies"] == 0


def hold_slots(rank: int) -> tuple[str, str]:
    device = take_device(rank)
    ring = headway.slots.Ring(capacity=128, features=(4,), num_slots=2)
    weight = torch.full((4,), 2.0, device=device, requires_grad=True)
    losses = []
    rows = [torch.full((128, 4), float(rank + 1), device=device)] * 2
    for _ in range(2):
        slot = ring.take()
        slot.own(128).copy_(rows[rank])
        slot.exchange(rows, [128, 128])
        losses.append((slot.output * weight).sum())  # Autograd keeps the slot for the gradient of the weight.
        del slot
    with pytest.raises(ValueError, match="slot 0 is still leased") as held:
        ring.take()
    losses[0].backward()
    assert torch.allclose(weight.grad, torch.full((4,), 128 * 3.0, device=device))
    slot = ring.take()
    with pytest.raises(ValueError, match="does not fit") as large:
        slot.exchange([torch.zeros(129, 4, device=device)] * 2, [128, 128])
    slot.exchange(rows, [128, 128])
    assert float(slot.received()[1 - rank].sum()) == 512 * (2 - rank)
    return str(held.value), str(large.value)


def test_a_slot_is_leased_as_long_as_autograd_needs_it() -> None:
    run_on_gpus(hold_slots, 2)
