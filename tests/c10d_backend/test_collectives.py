# SPDX-License-Identifier: Apache-2.0
"""Every collective matches a plain computation, for many types, shapes and layouts."""

from __future__ import annotations

import time
from collections.abc import Callable

import headway
import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks

DTYPES = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
]
SIZES = [1, 2, 3]


def block(sender: int, receiver: int, rows: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """(rows, 3) values that depend on both ranks, so that a wrong block is detected."""
    values = torch.arange(rows * 3) + 7 * sender + 31 * receiver
    return (values % 100).reshape(rows, 3).to(dtype)


def rows_between(sender: int, receiver: int) -> int:
    """Uneven numbers of rows, zero between some ranks."""
    return (sender * 2 + receiver * 3) % 4


def equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and torch.equal(left.view(torch.uint8), right.view(torch.uint8))


def exchange_uneven(rank: int, dtype: torch.dtype) -> None:
    ranks = range(dist.get_world_size())
    sends = [block(rank, peer, rows_between(rank, peer), dtype) for peer in ranks]
    expected = [block(peer, rank, rows_between(peer, rank), dtype) for peer in ranks]
    output = torch.empty(sum(map(len, expected)), 3, dtype=dtype)
    dist.all_to_all_single(output, torch.cat(sends), [len(e) for e in expected], [len(s) for s in sends])
    assert equal(output, torch.cat(expected))
    outputs = [torch.empty_like(e) for e in expected]
    dist.all_to_all(outputs, sends)
    assert all(equal(o, e) for o, e in zip(outputs, expected, strict=True))


def exchange_all_dtypes(rank: int) -> None:
    for dtype in DTYPES:
        exchange_uneven(rank, dtype)


@pytest.mark.parametrize("size", SIZES)
def test_uneven_exchanges_of_every_dtype_give_each_rank_its_blocks(size: int) -> None:
    run_ranks(exchange_all_dtypes, size)


def exchange_large(rank: int, empty: Callable[..., torch.Tensor], rails: int) -> None:
    """Exchanges blocks of a mebibyte. ``rails`` is the number of RDMA queue pairs per peer."""
    size, rows = dist.get_world_size(), 1 << 18
    group = dist.new_group(backend="headway", pg_options=headway.Options(rdma_rails=rails))
    for step in range(4):  # Uses the same memory again and again, and frees it halfway.
        if step % 2 == 0:
            source, output = empty(size * rows), empty(size * rows)
        torch.add(torch.arange(size * rows), rank * 1000 + step, out=source)
        dist.all_to_all_single(output, source, group=group)
        blocks = [torch.arange(rank * rows, (rank + 1) * rows) + peer * 1000 + step for peer in range(size)]
        assert torch.equal(output, torch.cat(blocks).float())


@pytest.mark.parametrize(
    ("empty", "rails"),
    [(torch.empty, 1), (headway.empty, 1), (headway.empty, 2)],
    ids=["torch", "headway", "headway_two_rails"],
)
def test_blocks_of_a_mebibyte_arrive_from_and_in_any_memory(empty: Callable[..., torch.Tensor], rails: int) -> None:
    run_ranks(exchange_large, 2, empty, rails)


def move_all_dtypes(rank: int) -> None:
    size = dist.get_world_size()
    root = size - 1
    for dtype in DTYPES:
        mine = block(rank, 0, 2, dtype)
        everyones = [block(peer, 0, 2, dtype) for peer in range(size)]
        tensor = mine.clone()
        dist.broadcast(tensor, root)
        assert equal(tensor, everyones[root])
        outputs = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(outputs, mine)
        assert all(equal(o, e) for o, e in zip(outputs, everyones, strict=True))
        output = torch.empty(2 * size, 3, dtype=dtype)
        dist.all_gather_into_tensor(output, mine)
        assert equal(output, torch.cat(everyones))
        gathered = [torch.empty_like(mine) for _ in range(size)] if rank == root else None
        dist.gather(mine, gathered, root)
        assert gathered is None or all(equal(o, e) for o, e in zip(gathered, everyones, strict=True))
        received = torch.empty_like(mine)
        dist.scatter(received, [block(root, peer, 2, dtype) for peer in range(size)] if rank == root else None, root)
        assert equal(received, block(root, rank, 2, dtype))
        if size > 1:
            right, left = (rank + 1) % size, (rank - 1) % size
            request = dist.isend(mine, right, tag=5)
            dist.recv(received, left, tag=5)
            assert equal(received, everyones[left])
            request.wait()
    dist.barrier()


@pytest.mark.parametrize("size", SIZES)
def test_rooted_and_gathering_collectives_move_every_dtype(size: int) -> None:
    run_ranks(move_all_dtypes, size)


def move_strided(rank: int) -> None:
    size = dist.get_world_size()
    wide = torch.arange(size * 2 * 6, dtype=torch.float32).reshape(size * 2, 6) + 1000 * rank
    source = wide[:, ::2]
    into = torch.full((size * 2, 8), -1.0)
    target = into[:, 1:7:2]
    dist.all_to_all_single(target, source)
    expected = torch.cat(
        [(torch.arange(size * 12).reshape(size * 2, 6) + 1000 * p)[2 * rank : 2 * rank + 2, ::2] for p in range(size)]
    )
    assert torch.equal(target, expected.float())
    assert bool((into[:, [0, 2, 4, 6, 7]] == -1).all()), "nothing beside the view is written"

    transposed = torch.empty(3, 4).t()
    transposed.copy_(torch.arange(12).reshape(4, 3) if rank == 0 else torch.zeros(4, 3))
    dist.broadcast(transposed, 0)
    assert torch.equal(transposed, torch.arange(12.0).reshape(4, 3))

    negated = torch.full((2,), complex(1, rank + 1)).conj().imag
    assert negated.is_neg()
    outputs = [torch.empty(2) for _ in range(size)]
    dist.all_gather(outputs, negated)
    assert [o[0].item() for o in outputs] == [-p - 1.0 for p in range(size)]
    conjugate = torch.full((size,), complex(1, rank + 1)).conj()
    output = torch.empty(size, dtype=torch.complex64)
    headway.all_to_all_single(output, conjugate)
    assert output.tolist() == [complex(1, -p - 1) for p in range(size)]

    views = [torch.full((4, 2), -1.0)[:, 0] for _ in range(size)]
    # Nobody waits for it. The strided results must arrive nevertheless.
    dist.all_gather(views, torch.ones(4), async_op=True)
    dist.barrier()
    deadline = time.monotonic() + 10
    while not all(bool((view == 1).all()) for view in views):
        assert time.monotonic() < deadline, "the results of a dropped work did not arrive"
        time.sleep(0.01)


@pytest.mark.parametrize("size", SIZES)
def test_tensors_that_are_not_plain_memory_are_sent_and_filled(size: int) -> None:
    run_ranks(move_strided, size)


def move_empty(rank: int) -> None:
    size = dist.get_world_size()
    empty = torch.empty(0, 5)
    dist.all_to_all_single(torch.empty(0, 5), empty, [0] * size, [0] * size)
    dist.all_gather([torch.empty(0) for _ in range(size)], torch.empty(0))
    dist.broadcast(torch.empty(0), 0)
    dist.all_reduce(torch.empty(0))
    lists = [None] * size
    dist.all_gather_object(lists, {"rank": rank})
    assert lists == [{"rank": peer} for peer in range(size)]


def test_empty_tensors_and_objects_are_legal() -> None:
    run_ranks(move_empty, 2)


def gather_uneven(rank: int) -> None:
    outputs = [torch.empty(peer + 1) for peer in range(3)]
    dist.all_gather(outputs, torch.full((rank + 1,), float(rank)))
    assert [o.tolist() for o in outputs] == [[float(p)] * (p + 1) for p in range(3)]
    output = torch.empty(rank + 1)
    dist.reduce_scatter(output, [torch.full((peer + 1,), float(peer)) for peer in range(3)])
    assert output.tolist() == [3.0 * rank] * (rank + 1)


def test_all_gather_and_reduce_scatter_take_uneven_lists() -> None:
    run_ranks(gather_uneven, 3)


def reduce_everything(rank: int) -> None:
    size = dist.get_world_size()
    total = sum(range(1, size + 1))
    for dtype in (torch.int32, torch.int64, torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64):
        tensor = torch.full((5,), rank + 1, dtype=dtype)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [total] * 5, dtype
    tensor = torch.full((3,), float(rank))
    dist.reduce(tensor, 0, dist.ReduceOp.MAX)
    assert rank or tensor.tolist() == [size - 1.0] * 3
    output = torch.empty(2)
    dist.reduce_scatter_tensor(output, torch.arange(2.0 * size))
    assert output.tolist() == [2.0 * rank * size, (2.0 * rank + 1) * size]
    dist.reduce_scatter(output, [torch.full((2,), float(p)) for p in range(size)])
    assert output.tolist() == [float(rank * size)] * 2
    future = dist.reduce_scatter_tensor(output, torch.ones(2 * size), async_op=True).get_future()
    assert future.then(lambda done: done.value()[0] + 1).wait().tolist() == [size + 1.0] * 2
    tensors = [torch.ones(2), torch.full((3,), 2.0)]
    dist.all_reduce_coalesced(tensors)
    assert tensors[1].tolist() == [2.0 * size] * 3
    sparse = torch.sparse_coo_tensor([[rank]], [1.0], (size,))
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [1.0] * size


@pytest.mark.parametrize("size", SIZES)
def test_reductions_agree_with_arithmetic(size: int) -> None:
    run_ranks(reduce_everything, size)


def coalesce(rank: int) -> None:
    size = dist.get_world_size()
    lists = [[torch.empty(2), torch.empty(3)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [torch.full((2,), float(rank)), torch.full((3,), rank + 10.0)])
    assert [row[1][0].item() for row in lists] == [p + 10.0 for p in range(size)]
    peer = 1 - rank
    received = [torch.empty(2), torch.empty(2)]
    operations = [dist.P2POp(dist.irecv, received[i], peer, tag=i) for i in (1, 0)]
    operations += [dist.P2POp(dist.isend, torch.full((2,), rank * 10.0 + i), peer, tag=i) for i in (0, 1)]
    for request in dist.batch_isend_irecv(operations):
        request.wait()
    assert [r[0].item() for r in received] == [peer * 10.0, peer * 10.0 + 1]
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        outputs = [torch.empty(size * 2) for _ in range(3)]
        for i, output in enumerate(outputs):
            dist.all_gather_into_tensor(output, torch.full((2,), rank + i * 1.0))
    manager.wait()
    assert [o.tolist() for o in outputs] == [[i, i, i + 1.0, i + 1.0] for i in range(3)]


def test_coalesced_calls_and_batches_of_messages_complete_as_one() -> None:
    run_ranks(coalesce, 2)


def receive_from_any(rank: int) -> None:
    size = dist.get_world_size()
    if rank:
        dist.send(torch.tensor([rank]), 0, tag=3)
        return
    tensor = torch.zeros(1, dtype=torch.long)
    sources = []
    for _ in range(size - 1):
        sources.append(dist.recv(tensor, tag=3))
        assert tensor.item() == sources[-1]
    assert sorted(sources) == list(range(1, size))


def test_a_receive_from_any_source_says_who_sent() -> None:
    run_ranks(receive_from_any, 4)


def exchange_with_lag(rank: int, max_lag: int) -> list[list[float]]:
    """Exchanges on two channels, at most ``max_lag`` exchanges ahead of the slowest peer. Returns the results."""
    group = dist.new_group(
        backend="headway", pg_options=headway.Options(max_lag=max_lag, slot_bytes=256, num_channels=2)
    )
    pending, results = [], []
    for step in range(20):
        count = 1 + (step % 3) * 50  # Some blocks are larger than a slot, the receive buffer of a block.
        source = (torch.arange(count * 3.0) + 100 * rank + step).repeat_interleave(1)
        output = torch.empty(count * 3)
        work = headway.all_to_all_single(output, source, group=group, async_op=True, channel=step % 2)
        pending.append((work, output))
        if len(pending) > max_lag:
            work, output = pending.pop(0)
            work.wait()
            results.append(output.tolist())
    for work, output in pending:
        work.wait()
        results.append(output.tolist())
    statistics = headway.stats(group)
    assert statistics["operations"] == 20
    assert sum(statistics["lag_histogram"]) == 20
    return results


def test_results_do_not_depend_on_the_bound() -> None:
    expected = run_ranks(exchange_with_lag, 3, 0)
    for max_lag in (1, 2, 4):
        assert run_ranks(exchange_with_lag, 3, max_lag) == expected


def disagree(rank: int) -> str:
    try:
        dist.broadcast(torch.zeros(3 + rank), 0)
        dist.barrier()
    except dist.DistBackendError as error:
        return str(error)
    return "no error"


def test_a_disagreement_on_sizes_is_an_error_on_both_ranks() -> None:
    first, second = run_ranks(disagree, 2)
    assert "12" in first + second and "16" in first + second, (first, second)  # Bytes of 3 and of 4 floats.
    assert "no error" not in (first, second)


def disagree_on_type(rank: int, verb: str) -> str:
    tensor = torch.ones(2, dtype=torch.int16 if rank else torch.bfloat16)
    try:
        if verb == "broadcast":
            dist.broadcast(tensor, 0)
        else:
            dist.all_to_all_single(torch.empty_like(tensor), tensor)
        dist.barrier()
    except dist.DistBackendError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("verb", ["broadcast", "all_to_all"])
def test_a_disagreement_on_types_gives_their_names(verb: str) -> None:
    for message in run_ranks(disagree_on_type, 2, verb):
        assert "bfloat16" in message and "int16 " in message.replace("bfloat16", ""), message


def refuse(rank: int) -> None:
    with pytest.raises(RuntimeError, match="Split sizes"):
        dist.all_to_all_single(torch.empty(4), torch.empty(4), [1, 1], [3, 3])
    sparse = torch.sparse_coo_tensor([[0]], [1.0], (2,))
    with pytest.raises(NotImplementedError, match="dense tensors only"):
        headway.all_to_all_single(sparse, sparse)
    with pytest.raises(NotImplementedError, match="does not move tensors on meta"):
        headway.all_to_all_single(torch.empty(2, device="meta"), torch.empty(2, device="meta"))
    with pytest.raises(ValueError, match="channel"):
        headway.all_to_all_single(torch.empty(2), torch.empty(2), channel=1)
    dist.barrier()


def test_wrong_arguments_are_refused_and_leave_the_group_alone() -> None:
    run_ranks(refuse, 2)


def refuse_overflow(rank: int) -> None:
    splits = [2**63 - 1, 2**63 - 1, 6]  # They add up to 2^64 + 4.
    with pytest.raises(ValueError, match=r"split for rank 0 is 9223372036854775807, and only 4 of 4 rows are left"):
        dist.all_to_all_single(torch.empty(6), torch.empty(4), [2, 2, 2], splits)
    with pytest.raises(ValueError, match="split for rank 0"):
        dist.all_to_all_single(torch.empty(4), torch.empty(6), splits, [2, 2, 2])
    dist.barrier()


def test_splits_whose_sum_overflows_are_refused() -> None:
    run_ranks(refuse_overflow, 3)
