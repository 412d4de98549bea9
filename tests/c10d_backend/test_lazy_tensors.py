# SPDX-License-Identifier: Apache-2.0
"""Lazily conjugated and negated tensors as outputs: their bits are honoured, and results reach their memory."""

from __future__ import annotations

import torch
import torch.distributed as dist
from rank_processes import run_ranks


def negated(values: list[float]) -> torch.Tensor:
    """A view with the negative bit that shows these values."""
    view = torch.zeros(len(values), dtype=torch.complex64).conj().imag
    assert view.is_neg()
    view.copy_(torch.tensor(values))
    return view


def conjugated(values: list[complex]) -> torch.Tensor:
    """A view with the conjugate bit that shows these values."""
    view = torch.zeros(len(values), dtype=torch.complex64).conj()
    assert view.is_conj()
    view.copy_(torch.tensor(values))
    return view


def fill_lazy_outputs(rank: int) -> None:
    peer = 1 - rank
    output = negated([7.0, 7.0])
    dist.all_gather_into_tensor(output, negated([rank + 1.0]))
    assert output.tolist() == [1.0, 2.0]
    dist.broadcast(output, 1)
    assert output.tolist() == [1.0, 2.0]
    dist.all_to_all_single(output, negated([10.0 * rank, 10.0 * rank + 1]))
    assert output.tolist() == [rank, 10.0 + rank]
    outputs = [negated([0.0]), torch.zeros(1)]
    dist.all_to_all(outputs, [negated([10.0 * rank]), torch.full((1,), 10.0 * rank + 1)])
    assert [float(each) for each in outputs] == [rank, 10.0 + rank]
    outputs = [negated([0.0]), torch.zeros(1)]
    dist.all_gather(outputs, negated([rank + 1.0]))
    assert [float(each) for each in outputs] == [1.0, 2.0]
    part = negated([0.0])
    dist.scatter(part, [torch.full((1,), 5.0), negated([6.0])] if rank == 0 else None, 0)
    assert float(part) == 5.0 + rank
    request = dist.isend(negated([rank + 1.0]), peer)
    dist.recv(part, peer)
    request.wait()
    assert float(part) == peer + 1.0


def test_results_of_movement_reach_lazy_outputs() -> None:
    run_ranks(fill_lazy_outputs, 2)


def reduce_into_lazy_outputs(rank: int) -> None:
    tensor = negated([rank + 1.0, -2.0])
    dist.all_reduce(tensor)
    assert tensor.tolist() == [3.0, -4.0]
    dist.reduce(conjugate := conjugated([complex(1, rank + 1)]), 1)
    assert conjugate.tolist() == [complex(2, 3) if rank == 1 else complex(1, rank + 1)]
    part = negated([0.0])
    dist.reduce_scatter_tensor(part, negated([1.0, 2.0]))
    assert float(part) == 2.0 * (rank + 1)


def test_results_of_reductions_reach_lazy_outputs() -> None:
    run_ranks(reduce_into_lazy_outputs, 2)


def use_another_backend(rank: int) -> None:
    group = dist.new_group(backend="gloo")
    output = torch.empty(2)
    dist.all_gather_into_tensor(output, negated([rank + 1.0]), group=group)
    assert output.tolist() == [1.0, 2.0]
    tensors = [torch.empty(1), torch.empty(1)]
    dist.all_gather(tensors, negated([rank + 1.0]), group=group)
    assert [float(each) for each in tensors] == [1.0, 2.0]


def test_other_backends_get_lazy_inputs_resolved() -> None:
    run_ranks(use_another_backend, 2)
