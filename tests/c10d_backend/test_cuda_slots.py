# SPDX-License-Identifier: Apache-2.0
"""Exchanges that use no multiprocessor, and the slot tensors that hold their results.

A ``headway.slots.Ring`` has ``num_slots`` slots. A slot is device memory for up to ``capacity`` rows from each rank. It
is leased to one exchange until all tensors of its results are gone.
"""

from __future__ import annotations

import time
from typing import Any

import headway
import pytest
import torch
import torch.distributed as dist
from cuda_ranks import NEEDS_GPU, keep_busy, num_gpus, run_on_gpus, take_device

pytestmark = NEEDS_GPU


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
    """Keeps every multiprocessor busy until it exits, so that no other kernel can start."""

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
    if num_gpus() < 2:
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
        keep_busy(0.3 * rank)  # Delays the reads: other ranks must not overwrite the slot meanwhile.
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
        if num_gpus() >= 2:
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
        losses.append((slot.output * weight).sum())  # Autograd saves the slot for the gradient of the weight.
        del slot
    with pytest.raises(ValueError, match="slot 0 is still leased") as held:
        ring.take()
    losses[0].backward()
    assert torch.allclose(weight.grad, torch.full((4,), 128 * 3.0, device=device))
    slot = ring.take()
    with pytest.raises(ValueError, match="does not fit") as large:
        slot.exchange([torch.zeros(129, 4, device=device)] * 2, [128, 128])
    with pytest.raises(ValueError, match="share memory"):
        slot.exchange([slot.output[1 - rank]] * 2, [128, 128])  # The peer writes into this memory.
    slot.exchange(rows, [128, 128])
    assert float(slot.received()[1 - rank].sum()) == 512 * (2 - rank)
    return str(held.value), str(large.value)


def test_a_slot_is_leased_as_long_as_autograd_needs_it() -> None:
    run_on_gpus(hold_slots, 2)


def exchange_ones(ring: headway.slots.Ring, device: torch.device) -> headway.slots.Slot:
    rows = [torch.ones(128, device=device)] * 2
    slot = ring.take()
    slot.exchange(rows, [128, 128])
    return slot


def take_beside_a_late_reader(rank: int) -> bool:
    device = take_device(rank)
    ring = headway.slots.Ring(capacity=128, num_slots=3)
    for _ in range(3):
        exchange_ones(ring, device)
    torch.cuda.synchronize()
    late, passed = torch.cuda.Stream(), torch.cuda.Event()
    slot = exchange_ones(ring, device)
    slot.record_stream(late)
    with torch.cuda.stream(late):
        keep_busy(2000)
    del slot
    following = exchange_ones(ring, device)
    passed.record()
    deadline = time.monotonic() + 1
    while not passed.query() and time.monotonic() < deadline:
        time.sleep(0.001)
    is_independent = passed.query() and not late.query()
    torch.cuda.synchronize()
    assert float(following.received()[1 - rank].sum()) == 128
    return is_independent


def test_a_slot_does_not_wait_for_readers_of_another() -> None:
    assert run_on_gpus(take_beside_a_late_reader, 2) == [True, True]


def give_back_unused(rank: int) -> list[float]:
    device = take_device(rank)
    ring = headway.slots.Ring(capacity=128, num_slots=2)
    exchange_ones(ring, device)
    with torch.cuda.stream(torch.cuda.Stream()):
        slot = ring.take()
        keep_busy(50)
        slot.own(128).fill_(1)
        del slot
    slot = ring.take()  # The same slot: this fill must come after the earlier one.
    slot.own(128).fill_(2)
    slot.exchange([torch.ones(128, device=device)] * 2, [128, 128])
    torch.cuda.synchronize()
    return slot.received()[rank].unique().tolist()


def test_a_slot_that_is_given_back_unused_keeps_its_order() -> None:
    assert run_on_gpus(give_back_unused, 2) == [[2.0], [2.0]]


def free_in_capture(rank: int) -> float:
    device = take_device(rank)
    ring = headway.slots.Ring(capacity=128, num_slots=1)
    slot: headway.slots.Slot | None = exchange_ones(ring, device)
    value = torch.ones(5, device=device)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        slot = None
        doubled = value * 2
    graph.replay()
    for _ in range(3):
        slot = exchange_ones(ring, device)
        assert float(slot.received()[1 - rank].sum()) == 128
        slot = None
    return float(doubled.sum())


def test_a_slot_may_be_freed_while_a_graph_is_captured() -> None:
    assert run_on_gpus(free_in_capture, 2) == [10.0, 10.0]
