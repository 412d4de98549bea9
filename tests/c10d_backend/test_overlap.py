# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs that share memory are rejected unless the shared part is this rank's own block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import headway
import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks

SIZE = 3
#: Elements per block: below and above the size from which a peer reads the sender's memory.
COUNTS = [4, 100_000]


def overlapping_calls(count: int, rank: int) -> dict[str, Callable[[], Any]]:
    """Calls whose outputs overlap something, keyed by the text of the error. A space at the end keeps keys distinct."""
    memory = torch.zeros(SIZE * count + count)
    whole, shifted = memory[: SIZE * count], memory[count:]
    parts = list(whole.chunk(SIZE))
    other, third = (rank + 1) % SIZE, (rank + 2) % SIZE
    fresh = [torch.zeros(count) for _ in range(SIZE)]
    expanded = torch.zeros(1).expand(count)
    matrix = torch.zeros(count, SIZE)
    columns = list(matrix.unbind(1))
    rotated = parts[1:] + parts[:1]
    return {
        "all_to_all_single: the input": lambda: dist.all_to_all_single(whole, whole),
        "all_to_all_single: the input ": lambda: dist.all_to_all_single(shifted, whole),
        "all_to_all: the input": lambda: dist.all_to_all(parts, parts),
        "all_to_all: the input ": lambda: dist.all_to_all(rotated, fresh[:1] + parts[1:]),
        "all_to_all: the outputs? from rank 0 and the output from rank 1": lambda: dist.all_to_all(
            [parts[0], parts[0], parts[2]], fresh
        ),
        f"all_gather: .*the output from rank {other}": lambda: dist.all_gather(parts, parts[other]),
        f"all_gather: .*the output from rank {other} ": lambda: dist.all_gather(
            [*fresh[:other], fresh[third], *fresh[other + 1 :]], torch.zeros(count)
        ),
        "all_gather_into_tensor: the input": lambda: dist.all_gather_into_tensor(whole, parts[other]),
        "all_gather_into_tensor: .*input": lambda: dist.all_gather_into_tensor(
            whole, memory[rank * count + 1 : (rank + 1) * count + 1]
        ),
        "all_gather: output . shares": lambda: dist.all_gather(
            [columns[0], columns[1], matrix[0].expand(1, SIZE)[:, 1].expand(1)[:1].as_strided((count,), (SIZE,), 1)],
            torch.zeros(count),
        ),
        "all_gather: output 1 has several": lambda: dist.all_gather([fresh[0], expanded, fresh[2]], fresh[1].clone()),
        "broadcast: output 0 has several": lambda: dist.broadcast(expanded, other),
        "recv: output 0 has several": lambda: dist.recv(expanded, other),
        "all_gather_coalesced: ": lambda: dist.all_gather_coalesced([[parts[0], parts[0]]] * SIZE, fresh[:2]),
    }


def refuse(rank: int, count: int) -> None:
    for message, call in overlapping_calls(count, rank).items():
        with pytest.raises(ValueError, match=message):
            call()
    if rank == 0:
        parts = list(torch.zeros(SIZE * count).chunk(SIZE))
        with pytest.raises(ValueError, match=r"scatter: .*the input for rank 1"):
            dist.scatter(parts[1], parts, 0)
        with pytest.raises(ValueError, match=r"gather: .*the output from rank 2"):
            dist.gather(parts[2], parts, 0)
        with pytest.raises(ValueError, match="gather: the output from rank 0 and the output from rank 1"):
            dist.gather(torch.zeros(count), [parts[0], parts[0], parts[2]], 0)
    dist.barrier()


@pytest.mark.parametrize("count", COUNTS)
def test_outputs_that_share_memory_with_anything_are_refused_and_leave_the_group_alone(count: int) -> None:
    run_ranks(refuse, SIZE, count)


def use_own_parts(rank: int, count: int) -> None:
    def filled() -> tuple[torch.Tensor, list[torch.Tensor]]:
        memory = torch.full((SIZE * count,), -1.0)
        parts = list(memory.chunk(SIZE))
        parts[rank].fill_(rank)
        return memory, parts

    expected = torch.arange(float(SIZE)).repeat_interleave(count)
    memory, parts = filled()
    dist.all_gather(parts, parts[rank])
    assert torch.equal(memory, expected)
    memory, parts = filled()
    dist.all_gather_into_tensor(memory, parts[rank])
    assert torch.equal(memory, expected)
    memory, parts = filled()
    dist.gather(parts[rank], parts if rank == 1 else None, 1)
    assert rank != 1 or torch.equal(memory, expected)
    memory, parts = expected.clone(), list(expected.clone().chunk(SIZE))
    output = parts[1] if rank == 1 else torch.empty(count)
    dist.scatter(output, parts if rank == 1 else None, 1)
    assert bool((output == rank).all())
    inputs = [torch.full((count,), 10.0 * rank + peer) for peer in range(SIZE)]
    outputs = [inputs[rank] if peer == rank else torch.empty(count) for peer in range(SIZE)]
    dist.all_to_all(outputs, inputs)
    assert [float(output[-1]) for output in outputs] == [10.0 * peer + rank for peer in range(SIZE)]
    alone = torch.arange(6.0)
    dist.all_to_all_single(
        alone, alone, [6 * (peer == rank) for peer in range(SIZE)], [6 * (peer == rank) for peer in range(SIZE)]
    )
    assert alone.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("count", COUNTS)
def test_the_own_part_of_an_output_may_be_the_input(count: int) -> None:
    run_ranks(use_own_parts, SIZE, count)


def use_apart_memory(rank: int) -> None:
    matrix = torch.full((4, SIZE + 1), -1.0)
    dist.all_gather(list(matrix[:, :SIZE].unbind(1)), torch.full((4,), float(rank)))
    assert matrix.tolist() == [[0.0, 1.0, 2.0, -1.0]] * 4, "columns of one matrix share nothing"
    memory = torch.arange(2.0 * SIZE)
    dist.all_to_all_single(memory[:SIZE], memory[SIZE:].clone())
    dist.all_to_all_single(memory[SIZE:], memory[:SIZE])
    backwards = [torch.empty(2) for _ in range(SIZE)][::-1]
    dist.all_gather(backwards, torch.full((2,), float(rank)))
    assert [float(each[1]) for each in backwards] == [0.0, 1.0, 2.0]
    same = torch.ones(2)
    # The same tensor may be the input for several ranks.
    dist.all_to_all([torch.empty(2) for _ in range(SIZE)], [same] * SIZE)
    dist.broadcast(torch.ones(1).expand(4) if rank == 0 else torch.empty(4), 0)  # The root's tensor is only read.
    skewed = torch.zeros(9).as_strided((2, 3), (3, 2))  # Its rows are interleaved and share no element.
    dist.broadcast(skewed, 0)
    interleaved = torch.zeros(2, 2).t()
    dist.all_gather([interleaved] + [torch.empty(2, 2) for _ in range(SIZE - 1)], interleaved)
    empty = torch.empty(0)
    dist.all_to_all_single(empty, empty)
    dist.all_gather([empty] * SIZE, empty)


def test_memory_that_is_apart_or_only_read_is_not_refused() -> None:
    run_ranks(use_apart_memory, SIZE)


def mix_types(rank: int) -> None:
    floats, integers = torch.ones(2), torch.ones(2, dtype=torch.int32)
    calls: list[Callable[[], Any]] = [
        lambda: dist.all_to_all([torch.empty(2), torch.empty(2)], [floats, integers]),
        lambda: dist.all_to_all([torch.empty(2), torch.empty_like(integers)], [floats, floats.clone()]),
        lambda: dist.all_gather([torch.empty(2), torch.empty_like(integers)], floats),
    ]
    for call in calls:
        with pytest.raises((TypeError, ValueError)):
            call()
    dist.barrier()


def test_lists_of_mixed_types_are_refused() -> None:
    run_ranks(mix_types, 2)


def exchange_alone(rank: int) -> None:
    tensor = torch.arange(3.0)
    headway.all_to_all_single(tensor, tensor)
    assert tensor.tolist() == [0.0, 1.0, 2.0]


def test_a_rank_alone_may_exchange_in_place() -> None:
    run_ranks(exchange_alone, 1)
