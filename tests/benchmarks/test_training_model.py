# SPDX-License-Identifier: Apache-2.0
"""The benchmarked training step gives the same result over every backend and with both schedules.

A ``serial`` step runs its parts one after the other. An ``overlapped`` step splits the batch into halves, and computes
on one while the rows of the other travel.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from rank_processes import make_group, run_ranks

from benchmarks.torch_ranks.training_model import Exchange, ModelSizes, Schedule, Trainer, make_batch

SIZES = ModelSizes(tables=4, rows_per_table=50, dim=8, batch=16, most_ids=3, widths=(12, 10))
STEPS = 6


def train(rank: int, backend: str, schedule: Schedule) -> tuple[list[float], np.ndarray, np.ndarray]:
    device = torch.device("cpu")
    of_rows, of_ids = (Exchange(make_group(backend, max_lag=0)) for _ in range(2))
    trainer = Trainer(SIZES, of_rows, of_ids, device)
    batches = [make_batch(SIZES, rank, step % 2, device) for step in range(STEPS + 1)]
    losses = [float(trainer.step(batches[step], batches[step + 1], schedule)) for step in range(STEPS)]
    return losses, trainer.rows.numpy(), trainer.weights[0].detach().numpy()


def test_all_ways_of_training_learn_the_same() -> None:
    expected = run_ranks(train, 2, "gloo", "serial")
    for backend, schedule in (("headway", "serial"), ("headway", "overlapped"), ("gloo", "overlapped")):
        for (losses, rows, weights), (wanted, wanted_rows, wanted_weights) in zip(
            run_ranks(train, 2, backend, schedule), expected, strict=True
        ):
            assert losses == pytest.approx(wanted, rel=1e-5)
            np.testing.assert_allclose(rows, wanted_rows, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(weights, wanted_weights, rtol=1e-5, atol=1e-6)
    for losses, _, _ in expected:
        assert losses[-1] < losses[1], "the second batch again: its loss has fallen"
    assert np.array_equal(expected[0][2], expected[1][2]), "the dense part is alike on all ranks"


def first_rows(rank: int) -> np.ndarray:
    exchange = Exchange(make_group("gloo", max_lag=0))
    rows: np.ndarray = Trainer(SIZES, exchange, exchange, torch.device("cpu")).rows.numpy()
    dist.barrier()  # A rank that leaves closes connections that another one may still be making.
    return rows


def test_it_learns_what_one_process_learns_with_autograd() -> None:
    together = run_ranks(train, 2, "headway", "overlapped")
    rows = torch.from_numpy(np.concatenate(run_ranks(first_rows, 2))).requires_grad_()
    shared = torch.Generator().manual_seed(0)
    widths = (SIZES.tables * SIZES.dim, *SIZES.widths, 1)
    weights = [
        (torch.randn(outputs, inputs, generator=shared) * inputs**-0.5).requires_grad_()
        for inputs, outputs in pairwise(widths)
    ]
    for step in range(STEPS):
        losses = []
        for rank in range(2):
            batch = make_batch(SIZES, rank, step % 2, torch.device("cpu"))
            table = torch.arange(SIZES.tables).repeat_interleave(batch.lengths.sum(dim=1)) * SIZES.rows_per_table
            lengths = batch.lengths.flatten()
            bags = F.embedding_bag(batch.ids + table, rows, lengths.cumsum(0) - lengths, mode="sum")
            hidden = bags.view(SIZES.tables, SIZES.batch, SIZES.dim).transpose(0, 1).flatten(1)
            for weight in weights[:-1]:
                hidden = torch.relu(F.linear(hidden, weight))
            logits = F.linear(hidden, weights[-1]).squeeze(1)
            losses.append(F.binary_cross_entropy_with_logits(logits, batch.labels))
        assert [float(loss.detach()) for loss in losses] == pytest.approx(
            [each[0][step] for each in together], rel=1e-4
        )
        sum(losses).backward()
        with torch.no_grad():
            # Learning rate 0.01. Rows take the sum of both ranks' gradients, weights their mean.
            rows.sub_(rows.grad, alpha=0.01)
            for weight in weights:
                weight.sub_(weight.grad, alpha=0.01 / 2)
            for parameter in (rows, *weights):
                parameter.grad = None
