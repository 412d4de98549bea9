# SPDX-License-Identifier: Apache-2.0
"""The model of weak scaling finds the times that made its points, and says which points it lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness.points import Point, fields_of
from benchmarks.harness.report import write_json_lines
from benchmarks.scaling_model import Links, Scaling, fit, largest_of, main, slowest_rank, steps_of
from benchmarks.sequence_balance import LengthLaw

HOST = Links(per_host=8, slowdown=9.0)


def point(ranks: int, median_s: float, commit: str = "a", system: str = "headway") -> Point:
    return Point(
        name="grm_training", params={"shape": "grm_4g", "ranks": ranks}, system=system, median_s=median_s,
        extra={"commit": commit},
    )  # fmt: skip


@pytest.mark.parametrize(("peer_s", "bytes_s"), [(0.0, 0.012), (0.001, 0.0), (0.001, 0.012), (0.0, 0.0)])
def test_a_fit_finds_the_times_that_made_the_points(peer_s: float, bytes_s: float) -> None:
    true = Scaling(alone_s=0.033, peer_s=peer_s, bytes_s=bytes_s, links=HOST)
    slowest = {1: 1.0, 2: 1.01, 4: 1.02, 16: 1.03}
    found = fit({ranks: true.step_s(ranks, w) for ranks, w in slowest.items()}, slowest, HOST)
    assert (found.peer_s, found.bytes_s) == pytest.approx((peer_s, bytes_s), abs=1e-9)


def test_one_time_beside_that_of_one_gpu_counts_as_bytes() -> None:
    found = fit({1: 0.033, 2: 0.0392}, {1: 1.0, 2: 1.0}, HOST)
    assert (found.peer_s, found.bytes_s) == (0, pytest.approx(0.0124))
    assert found.step_s(8, 1.0) == pytest.approx(0.033 + 0.0124 * 7 / 8)
    # 8 of the 15 peers are on another host.
    assert found.step_s(16, 1.0) == pytest.approx(0.033 + 0.0124 * (7 + 9 * 8) / 16)


def test_several_gpus_that_are_faster_than_one_have_nothing_exposed() -> None:
    found = fit({1: 0.033, 2: 0.032}, {1: 1.0, 2: 1.0}, HOST)
    assert (found.peer_s, found.bytes_s) == (0, 0)


def test_the_largest_of_normal_values_is_expected_as_in_tables() -> None:
    expected = {1: 0.0, 2: 0.5642, 10: 1.5388, 100: 2.5076}  # Harter, 1961.
    assert {count: largest_of(count) for count in expected} == pytest.approx(expected, abs=0.03)


def test_a_plan_evens_out_ranks_and_leaves_the_noise() -> None:
    law = LengthLaw.of("600", None)
    planned, drawn = (
        slowest_rank(8, law, samples=80, square=0.0003, balanced=balanced, noise=0.0) for balanced in (True, False)
    )
    assert 1 <= planned < 1.001 and drawn > 1.05
    noisy = slowest_rank(8, law, samples=80, square=0.0003, balanced=True, noise=0.01)
    assert noisy == pytest.approx(planned * (1 + 0.01 * largest_of(8)))


def test_times_are_those_of_the_last_commit_that_has_several_numbers_of_ranks() -> None:
    points = [point(1, 9.0), point(2, 9.5), point(1, 3.0, "b"), point(2, 4.0, "b"), point(1, 2.0, "c")]
    points.append(point(4, 1.0, "b", system="torchrec"))
    assert steps_of(points, "grm_4g") == {1: 3.0, 2: 4.0}


def test_the_command_prints_a_model_or_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.jsonl"
    write_json_lines(file, [fields_of(point(1, 0.033))])
    assert main([str(file), "--ranks", "1", "2"]) == 1
    assert "times on 1 GPU and on several are needed" in capsys.readouterr().err
    write_json_lines(file, [fields_of(point(1, 0.033)), fields_of(point(2, 0.039))])
    assert main([str(file), "--ranks", "1", "2", "16", "--samples", "8"]) == 0
    printed = capsys.readouterr().out
    assert "A model, fitted to [1, 2] GPUs" in printed
    assert [line.split()[0] for line in printed.splitlines()[2:]] == ["1", "2", "16"]
    assert printed.count("39 ms") == 2, "the model gives the time that was measured"
