# SPDX-License-Identifier: Apache-2.0
"""Real runs of the benchmarks, small and short: their points (measured results), tables, plots and errors."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from headway.cli.built_programs import program_path
from other_processes import wait_until_ended

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.points import Point
from benchmarks.harness.process_tree import run_process_tree
from benchmarks.harness.programs import HEADWAY, OPENMPI, Launch, Programs
from benchmarks.hybrid import compare_with_first

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "benchmarks" / "all_to_all"

pytestmark = pytest.mark.skipif(
    not (FOLDER / "bench_all_to_all_headway").is_file(), reason="the C++ benchmarks are not built"
)


def run_benchmark(name: str, tmp_path: Path, *arguments: str, plots: bool = True) -> list[dict[str, Any]]:
    """Runs a benchmark and returns the points that it wrote. The run must succeed, and plot where ``plots``."""
    json_path = tmp_path / "points.jsonl"
    options = [*arguments, "--json", str(json_path), "--out", str(tmp_path)]
    assert importlib.import_module(f"benchmarks.{name}").main(options) == 0
    assert not plots or (tmp_path / f"{name}.png").stat().st_size > 0
    return [json.loads(line) for line in json_path.read_text().splitlines()]


def systems() -> list[str]:
    return [HEADWAY, OPENMPI] if Programs(None).has(OPENMPI) else [HEADWAY]


def test_all_to_all_measures_every_size_of_every_system(tmp_path: Path) -> None:
    points = run_benchmark("all_to_all", tmp_path, "--ranks", "2", "--sizes", "1,4K,256K", "--rounds", "2",
                           "--repetitions", "5", "--split", "zipf")  # fmt: skip
    measured = {(point["system"], point["params"]["bytes_per_rank"]) for point in points}
    # All ranks copy the largest size with a plain memcpy: the limit of an exchange in shared memory.
    assert measured == {(name, size) for name in systems() for size in (1, 4096, 262144)} | {("memcpy", 262144)}
    for point in points:
        assert 0 < point["p5_s"] <= point["median_s"] <= point["p95_s"]
        if point["system"] == HEADWAY:
            assert (point["ratio"] is not None) == (OPENMPI in systems())


def test_all_to_all_runs_without_mpirun_and_with_calls_in_flight(tmp_path: Path) -> None:
    points = run_benchmark("all_to_all", tmp_path, "--ranks", "3", "--sizes", "8,8K", "--rounds", "1", "--repetitions",
                           "50", "--split", "even", "incast", "--fork", "--against", "none", "--lag", "2")  # fmt: skip
    assert {(point["params"]["split"], point["params"]["lag"]) for point in points} == {("even", 2), ("incast", 2)}


def test_sequence_measures_each_count(tmp_path: Path) -> None:
    points = run_benchmark("sequence", tmp_path, "--ranks", "2", "--counts", "1", "20", "--rounds", "1",
                           "--repetitions", "2")  # fmt: skip
    counts = {(point["system"], point["params"]["calls"]) for point in points}
    assert counts == {(name, count) for name in systems() for count in (1, 20)}


def test_lag_cost_gives_an_interval_for_each_bound(tmp_path: Path) -> None:
    points = run_benchmark("lag_cost", tmp_path, "--ranks", "2", "--sizes", "512", "--lags", "1", "3", "--rounds", "1",
                           "--repetitions", "5")  # fmt: skip
    # All bounds cycle through 4 sets of buffers, one more than the largest bound. Bound 0 also runs on a single set.
    assert [(point["params"]["lag"], point["params"]["sets"]) for point in points] == [(0, 1), (0, 4), (1, 4), (3, 4)]
    assert all(point["time_ratio_low"] <= point["time_ratio"] <= point["time_ratio_high"] for point in points)


def test_group_memory_grows_with_the_bound(tmp_path: Path) -> None:
    points = run_benchmark("group_memory", tmp_path, "--ranks", "2", "--slot-bytes", "64K", "--lag", "0", "4")
    small, large = points
    assert 0 < small["reserved_bytes"] < large["reserved_bytes"]


def test_oversubscribed_measures_calls_and_idle_ranks(tmp_path: Path) -> None:
    points = run_benchmark("oversubscribed", tmp_path, "--ranks", "3", "--num-cores", "1", "--sizes", "8", "--rounds",
                           "1", "--repetitions", "5", "--idle", "0.2")  # fmt: skip
    names = [point["name"] for point in points if point["system"] == HEADWAY]
    assert names == ["oversubscribed", "idle", "idle"]
    assert all(point["params"]["cores"] == 1 for point in points)


def test_torch_all_to_all_compares_with_gloo(tmp_path: Path) -> None:
    if subprocess.run([sys.executable, "-c", "import headway"], capture_output=True, timeout=120).returncode != 0:
        pytest.skip("headway cannot be imported")
    points = run_benchmark("torch_all_to_all", tmp_path, "--ranks", "2", "--sizes", "8,1000", "--rounds", "1",
                           "--repetitions", "5", "--split", "even", "zipf", "skew1.5",
                           "--unit", "4")  # fmt: skip
    measured = {(p["system"], p["params"]["split"], p["params"]["bytes_per_rank"]) for p in points}
    assert measured == {
        (s, split, size) for s in ("headway", "gloo") for split in ("even", "zipf", "skew1.5") for size in (8, 1000)
    }
    assert {point["params"]["unit"] for point in points} == {4}


def test_futures_compares_with_gloo_and_torch_alone(tmp_path: Path) -> None:
    if subprocess.run([sys.executable, "-c", "import headway"], capture_output=True, timeout=120).returncode != 0:
        pytest.skip("headway cannot be imported")
    points = run_benchmark("futures", tmp_path, "--ranks", "2", "--rounds", "1", "--repetitions", "20")
    assert {point["system"] for point in points} == {"headway", "gloo", "torch"}
    assert all(0 < point["median_s"] <= point["p99_s"] <= point["longest_s"] for point in points)


def test_operator_calls_times_each_pass(tmp_path: Path) -> None:
    points = run_benchmark("operator_calls", tmp_path, "--rounds", "1", "--calls", "2", plots=False)
    operators = {point["params"]["operator"] for point in points}
    assert {"silu", "hstu_attention", "gated_norm", "silu_split", "jagged_reduce", "table_lookup"} <= operators
    assert len(points) == 3 * len(operators)
    assert all(point["median_s"] > 0 for point in points)


def test_parquet_reader_is_compared_with_pyarrow(tmp_path: Path) -> None:
    sizes = ("--samples", "64", "--batch", "16", "--ids", "1000")
    points = run_benchmark("parquet_reader", tmp_path, "--rounds", "2", *sizes, plots=False)
    assert [point["system"] for point in points] == ["headway", "pyarrow"]
    assert all(point["rate"] > 0 for point in points)


def test_sequence_balance_plans_and_replays(tmp_path: Path) -> None:
    options = ("--samples", "4", "--longest", "64", "--replayed-tokens", "256", "--rounds", "1", "--replay")
    points = run_benchmark("sequence_balance", tmp_path, "--ranks", "2", "8", *options, plots=False)
    assert len(points) == 2 * 5 and points[0]["system"] == "unbalanced" and points[0]["plan_s"] is None
    for point in points:
        assert 0 <= point["planned_idle"] < 1 and 0 <= point["replayed_idle"] < 1 and point["median_s"] > 0
        if point["system"].startswith("fixed"):
            assert point["idle_samples"] == 0
            unbalanced = points[0 if point["params"]["ranks"] == 2 else 5]
            assert point["planned_idle"] <= unbalanced["planned_idle"] and point["ratio"] > 0


@pytest.mark.skipif(not program_path("headway_serve").exists(), reason="headway_serve is not built")
def test_serving_finds_the_highest_rate_of_each_system(tmp_path: Path) -> None:
    small = ("--divide-rows", "100000", "--rows", "4", "--max-rows", "16", "--seconds", "1", "--rounds", "1")
    options = ("--ranks", "2", "--systems", "ring 1", "pairwise", "--settings", "balanced", "--details", *small)
    ring, pairwise = run_benchmark("serving", tmp_path, *options, plots=False)
    assert (ring["system"], pairwise["system"]) == ("ring 1", "pairwise")
    assert ring["ratio"] == 1 and pairwise["ratio"] > 0
    for point in (ring, pairwise):
        assert point["rate"] > 0 and 0 < point["p50_ms"] <= point["p99_ms"] <= 60
        assert 0 < point["low_load_p50_ms"] <= point["low_load_p99_ms"] and point["low_load_p99_ratio"] > 0
        parts = sum(point[f"{stage}_p50_us"] for stage in ("queue", "fetch", "dense", "engine"))
        assert parts > 0 and 0 < point["engine_p50_us"] <= point["engine_p99_us"] < point["total_p99_us"]


def test_prioritized_updates_compares_both_schedules(tmp_path: Path) -> None:
    small = ("--batch", "256", "--dim", "8", "--ids", "500", "--hidden", "16", "--layers", "1", "--warm-up", "1")
    options = ("--device", "cpu", "--backend", "headway", "--ranks", "2", "--rounds", "3", *small)
    plain, prioritized = run_benchmark("prioritized_updates", tmp_path, *options, plots=False)
    assert (plain["system"], prioritized["system"]) == ("headway_plain", "headway_prioritized")
    assert plain["collision_share"] is None and 0 < prioritized["collision_share"] < 1
    # The mean of what a rank waits is below its longest step. It may be above the median on a busy machine.
    assert all(0 < point["exposed_s"] < point["p95_s"] for point in (plain, prioritized))


def test_grm_training_compares_systems_on_one_rank_and_two(tmp_path: Path) -> None:
    pytest.importorskip("torchrec")
    small = ("--batch", "2", "--mean", "20", "--longest", "40", "--ids", "500", "--slots", "4096", "--balance", "none")
    options = ("--device", "cpu", "--shapes", "grm_4g", "--ranks", "1", "2", "--steps", "1", "--rounds", "1", *small)
    points = run_benchmark("grm_training", tmp_path, *options, "--torchrec", plots=False)
    assert [(point["params"]["ranks"], point["system"]) for point in points] == [
        (1, "headway"), (1, "torchrec"), (2, "headway"), (2, "torchrec")
    ]  # fmt: skip
    assert all(point["rate"] > 0 for point in points)
    assert all(point["ratio"] > 0 for point in points if point["system"] == "headway")
    assert points[2]["params"]["prioritized"] and points[2]["collision_share"] is not None


def test_grm_training_needs_a_gpu_for_each_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.grm_training import main

    assert main(["--device", "cuda", "--ranks", "1", "999"]) == 1
    assert "999 ranks need a GPU each" in capsys.readouterr().err


def test_parameter_server_measures_each_system(tmp_path: Path) -> None:
    small = ("--rows", "5000", "--keys", "100", "--dim", "8", "--rounds", "1", "--milliseconds", "20")
    redis = ["redis"] if shutil.which("redis-server") else []
    points = run_benchmark("parameter_server", tmp_path, *small, *["--redis"] * len(redis), plots=False)
    systems = ["table", "stripes", "in_process", "thread", "shm", "tcp"]
    measured = [(point["system"], point["params"]["operation"], point["params"]["updates"]) for point in points]
    assert measured == [
        *((system, "lookup", 0) for system in [*systems, "raw_tcp", *redis]),
        *((system, "lookup", 200) for system in [*systems, *redis]),
        *((system, "update", 0) for system in [*systems, *redis]),
    ]
    assert all(point["rate"] > 0 for point in points)
    without_limit = [("table", "lookup"), ("raw_tcp", "lookup"), ("table", "update"), ("tcp", "update")]
    for point in points:
        assert (point["ratio"] is None) == ((point["system"], point["params"]["operation"]) in without_limit)
    assert all(point["update_rate"] > 0 for point in points if point["params"]["updates"])


def test_compression_measures_each_kind_both_ways(tmp_path: Path) -> None:
    points = run_benchmark("compression", tmp_path, "--samples", "200", "--rows", "100", "--rounds", "1", plots=False)
    kinds = ("ids", "hashed_ids", "values")
    assert [(point["params"]["kind"], point["system"]) for point in points] == [
        (kind, system) for kind in kinds for system in ("encode", "decode")
    ]
    assert all(point["rate"] > 0 and point["compressed"] > 1.5 for point in points)


def test_exchange_arguments_packs_and_unpacks_for_each_number_of_ranks(tmp_path: Path) -> None:
    points = run_benchmark("exchange_arguments", tmp_path, "--ranks", "2", "50", "--rounds", "1", plots=False)
    measured = [(point["params"]["ranks"], point["params"]["call"]) for point in points]
    assert measured == [(ranks, call) for ranks in (2, 50) for call in ("pack", "unpack")]
    assert all(
        point["ns_per_rank"] * point["params"]["ranks"] == pytest.approx(point["median_s"] * 1e9) for point in points
    )


def test_adaptive_lag_measures_every_bound_and_auto(tmp_path: Path) -> None:
    if subprocess.run([sys.executable, "-c", "import headway"], capture_output=True, timeout=120).returncode != 0:
        pytest.skip("headway cannot be imported")
    points = run_benchmark("adaptive_lag", tmp_path, "--ranks", "2", "--limit", "1", "--rounds", "1", "--steps", "20",
                           "--patterns", "bursts", "balanced")  # fmt: skip
    measured = [(p["params"]["pattern"], p["params"]["lag"]) for p in points]
    assert measured == [(pattern, lag) for pattern in ("bursts", "balanced") for lag in (0, 1, "auto")]
    assert all(0 <= point["mean_lag"] <= 1 for point in points)


def test_missing_programs_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.all_to_all import main

    assert main(["--programs", str(tmp_path)]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_failing_rank_is_named() -> None:
    with pytest.raises(BenchmarkError, match=r"--slot-bytes 1: a number from 64"):
        Programs(None, use_mpirun=False).run(HEADWAY, ["--slot-bytes", "1"], Launch(ranks=2), timeout_s=30)


def test_a_run_that_takes_too_long_is_ended_with_its_processes(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    command = ["sh", "-c", f"sleep 600 & echo $! > {pid_file}; wait"]
    with pytest.raises(BenchmarkError, match="took longer than 1 s"):
        run_process_tree(command, timeout_s=1, environment={"PATH": "/usr/bin:/bin"})
    wait_until_ended([int(pid_file.read_text())])


def test_hybrid_compares_synchronous_and_hybrid_steps(tmp_path: Path) -> None:
    small = ("--batch", "32", "--features", "2", "--dim", "8", "--ids", "1000", "--steps", "4", "--rounds", "1")
    points = run_benchmark("hybrid", tmp_path, *small, "--hidden", "16", "8", "--staleness", "2", plots=False)
    assert [(point["system"], point["params"]["workers"]) for point in points] == [
        ("dense_alone", 1), ("sync", 1), ("hybrid_2", 1), ("async_2", 1)
    ]  # fmt: skip
    assert all(point["rate"] > 0 for point in points)
    assert points[2]["ratio"] > 0 and points[2]["bound_s"] > 0 and points[2]["of_async"] > 0


def test_rates_of_more_workers_are_compared_with_those_of_the_first_number() -> None:
    rates = {1: (100.0, 10.0), 2: (150.0, 19.0), 4: (400.0, 32.0)}
    points = [
        Point(name="hybrid", params={"workers": workers}, system=system, rate=rate)
        for workers, of_systems in rates.items()
        for system, rate in zip(("sync", "hybrid_4"), of_systems, strict=True)
    ]
    compare_with_first(points, num_systems=2)
    assert [point.extra.get("of_first") for point in points] == [None, None, 1.5, 1.9, 4.0, 3.2]


def test_hybrid_takes_turns_with_torchrec(tmp_path: Path) -> None:
    pytest.importorskip("torchrec")
    small = ("--batch", "32", "--features", "2", "--dim", "8", "--ids", "1000", "--steps", "4", "--rounds", "1")
    points = run_benchmark("hybrid", tmp_path, *small, "--ranks", "2", "--torchrec", "--turns", "2", plots=False)
    assert [point["system"] for point in points] == [
        "dense_alone", "sync", "hybrid_4", "torchrec_row_wise", "torchrec_table_wise"
    ]  # fmt: skip
    assert all(point["samples"] == 2 and point["params"]["servers"] == 2 for point in points)
    assert points[2]["over"].keys() == {"torchrec_row_wise", "torchrec_table_wise"}
    assert all(ratio > 0 for ratio in points[2]["over"].values())
