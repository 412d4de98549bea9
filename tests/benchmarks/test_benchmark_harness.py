# SPDX-License-Identifier: Apache-2.0
"""Statistics, files, tables and arguments of the benchmarks, without any run.

A point is a measured result: the timing of a system with some parameters. Systems are measured in turn, for some
rounds, so that ratios are taken between neighbours in time.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks.harness.arguments import flat, make_parser, size
from benchmarks.harness.bars import judge
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.pairing import combine_rounds, median_interval
from benchmarks.harness.points import Point, fields_of, parse_point, read_json_lines
from benchmarks.harness.torch_ranks import run_torch_ranks
from benchmarks.lag_cost import compare_turns
from benchmarks.torch_ranks.block_sizes import block_sizes
from dlrm_examples.support.provenance import write_json_lines
from dlrm_examples.support.text_table import format_bytes, format_table, format_time

# Fields of each line of a JSON file that a benchmark writes.
DESIGN_FIELDS = {
    "name", "params", "system", "median_s", "p5_s", "p95_s", "samples", "rate", "unit", "ratio", "commit", "machine",
}  # fmt: skip


def make_point(system: str, median_s: float, *, bytes_per_rank: int = 8, **extra: object) -> Point:
    return Point(
        name="all_to_all",
        params={"ranks": 8, "bytes_per_rank": bytes_per_rank, "lag": 0, "split": "even"},
        system=system,
        median_s=median_s,
        p5_s=median_s / 2,
        p95_s=median_s * 2,
        samples=10,
        rate=1.0,
        unit="GB/s per rank",
        extra=dict(extra),
    )


def test_ratio_is_taken_within_rounds_and_its_median_reported() -> None:
    # Both systems are ten times slower in the second round. The ratios must not change.
    rounds = [
        [make_point("headway", 1.0), make_point("openmpi", 3.0)],
        [make_point("openmpi", 20.0), make_point("headway", 10.0)],
        [make_point("headway", 2.0), make_point("openmpi", 8.0)],
    ]
    headway, openmpi = combine_rounds(rounds, reference="openmpi")
    assert headway.ratio == 3.0
    assert (headway.extra["ratio_low"], headway.extra["ratio_high"]) == (2.0, 4.0)
    assert headway.median_s == 2.0
    assert headway.samples == 30
    assert openmpi.ratio == 1.0


def test_a_point_without_its_reference_has_no_ratio() -> None:
    (point,) = combine_rounds([[make_point("headway", 1.0)]], reference="openmpi")
    assert point.ratio is None


def test_points_of_different_sizes_are_never_paired() -> None:
    rounds = [[make_point("headway", 1.0, bytes_per_rank=8), make_point("openmpi", 5.0, bytes_per_rank=16)]]
    assert all(point.ratio in (None, 1.0) for point in combine_rounds(rounds, reference="openmpi"))


def test_interval_covers_the_median_and_shrinks_to_it_for_equal_values() -> None:
    interval = median_interval([1.0, 2.0, 3.0, 4.0, 100.0])
    assert interval.low <= interval.median == 3.0 <= interval.high
    same = median_interval([2.0] * 5)
    assert (same.low, same.median, same.high) == (2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="no values"):
        median_interval([])


def test_lag_cost_compares_each_turn_with_the_same_turn_of_bound_0_on_the_same_buffers() -> None:
    # Groups with different bounds (max_lag) take turns in the same processes. turns_s has the time of each turn,
    # and sets is the number of buffer sets that the calls cycle through.
    def turn_point(lag: int, sets: int, turns_s: list[float]) -> Point:
        point = make_point("headway", 1.0, turns_s=turns_s)
        return Point(**{**vars(point), "params": point.params | {"lag": lag, "sets": sets}})

    one_set, base, lagging = compare_turns(
        [[turn_point(0, 1, [0.5, 5, 1]), turn_point(0, 3, [1, 10, 2]), turn_point(2, 3, [2, 20, 4])]]
    )
    assert one_set.extra["time_ratio"] == 0.5
    assert base.extra["time_ratio"] == 1.0
    assert lagging.extra["time_ratio_high"] == lagging.extra["time_ratio"] == 2.0
    assert lagging.ratio == 0.5


def test_written_lines_have_the_fields_of_the_design_and_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "points.jsonl"
    write_json_lines(path, [fields_of(make_point("headway", 1e-6, mean_s=2e-6))])
    (point,) = read_json_lines(path)
    assert point.median_s == 1e-6
    assert point.extra["mean_s"] == 2e-6
    import json

    assert json.loads(path.read_text()).keys() >= DESIGN_FIELDS


def test_a_line_that_is_no_point_is_refused() -> None:
    with pytest.raises(ValueError, match="not a point"):
        parse_point('{"name": "x"}')


@pytest.mark.parametrize(("text", "value"), [("8", 8), ("32K", 32768), ("2MiB", 2 << 20), ("1g", 1 << 30)])
def test_sizes_are_read_with_their_unit(text: str, value: int) -> None:
    assert size(text) == value


@pytest.mark.parametrize("text", ["", "K", "-1", "1.5K", "3X", "1KM"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        size(text)


def test_sizes_may_be_apart_by_commas_or_spaces() -> None:
    parser = make_parser("all_to_all", "text", ranks=(8,), sizes="1,2")
    assert flat(parser.parse_args([]).sizes) == [1, 2]
    assert flat(parser.parse_args(["--sizes", "8,4K", "8", "1M"]).sizes) == [8, 4096, 1 << 20]


def test_an_unknown_option_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        make_parser("all_to_all", "text", ranks=(8,)).parse_args(["--rank", "8", "--nonsense"])
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


# A bar is a ratio that the project wants to reach: `must` for a release, `aim` in the long run.
def test_bars_tell_missed_from_must_from_aim() -> None:
    def verdict(ratio: float) -> str:
        point = make_point("headway", 1.0)
        rows = judge([Point(**{**vars(point), "ratio": ratio})])
        return next(row[-1] for row in rows if row[0] == "all-to-all, 8 B to 512 B")

    assert [verdict(2.9), verdict(3.0), verdict(6.0)] == ["missed", "must", "aim"]


def test_a_bar_that_was_not_measured_says_so() -> None:
    assert {row[-1] for row in judge([])} == {"not measured"}


# Borders between blocks are multiples of `unit` bytes. skew1.5 and skew3: the link into rank 0 carries 1.5 or 3 times
# the mean over links.
def test_block_sizes_add_up_and_zipf_differs_between_sources() -> None:
    for split in ("even", "zipf", "skew1.5", "skew3"):
        for total in (0, 1, 8, 1003):
            for source in range(4):
                sizes = block_sizes(split, total, source=source, num_ranks=4)
                assert sum(sizes) == total
                assert min(sizes) >= 0
                assert sum(block_sizes(split, total, source=source, num_ranks=4, unit=1)) == total
    assert block_sizes("zipf", 10_000, source=0, num_ranks=8) != block_sizes("zipf", 10_000, source=1, num_ranks=8)
    with pytest.raises(ValueError, match="odd"):
        block_sizes("odd", 8, source=0, num_ranks=2)
    with pytest.raises(ValueError, match="2 ranks cannot"):
        block_sizes("skew3", 8, source=0, num_ranks=2)


def test_blocks_are_whole_rows_unless_odd_ones_are_asked_for() -> None:
    for split in ("even", "zipf", "skew1.5"):
        assert all(size % 16 == 0 for size in block_sizes(split, 128 << 20, source=1, num_ranks=3)[:2])
    assert any(size % 16 for size in block_sizes("zipf", 128 << 20, source=0, num_ranks=2, unit=1))


@pytest.mark.parametrize(("split", "skew"), [("even", 1.0), ("skew1.5", 1.5), ("skew3", 3.0)])
def test_the_busiest_link_carries_as_many_times_the_mean(split: str, skew: float) -> None:
    by_source = [block_sizes(split, 4 << 20, source=source, num_ranks=4) for source in range(4)]
    received = [sum(by_source[source][rank] for source in range(4) if source != rank) for rank in range(4)]
    assert max(received) / (sum(received) / 4) == pytest.approx(skew, rel=1e-3)


def test_numbers_are_written_as_people_read_them() -> None:
    assert [format_bytes(count) for count in (512, 32768, 128 << 20)] == ["512 B", "32 KiB", "128 MiB"]
    assert [format_time(seconds) for seconds in (3e-7, 2e-5, 0.046, None)] == ["300 ns", "20 us", "46 ms", "-"]
    assert format_table(("a", "b"), [("x", "1"), ("yy", "22")]) == "a    b\nx    1\nyy  22"


def test_a_rank_that_fails_is_named_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The other rank stays: Gloo fails on a rank that still connects when its peer ends.
    program = (
        "import time\n\ndef main(fields):\n    if fields['rank'] == 1:\n        raise ValueError('no memory')\n"
        "    time.sleep(600)\n"
    )
    (tmp_path / "failing_rank.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BenchmarkError, match=r"^rank 1 failed: ValueError: no memory \(at failing_rank.py:5\)$"):
        run_torch_ranks("failing_rank", {"timeout_s": 30}, num_ranks=2, time_limit_s=60)
