# SPDX-License-Identifier: Apache-2.0
"""Collectives on CUDA tensors follow the order of streams."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import headway
import pytest
import torch
import torch.distributed as dist
from cuda_ranks import NEEDS_GPU, keep_busy, num_gpus, run_on_gpus, take_device

pytestmark = NEEDS_GPU

KIB, MIB = 1 << 10, 1 << 20


def block_of(source: int, destination: int, length: int, dtype: torch.dtype, number: int = 0) -> torch.Tensor:
    """Block from one rank to another in exchange ``number``; both compute it."""
    generator = torch.Generator().manual_seed(source * 1009 + destination * 31 + number * 7919 + length)
    return torch.randint(0, 100, (length,), generator=generator, dtype=torch.int32).to(dtype)


def exchange(
    rank: int, lengths: list[list[int]], device: torch.device, dtype: torch.dtype, number: int, **options: Any
) -> tuple[torch.Tensor, torch.Tensor, dist.Work | None]:
    """Starts an exchange of ``lengths[source][destination]``. Returns output, expected output, and the Work."""
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
    cases += [(mixed, torch.int32), (even(5), torch.float32)] * 5  # More exchanges than slots.
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


def exchange_unlike_sizes(rank: int, max_lag: int, rounds: int) -> None:
    device = take_device(rank)
    group = dist.new_group(backend="headway", pg_options=headway.Options(max_lag=max_lag, cuda_slot_bytes=MIB))
    size = dist.get_world_size()
    # A rank with small blocks sends and receives on one stream, one with large blocks on two. A pair may differ.
    some = (3, 70_000, 5_000_000, 400_000, 0)
    pending: list[Any] = []
    for number in range(rounds):
        lengths = [[some[(number + 2 * source + peer * peer) % 5] for peer in range(size)] for source in range(size)]
        if number % size == rank:
            keep_busy(1)
        pending.append(exchange(rank, lengths, device, torch.uint8, number, group=group, async_op=True))
        if len(pending) > max_lag:
            output, expected, work = pending.pop(0)
            work.wait()
            torch.testing.assert_close(output.cpu(), expected, rtol=0, atol=0, msg=f"exchange {number}")


@pytest.mark.parametrize("max_lag", [0, 2])
def test_blocks_may_be_small_for_one_rank_and_large_for_another(max_lag: int) -> None:
    run_on_gpus(exchange_unlike_sizes, 3, max_lag, 30)


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
                # Enqueued after the sleep: an exchange that does not wait for it sends the old value.
                source.fill_(number * 10 + rank)
                output.fill_(-1)
                work = dist.all_to_all_single(output, source, async_op=True)
                work.wait()
                source.fill_(-5)  # Enqueued right after wait(): an exchange that is not complete sends this value.
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


def send_around(rank: int) -> list[float]:
    """The first use of each rank's device waits for a message in the other direction."""
    device = take_device(rank)
    group = dist.new_group(backend="headway")
    size = dist.get_world_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    sent = [dist.isend(torch.full((length,), float(rank), device=device), after, group) for length in (10, MIB)]
    received = [torch.empty(length, device=device) for length in (10, MIB)]
    for work in sent + [dist.irecv(each, before, group) for each in received]:
        assert work is not None
        work.wait()
    return [float(each.mean()) for each in received]


def test_ranks_meet_without_taking_turns() -> None:
    assert run_on_gpus(send_around, 3) == [[2.0, 2.0], [0.0, 0.0], [1.0, 1.0]]


def move_otherwise(rank: int) -> None:
    device = take_device(rank)
    size = dist.get_world_size()
    for length in (3, 2_000_000, 7_000_000):  # One fragment, two fragments, and more than one copy can take.
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
    # 110,000 days in nanoseconds do not fit into 63 bits.
    dist.all_gather_into_tensor(torch.empty(size, device=device), own[:1], async_op=True).wait(timedelta(days=110_000))
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


def test_reductions_go_to_nccl(capfd: pytest.CaptureFixture[str]) -> None:
    if num_gpus() < 2:
        pytest.skip("NCCL wants a GPU for each rank")
    run_on_gpus(reduce_some, 2)
    assert "destroy" not in capfd.readouterr().err, "NCCL's group ends with ours, and does not complain that it did not"


def refuse_overlap(rank: int) -> None:
    device = take_device(rank)
    whole = torch.zeros(8, device=device)
    parts = list(whole.chunk(2))
    negated = torch.zeros(4, dtype=torch.complex64, device=device).conj().imag
    for message, call in {
        "all_to_all_single: the input": lambda: dist.all_to_all_single(whole, whole),
        "all_gather: the input": lambda: dist.all_gather(parts, parts[1 - rank]),
        "all_gather_into_tensor: the input": lambda: dist.all_gather_into_tensor(whole, parts[1 - rank]),
        "broadcast: output 0 has several": lambda: dist.broadcast(torch.zeros(1, device=device).expand(4), 1 - rank),
        "all_reduce: output 0 has several": lambda: dist.all_reduce(torch.zeros(1, device=device).expand(4)),
        "reduce_scatter_tensor: the input for rank": lambda: dist.reduce_scatter_tensor(parts[1 - rank], whole),
        "all_reduce on cuda.*negated": lambda: dist.all_reduce(negated),
    }.items():
        with pytest.raises(ValueError, match=message):
            call()
    parts[rank].fill_(rank + 1)
    dist.all_gather_into_tensor(whole, parts[rank])  # A rank's own part may be the input.
    assert whole.tolist() == [1.0] * 4 + [2.0] * 4


def test_overlaps_and_lazy_reductions_are_refused() -> None:
    run_on_gpus(refuse_overlap, 2)


def reduce_alone(rank: int) -> None:
    device = take_device(rank)
    with pytest.raises(ValueError, match=r"all_reduce: .*Short"):
        dist.all_reduce(torch.ones(2, dtype=torch.int16, device=device))
    tensor = torch.ones(2, device=device)
    dist.all_reduce(tensor)
    dist.reduce_scatter_tensor(tensor, tensor)  # A rank's own part may be the output.
    assert tensor.tolist() == [1.0, 1.0]


def test_a_type_that_nccl_has_not_is_an_error_of_the_caller() -> None:
    run_on_gpus(reduce_alone, 1)


def coalesce(rank: int) -> list[float]:
    device = take_device(rank)
    size = dist.get_world_size()
    outputs = [torch.empty(size * length, device=device) for length in (3, 300_000)]
    keep_busy(20)
    with dist._coalescing_manager(device=device, async_ops=True) as manager:
        for number, output in enumerate(outputs):
            own = torch.full((len(output) // size,), float(rank + 10 * number), device=device)
            dist.all_gather_into_tensor(output, own)
    (work,) = manager.works
    return [float(each.mean()) for each in work.get_future().then(lambda done: done.value()).wait()]


def test_the_future_of_calls_that_were_made_as_one_is_of_the_device() -> None:
    assert run_on_gpus(coalesce, 2) == [[0.5, 10.5]] * 2
