# SPDX-License-Identifier: Apache-2.0
"""Reductions of tensors that are not plain memory, and of types that Gloo does not support."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import headway
import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks

SIZE = 3
OPERATIONS = {
    "SUM": dist.ReduceOp.SUM,
    "PRODUCT": dist.ReduceOp.PRODUCT,
    "MIN": dist.ReduceOp.MIN,
    "MAX": dist.ReduceOp.MAX,
    "BAND": dist.ReduceOp.BAND,
    "BOR": dist.ReduceOp.BOR,
    "BXOR": dist.ReduceOp.BXOR,
    "AVG": dist.ReduceOp.AVG,
}
INTEGERS = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
]
#: Elements of each rank. Some are extreme, so that sums and products wrap around.
BITS = [
    [0, 1, -1, 30000, 1 << 15, 1 << 31, 1 << 62],
    [1, 1, -1, 30000, 1 << 15, 1 << 31, 1 << 62],
    [0, 3, 7, 5, -9, 11, 13],
]


def wrap(value: int, dtype: torch.dtype) -> int:
    """``value`` as an element of an integral type, modulo its width."""
    if dtype is torch.bool:
        return int(value != 0)
    bits = torch.iinfo(dtype).bits
    value %= 1 << bits
    return value - (1 << bits) if torch.iinfo(dtype).min < 0 and value >= 1 << (bits - 1) else value


def combine(name: str, values: list[int]) -> int:
    """Reduces with Python's integers, which have no width."""
    total = values[0]
    for value in values[1:]:
        total = {
            "SUM": total + value,
            "PRODUCT": total * value,
            "MIN": min(total, value),
            "MAX": max(total, value),
            "BAND": total & value,
            "BOR": total | value,
            "BXOR": total ^ value,
        }[name]
    return total


def reduce_integers(rank: int) -> None:
    for dtype in INTEGERS:
        per_rank = [[wrap(value, dtype) for value in row] for row in BITS]
        for name, operation in OPERATIONS.items():
            if name == "AVG":
                continue
            expected = [wrap(combine(name, list(column)), dtype) for column in zip(*per_rank, strict=True)]
            tensor = torch.tensor(per_rank[rank], dtype=dtype)
            dist.all_reduce(tensor, operation)
            assert tensor.dtype is dtype and tensor.tolist() == expected, (dtype, name)
            if dtype is torch.bool:
                assert int(tensor.view(torch.uint8).max()) <= 1, "a bool is 0 or 1 in memory"
            given = torch.tensor(per_rank[rank], dtype=dtype)
            dist.reduce(given, 1, operation)
            assert given.tolist() == (expected if rank == 1 else per_rank[rank]), (dtype, name)
            part = torch.empty(len(expected), dtype=dtype)
            dist.reduce_scatter_tensor(part, torch.tensor(per_rank[rank] * SIZE, dtype=dtype), operation)
            assert part.tolist() == expected, (dtype, name)


def test_integers_of_every_width_are_reduced_bit_by_bit() -> None:
    run_ranks(reduce_integers, SIZE)


def reduce_numbers(rank: int) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128):
        for operation, expected in ((dist.ReduceOp.SUM, 6), (dist.ReduceOp.AVG, 2)):
            tensor = torch.full((2,), rank + 1, dtype=dtype)
            dist.all_reduce(tensor, operation)
            assert tensor.tolist() == [expected] * 2, (dtype, operation)
            tensor = torch.full((2,), rank + 1, dtype=dtype)
            dist.reduce(tensor, 2, operation)
            assert tensor.tolist() == [expected if rank == 2 else rank + 1] * 2, (dtype, operation)


def test_floating_point_and_complex_numbers_are_added_and_averaged() -> None:
    run_ranks(reduce_numbers, SIZE)


def views(rank: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Views that are not plain memory, each with its base tensor. None overlaps itself."""
    matrix = torch.arange(24.0).reshape(4, 6) + 100 * rank
    image = (torch.arange(24.0).reshape(1, 2, 3, 4) + rank).contiguous(memory_format=torch.channels_last)
    numbers = torch.full((4,), complex(rank, rank + 1))
    integers = (torch.arange(12, dtype=torch.int16) + rank).reshape(3, 4)
    return {
        "column": (matrix[:, 1], matrix),
        "steps": (matrix[::2, 1:6:2], matrix),
        "transposed": (matrix.t(), matrix),
        "channels last": (image, image),
        "negated": (numbers.conj().imag, torch.view_as_real(numbers)),
        "column of int16": (integers[:, 2], integers),
    }


def reduce_views(rank: int) -> None:
    for name in views(rank):
        for call, root in ((lambda x: dist.all_reduce(x, async_op=True), rank), (lambda x: dist.reduce(x, 1), 1)):
            tensor, memory = views(rank)[name]
            before = memory.clone()
            expected = sum(views(peer)[name][0].clone() for peer in range(SIZE)) if rank == root else tensor.clone()
            work = call(tensor)
            if work is not None:
                work.wait()
                assert work.result()[0].data_ptr() == tensor.data_ptr()
                assert work.get_future().wait()[0].data_ptr() == tensor.data_ptr()
            assert torch.equal(tensor, expected), (name, tensor, expected)
            tensor.copy_(views(rank)[name][0])
            assert torch.equal(memory, before), f"{name}: something beside the view was written"


def test_views_are_reduced_as_contiguous_copies_would_be() -> None:
    run_ranks(reduce_views, SIZE)


def reduce_lists_of_views(rank: int) -> None:
    matrices = [torch.arange(6.0).reshape(3, 2) * (peer + 1) for peer in range(SIZE)]
    mine = matrices[rank].clone()
    dist.all_reduce_coalesced([mine[:, 0], mine[:, 1]])
    assert torch.equal(mine, sum(matrices)), mine
    conjugate = torch.full((2,), complex(1, rank)).conj()
    for output in (torch.empty(2, 2, dtype=torch.complex64)[:, 0], torch.zeros(2, dtype=torch.complex64).conj()):
        headway.backend_of().reduce_scatter([output], [[conjugate] * SIZE], dist.ReduceScatterOptions()).wait()
        assert output.tolist() == [complex(SIZE, -SIZE)] * 2, output
    wide = torch.arange(2.0 * SIZE).repeat_interleave(2).reshape(-1, 2)[:, 1]
    part = torch.full((2, 2), -1.0)
    dist.reduce_scatter_tensor(part[:, 0], wide)
    assert part.tolist() == [[2.0 * rank * SIZE, -1], [(2.0 * rank + 1) * SIZE, -1]]


def test_lists_and_parts_of_views_are_reduced_too() -> None:
    run_ranks(reduce_lists_of_views, SIZE)


def keep_inputs(rank: int) -> None:
    for count in (1, 1000, 300_000):
        tensor = torch.full((count,), rank + 1.0)
        address = tensor.data_ptr()
        dist.reduce(tensor, 0)
        assert tensor.data_ptr() == address
        assert bool((tensor == (6.0 if rank == 0 else rank + 1.0)).all()), (count, tensor)


def test_reduce_leaves_the_inputs_of_other_ranks_than_the_root_alone() -> None:
    run_ranks(keep_inputs, SIZE)


def refusals() -> dict[str, Callable[[], Any]]:
    """Calls with a type and an operation that do not go together."""
    float8 = torch.ones(2).to(torch.float8_e4m3fn)
    sparse = torch.sparse_coo_tensor([[0]], [1.0], (2,))
    return {
        "all_reduce .*float8_e4m3fn.* SUM": lambda: dist.all_reduce(float8),
        "all_reduce .*int64.* AVG": lambda: dist.all_reduce(torch.ones(2, dtype=torch.int64), dist.ReduceOp.AVG),
        "all_reduce .*int16.* AVG": lambda: dist.all_reduce(torch.ones(2, dtype=torch.int16), dist.ReduceOp.AVG),
        "all_reduce .*bool.* AVG": lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG),
        "reduce .*float32.* BAND": lambda: dist.reduce(torch.ones(2), 0, dist.ReduceOp.BAND),
        "reduce .*complex64.* MAX": lambda: dist.reduce(torch.ones(2, dtype=torch.complex64), 0, dist.ReduceOp.MAX),
        "all_reduce .*float32.* PREMUL_SUM": lambda: dist.all_reduce(torch.ones(2), dist._make_nccl_premul_sum(2.0)),
        "all_reduce .*float8_e4m3fn.* SUM: ": lambda: dist.all_reduce_coalesced([float8]),
        "reduce_scatter_tensor .*float8_e4m3fn.* SUM": lambda: dist.reduce_scatter_tensor(float8[:1], float8),
        "sparse_all_reduce .*float16.* SUM": lambda: dist.all_reduce(sparse.half()),
        "sparse_all_reduce .*float32.* MAX": lambda: dist.all_reduce(sparse, dist.ReduceOp.MAX),
        "all_reduce .*float32 and of int32": lambda: headway.backend_of().allreduce_coalesced(
            [torch.ones(2), torch.ones(2, dtype=torch.int32)], dist.AllreduceCoalescedOptions()
        ),
        "reduce: .*root rank": lambda: headway.backend_of().reduce([torch.ones(2)], reduce_options(root=7)),
    }


def reduce_options(root: int) -> dist.ReduceOptions:
    options = dist.ReduceOptions()
    options.rootRank = root
    return options


def refuse(rank: int, is_first: bool) -> None:
    if not is_first:
        dist.all_reduce(torch.ones(1))
    for message, call in refusals().items():
        with pytest.raises(ValueError, match=message) as caught:
            work = call()
            if work is not None:
                work.wait()
        assert str(caught.value).count("headway:") == 1
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0, 2.0]
    dist.barrier()


@pytest.mark.parametrize("is_first", [True, False])
def test_a_type_that_cannot_be_reduced_is_refused_and_the_group_goes_on(is_first: bool) -> None:
    run_ranks(refuse, 2, is_first)


def refuse_overlap(rank: int) -> None:
    memory = torch.zeros(8)
    expanded = torch.zeros(1).expand(4)
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce: output 0 has several": lambda: dist.all_reduce(expanded),
        "all_reduce: output 1 shares": lambda: dist.all_reduce_coalesced([memory[:6], memory[2:]]),
        "reduce_scatter_tensor: output 0 has several": lambda: dist.reduce_scatter_tensor(expanded, memory),
        "reduce_scatter: output 0 has several": lambda: dist.reduce_scatter(expanded, [memory[:4], memory[4:]]),
    }
    for message, call in calls.items():
        with pytest.raises(ValueError, match=message):
            call()
    memory = torch.arange(4.0)
    dist.reduce_scatter_tensor(memory[1:3], memory)  # The reduction works on a copy.
    assert memory.tolist() == [0.0, 4.0 * rank, 4.0 * rank + 2, 3.0]
    given = torch.ones(1).expand(4)
    dist.reduce(given if rank else torch.ones(4), 0)  # An expanded tensor can be read.
    assert given.tolist() == [1.0] * 4


def test_reductions_refuse_outputs_that_share_memory() -> None:
    run_ranks(refuse_overlap, 2)
