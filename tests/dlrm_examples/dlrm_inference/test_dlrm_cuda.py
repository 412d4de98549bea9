# SPDX-License-Identifier: Apache-2.0
"""DLRM on GPUs: the same predictions as on the CPU, and time stamps of the device.

k is the bound ``max_lag``: how many exchanges a rank may run ahead of the slowest peer. ``sync`` is synchronous DLRM.
With ``pool_at_receiver`` the owner of a table sends all rows of a bag, and the receiver sums them.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from cuda_ranks import NEEDS_GPU, num_gpus, run_on_gpus

from dlrm_examples.dlrm_inference import demo
from dlrm_examples.dlrm_inference.devices import Gpu
from dlrm_examples.dlrm_inference.loop import InferenceRank
from dlrm_examples.dlrm_inference.model import Dlrm, DlrmConfig, EmbeddingShard
from dlrm_examples.dlrm_inference.placement import place_tables
from dlrm_examples.dlrm_inference.reference import predict_in_one_process
from dlrm_examples.dlrm_inference.request_source import RandomRequests
from dlrm_examples.dlrm_inference.step_inputs import make_step_inputs
from dlrm_examples.dlrm_inference.systems import make_group

pytestmark = NEEDS_GPU

CONFIG = DlrmConfig(table_rows=(1000, 3, 50, 7000, 11, 400, 29), seed=5)
MINI_BATCH = 64
STEPS = 12


def requests(num_ranks: int) -> RandomRequests:
    return RandomRequests(CONFIG, num_rows=num_ranks * MINI_BATCH, max_lookups=9, seed=2)


def predict_at_every_lag(rank: int, pool_at_receiver: bool) -> dict[str, np.ndarray]:
    num_ranks = dist.get_world_size()
    placement = place_tables(CONFIG.table_rows, num_ranks=num_ranks)
    shard = EmbeddingShard(CONFIG, placement.tables_of_rank[rank])
    source = requests(num_ranks)
    inputs = [
        make_step_inputs(source, shard, step, rank=rank, placement=placement, pool_at_receiver=pool_at_receiver)
        for step in range(STEPS)
    ]
    device = Gpu(rank % torch.cuda.device_count())
    inference = InferenceRank(Dlrm(CONFIG), shard, placement, inputs, device)
    delays_s = np.random.default_rng(rank).uniform(0, 0.004, STEPS)
    runs = {"sync": inference.run_synchronous(make_group("headway", max_lag=0, slot_bytes=1 << 20), delays_s)}
    for max_lag in range(5):
        group = make_group("headway", max_lag=max_lag, slot_bytes=1 << 20)
        runs[f"k={max_lag}"] = inference.run_bounded_lag(group, delays_s, max_lag=max_lag)
    for name, run in runs.items():
        times = run.times
        assert times.elapsed_s >= delays_s.sum(), name
        order = (times.arrived, times.post_began, times.post_ended, times.wait_began, times.wait_ended, times.predicted)
        assert (np.diff(np.stack(order), axis=0) >= 0).all(), name
        assert (times.post_began - times.arrived >= 0.95 * delays_s).all(), f"{name}: a delay is the device's"
    return {name: torch.stack(run.predictions).cpu().numpy() for name, run in runs.items()}


@pytest.mark.parametrize("pool_at_receiver", [False, True])
def test_predictions_are_those_of_the_cpu_and_alike_for_every_bound(pool_at_receiver: bool) -> None:
    num_ranks = 2
    by_rank = run_on_gpus(predict_at_every_lag, num_ranks, pool_at_receiver)
    expected = predict_in_one_process(
        CONFIG, requests(num_ranks), num_steps=STEPS, num_ranks=num_ranks, pool_at_receiver=pool_at_receiver
    )
    for rank, runs in enumerate(by_rank):
        np.testing.assert_allclose(runs["sync"], torch.stack(expected[rank]).numpy(), rtol=1e-4, atol=1e-6)
        for name, predictions in runs.items():
            assert np.array_equal(predictions, runs["sync"]), f"rank {rank}, {name}"


@pytest.mark.skipif(num_gpus() < 2, reason="NCCL needs a GPU for each rank")
def test_the_demo_compares_with_nccl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--ranks", "2", "--steps", "6", "--runs", "2", "--mini-batch", "8", "--max-rows-per-table", "500"]
    paths = ["--out", str(tmp_path / "out"), "--store", str(tmp_path / "store")]
    assert demo.main(["--device", "cuda", "--lag", "0", "2", *sizes, *paths]) == 0, capsys.readouterr().err
    rows = [json.loads(line) for line in (tmp_path / "out/results.jsonl").read_text().splitlines()]
    assert {row["system"] for row in rows} == {"sync", "bls-nccl", "bls-headway"}
    assert all(row["predictions_identical"] and row["params"]["device"] == "cuda" for row in rows)
    assert all(row["library_bytes"] > 0 for row in rows if row["system"] == "bls-headway")
