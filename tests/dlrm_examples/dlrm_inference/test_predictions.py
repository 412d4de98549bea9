# SPDX-License-Identifier: Apache-2.0
"""Predictions are bit-identical for every bound and backend, and equal those of one process.

k is the bound ``max_lag``: how many exchanges a rank may run ahead of the slowest peer. ``sync`` ends each
exchange in the step that starts it.
With ``pool_at_receiver`` the owner of a table sends all rows of a bag, and the receiver sums them.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from rank_processes import BACKENDS, make_group, run_ranks

from dlrm_examples.dlrm_inference.loop import InferenceRank
from dlrm_examples.dlrm_inference.model import Dlrm, DlrmConfig, EmbeddingShard
from dlrm_examples.dlrm_inference.placement import TablePlacement, place_tables
from dlrm_examples.dlrm_inference.reference import predict_in_one_process
from dlrm_examples.dlrm_inference.request_source import RandomRequests
from dlrm_examples.dlrm_inference.step_inputs import make_step_inputs

CONFIG = DlrmConfig(table_rows=(1000, 3, 50, 7000, 11, 400, 29), seed=5)
MINI_BATCH = 17
STEPS = 8
LAGS = (0, 1, 2, 3, 4)


def requests(num_ranks: int, max_lookups: int) -> RandomRequests:
    return RandomRequests(CONFIG, num_rows=num_ranks * MINI_BATCH, max_lookups=max_lookups, seed=2)


def predict_at_every_lag(rank: int, backend: str, max_lookups: int, pool_at_receiver: bool) -> dict[str, list[bytes]]:
    num_ranks = dist.get_world_size()
    placement = place_tables(CONFIG.table_rows, num_ranks=num_ranks)
    # `arrival_order` lists the tables in the order in which their rows arrive. The model reads them by table index.
    assert num_ranks == 1 or placement.arrival_order != sorted(placement.arrival_order), "a mix-up would be seen"
    shard = EmbeddingShard(CONFIG, placement.tables_of_rank[rank])
    source = requests(num_ranks, max_lookups)
    inputs = [
        make_step_inputs(source, shard, step, rank=rank, placement=placement, pool_at_receiver=pool_at_receiver)
        for step in range(STEPS)
    ]
    inference = InferenceRank(Dlrm(CONFIG), shard, placement, inputs)
    delays_s = np.random.default_rng(rank).uniform(0, 0.004, STEPS)
    runs = {"sync": inference.run_synchronous(make_group(backend, max_lag=0, slot_bytes=1 << 20), delays_s)}
    for max_lag in LAGS:
        group = make_group(backend, max_lag=max_lag, slot_bytes=1 << 20)
        runs[f"k={max_lag}"] = inference.run_bounded_lag(group, delays_s, max_lag=max_lag)
    return {name: [tensor.numpy().tobytes() for tensor in run.predictions] for name, run in runs.items()}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("num_ranks", "max_lookups", "pool_at_receiver"), [(3, 1, False), (3, 9, False), (2, 9, True), (1, 1, False)]
)
def test_predictions_do_not_depend_on_the_bound_nor_on_the_ranks(
    backend: str, num_ranks: int, max_lookups: int, pool_at_receiver: bool
) -> None:
    by_rank = run_ranks(predict_at_every_lag, num_ranks, backend, max_lookups, pool_at_receiver)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    expected = predict_in_one_process(
        CONFIG,
        requests(num_ranks, max_lookups),
        num_steps=STEPS,
        num_ranks=num_ranks,
        pool_at_receiver=pool_at_receiver,
    )
    torch.set_num_threads(threads)
    for rank, runs in enumerate(by_rank):
        wanted = [prediction.numpy().tobytes() for prediction in expected[rank]]
        assert len(set(wanted)) == STEPS, "the steps differ, so a mix-up would be seen"
        for name, predictions in runs.items():
            assert predictions == wanted, f"rank {rank}, {name}"


def test_ranks_may_be_more_than_tables() -> None:
    """A rank without tables sends no rows, receives those of the other ranks, and has an empty lookup."""
    config = DlrmConfig(table_rows=(5, 6))
    placement = TablePlacement(((0,), (1,), ()))
    shard = EmbeddingShard(config, ())
    source = RandomRequests(config, num_rows=6, max_lookups=1, seed=0)
    inputs = make_step_inputs(source, shard, 0, rank=2, placement=placement, pool_at_receiver=False)
    assert inputs.send_rows == [0, 0, 0]
    assert inputs.receive_rows == [2, 2, 0]
    assert shard.lookup(inputs.indices, inputs.bag_offsets).shape == (0, 16)
