# SPDX-License-Identifier: Apache-2.0
"""Requests of the served DLRM follow their laws, and results of the programs beside which serving is measured are read.

Servers and LoadGen themselves do not run here.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_processes import run_ranks

from benchmarks import serving_mlperf
from benchmarks.harness.dlrm_client import make_message, message_types, predict_eagerly
from benchmarks.harness.dlrm_requests import DLRM_V2_ROWS, IdLaw, RowLaw, draw_requests, row_law
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.served_dlrm import Trial
from benchmarks.serving_peers.kserve_dlrm import Batcher, ShardedTables, WholeTables
from benchmarks.serving_peers.kserve_ranks import kserve_versions
from benchmarks.serving_peers.loadgen_client import expect_loadgen, parse_summary
from dlrm_examples.dlrm_inference.model import Dlrm, DlrmConfig

CONFIG = DlrmConfig(table_rows=(40, 3, 17, 25, 8), bottom_hidden=(8,), top_hidden=(8,))
SUMMARY = """
Scenario : Server
Completed samples per second    : 95.34
Result is : INVALID
  Performance constraints satisfied : Yes
Scheduled samples per second : 95.46
Min latency (ns)                : 2165103
Mean latency (ns)               : 2530291
50.00 percentile latency (ns)   : 2325369
99.00 percentile latency (ns)   : 5030368
99.90 percentile latency (ns)   : 5047137
target_latency (ns): 60000000
"""


def test_dlrm_v2_has_100_to_700_rows_and_270_in_the_mean() -> None:
    law = row_law("dlrm-v2")
    assert law.sizes == DLRM_V2_ROWS and law.label == "dlrm-v2"
    assert (min(law.sizes), max(law.sizes), law.mean) == (100, 700, 270)
    drawn = law.draw(np.random.default_rng(0), 20_000)
    share = {size: count / 20_000 for size, count in Counter(drawn.tolist()).items()}
    assert share == pytest.approx({100: 0.1, 200: 0.6, 300: 0.1, 400: 0.05, 500: 0.05, 600: 0.05, 700: 0.05}, abs=0.01)


def test_sizes_of_requests_are_parsed_and_passed_on() -> None:
    assert row_law("64") == RowLaw((64,))
    assert row_law("64").label == 64
    assert row_law("100,200,200").argument == "100,200,200"
    for text in ("", "0", "100,", "dlrm", "1.5"):
        with pytest.raises(argparse.ArgumentTypeError, match="is not a number of rows"):
            row_law(text)


def test_ids_follow_the_power_law_of_the_load_generator() -> None:
    ids = IdLaw(1000, zipf=1.05).draw(np.random.default_rng(0), (100_000,))
    assert ids.min() == 0 and ids.max() == 999
    scale = 1001**-0.05 - 1  # The share below n is (n + 1)^-0.05 - 1, over the same of all ids.
    for limit in (1, 10, 100):
        assert (ids < limit).mean() == pytest.approx(((limit + 1) ** -0.05 - 1) / scale, abs=0.01)


def test_ids_are_those_of_their_table_if_its_rows_are_given() -> None:
    [request] = draw_requests(
        1, rows=RowLaw((500,)), ids=IdLaw(10_000), num_tables=2, num_dense=3, seed=0, table_rows=(7, 5)
    )
    assert request.ids_TN.shape == (2, 500) and request.dense_NF.shape == (500, 3)
    assert request.ids_TN.max(axis=1).tolist() == [6, 4]


def test_a_message_has_the_arrays_of_its_request() -> None:
    pytest.importorskip("tritonclient.grpc")
    [request] = draw_requests(1, rows=RowLaw((4,)), ids=IdLaw(100), num_tables=2, num_dense=3, seed=0)
    message = make_message(request, message_types())
    assert [(each.name, each.datatype, list(each.shape)) for each in message.inputs] == [
        ("table_0.ids", "INT64", [4]),
        ("table_1.ids", "INT64", [4]),
        ("dense", "FP32", [4, 3]),
    ]
    np.testing.assert_array_equal(np.frombuffer(message.raw_input_contents[1], dtype=np.int64), request.ids_TN[1])


def test_a_summary_of_loadgen_is_read_in_the_units_of_headway_load() -> None:
    found = parse_summary(SUMMARY)
    assert found == pytest.approx(
        {"answered_per_s": 95.34, "offered_per_s": 95.46, "mean_ms": 2.530291, "p50_ms": 2.325369,
         "p99_ms": 5.030368, "p999_ms": 5.047137, "is_valid": False}
    )  # fmt: skip
    assert parse_summary("Samples per second: 467.524\nResult is : VALID\n") == {
        "answered_per_s": 467.524,
        "is_valid": True,
    }


@pytest.mark.parametrize("text", ["", "Samples per second: 1", "Result is : VALID"])
def test_a_summary_without_a_rate_or_a_verdict_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="not a summary of LoadGen"):
        parse_summary(text)


def test_a_missing_package_is_named_with_its_installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("benchmarks.serving_peers.loadgen_client.find_spec", lambda name: None)
    with pytest.raises(BenchmarkError, match="pip install mlcommons-loadgen"):
        expect_loadgen()
    with pytest.raises(BenchmarkError, match="does not run"):
        kserve_versions(tmp_path / "python")
    python = tmp_path / "python_without_kserve"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    with pytest.raises(BenchmarkError, match=r"has no kserve with torch .*pip install kserve"):
        kserve_versions(python)


def test_a_trial_holds_if_enough_requests_are_answered_in_time() -> None:
    assert Trial(10, {"statuses": {"OK": 99, "UNAVAILABLE": 1}, "p99_ms": 60}).holds(60)
    assert not Trial(10, {"statuses": {"OK": 98, "UNAVAILABLE": 2}, "p99_ms": 60}).holds(60)
    assert not Trial(10, {"statuses": {"OK": 100}, "p99_ms": 60.1}).holds(60)
    assert not Trial(10, {"statuses": {}, "p99_ms": 0}).holds(60)


def client_result(p50_ms: float, **others: Any) -> dict[str, Any]:
    latencies = dict.fromkeys(("mean_ms", "p50_ms", "p90_ms", "p99_ms", "p999_ms"), p50_ms)
    statuses = {"OK": 9, "CANCELLED": 1}
    return {"answered_per_s": 50.0, "answered_rows_per_s": 9000.0, "statuses": statuses} | latencies | others


def loadgen_result(p50_ms: float, **others: Any) -> dict[str, Any]:
    return client_result(p50_ms, is_valid=True, limit_ms=60.0, version="6.0", **others)


def test_ratios_of_the_clients_are_taken_within_a_round() -> None:
    rounds = [
        {"headway load": client_result(own), "loadgen": loadgen_result(other)}
        for own, other in ((1.0, 1.1), (10.0, 10.0), (100.0, 90.0))
    ]
    own, loadgen = serving_mlperf.server_points({"scenario": "Server", "rate": 50.0}, rounds)
    assert own.extra["p50_ms"] == 10 and "p50_ratio" not in own.extra
    assert loadgen.extra["p50_ratio"] == 1 and loadgen.extra["valid_runs"] == 3 and loadgen.extra["not_answered"] == 3
    assert (loadgen.extra["p50_ratio_low"], loadgen.extra["p50_ratio_high"]) == pytest.approx((0.9, 1.1))
    assert loadgen.extra["version"] == "6.0"
    assert "1.00x (0.90 to 1.10)" in serving_mlperf.format_points([own, loadgen])


def test_offline_is_compared_with_the_closed_loop_of_its_round() -> None:
    rounds = [
        {"dlrm_inference": {"answered_rows_per_s": loop}, "loadgen": loadgen_result(1.0, answered_rows_per_s=served)}
        for loop, served in ((100.0, 90.0), (200.0, 200.0), (100.0, 80.0))
    ]
    loop, loadgen = serving_mlperf.offline_points({"scenario": "Offline"}, rounds)
    assert loop.ratio == 1 and loadgen.ratio == pytest.approx(0.9)
    assert loadgen.extra["ratio_low"] == pytest.approx(0.8)
    assert "0.90x (0.80 to 1.00)" in serving_mlperf.format_points([loop, loadgen])


def predictions_of(batcher: Batcher, seed: int, count: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Predictions of the server, with all requests at once, and of the model."""
    requests = draw_requests(
        count, rows=RowLaw((3, 5)), ids=IdLaw(45), num_tables=CONFIG.num_tables, num_dense=CONFIG.num_dense, seed=seed
    )

    async def run() -> list[np.ndarray]:
        running = asyncio.create_task(batcher.run())
        found = await asyncio.gather(*(batcher.predict(each.ids_TN, each.dense_NF) for each in requests))
        batcher.stop()
        await running
        return list(found)

    found = asyncio.run(asyncio.wait_for(run(), 60))
    return found, [predict_eagerly(each, CONFIG) for each in requests]


def test_the_python_server_batches_requests_and_answers_each_with_its_own_rows() -> None:
    batcher = Batcher(Dlrm(CONFIG), WholeTables(CONFIG), max_rows=16, batch_delay_s=0.001, is_sharded=False)
    for found, expected in zip(*predictions_of(batcher, seed=0, count=20), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_python_server_refuses_a_request_larger_than_a_batch() -> None:
    batcher = Batcher(Dlrm(CONFIG), WholeTables(CONFIG), max_rows=2, batch_delay_s=0, is_sharded=False)
    with pytest.raises(ValueError, match="the request has 3 rows, and the limit is 2"):
        asyncio.run(batcher.predict(np.zeros((5, 3), dtype=np.int64), np.zeros((3, 13), dtype=np.float32)))


def look_up_of_both(rank: int) -> bool:
    """Whether sharded tables find the rows of whole ones; rank 1 also asks once for nothing."""
    torch.set_num_threads(1)
    sharded, whole = ShardedTables(CONFIG, rank=rank, num_ranks=2), WholeTables(CONFIG)
    random = np.random.default_rng(rank)
    equal = []
    for num_rows in (6, 4 * (1 - rank), 3 + rank):
        ids_TN = torch.from_numpy(random.integers(0, 45, (CONFIG.num_tables, num_rows)))
        found, expected = sharded(ids_TN), whole(ids_TN) or []
        equal.append(found is not None and all(map(torch.equal, found, expected)) and len(found) == len(expected))
    nobody = sharded(torch.empty(CONFIG.num_tables, 0, dtype=torch.int64))
    return all(equal) and nobody is None


def test_sharded_tables_of_the_python_server_find_the_rows_of_whole_ones() -> None:
    assert run_ranks(look_up_of_both, 2) == [True, True]
