# SPDX-License-Identifier: Apache-2.0
"""Waits reported by the ranks become one table: waiting rank, awaited peer, and lag."""

from __future__ import annotations

import pytest

from dlrm_examples.dlrm_inference.plan import Point
from dlrm_examples.dlrm_inference.reporting.metrics import Estimate
from dlrm_examples.dlrm_inference.reporting.plots import plot_waits
from dlrm_examples.dlrm_inference.reporting.results import ResultRow, bytes_per_lag
from dlrm_examples.dlrm_inference.reporting.wait_report import collect_waits, wait_cells
from dlrm_examples.support.text_table import format_table

SOME = Estimate(1.0, 0.1)


def row(system: str, max_lag: int, *, held: int = 0, stats: object = None) -> ResultRow:
    return ResultRow(
        workload=0,
        point=Point(system, max_lag),
        num_samples=4,
        latency=SOME,
        latency_quantiles=(1.0, 1.0, 1.0),
        throughput=SOME,
        run_rates=(1.0,),
        speedup=SOME,
        request_latency=SOME,
        request_latency_p99=1.0,
        waiting=SOME,
        posting=SOME,
        replay_ratio=SOME,
        held_bytes=held,
        library_bytes=None,
        bytes_per_exchange=1.0,
        identical=True,
        stats=stats or {},  # type: ignore[arg-type]
    )


def stats_of(peers: dict[int, float], histogram: list[int], seconds: list[float], lost: int = 0) -> dict[str, object]:
    return {
        "peers": {peer: {"wait_s": wait_s} for peer, wait_s in peers.items()},
        "lag_histogram": histogram,
        "wait_s_by_lag": seconds,
        "lag_lost": lost,
    }


def test_waits_are_shown_by_peer_and_by_lag() -> None:
    short = row("bls-headway", 0, stats={0: stats_of({1: 0.5}, [9], [0.5]), 1: stats_of({0: 0.25}, [9], [0.25])})
    long = row(
        "bls-headway",
        1,
        stats={0: stats_of({1: 0.1}, [1, 8], [0.1, 0.0], lost=2), 1: stats_of({0: 0.0}, [9], [])},
    )

    waits = collect_waits([row("sync", 0), short, long])
    headings, cells = wait_cells(waits)

    assert headings == ("rank", "k", "for rank 0", "for rank 1", "at lag 0", "at lag 1")
    # Milliseconds waited for each peer; exchanges / milliseconds waited at each lag.
    assert cells == [
        ("0", "0", "-", "500.0", "9 / 500.0", ""),
        ("1", "0", "250.0", "-", "9 / 250.0", ""),
        ("0", "1", "-", "100.0", "1 / 100.0", "8 / 0.0"),
        ("1", "1", "0.0", "-", "9 / 0.0", "0 / 0.0"),
    ]
    assert [entry.lag_lost for entry in waits] == [0, 2]
    assert plot_waits(waits).startswith(b"\x89PNG")


def test_without_statistics_there_is_nothing_to_show() -> None:
    assert collect_waits([row("sync", 0), row("bls-gloo", 2)]) == []


def test_memory_per_bound_is_the_slope_over_the_bound() -> None:
    rows = [row("bls-gloo", lag, held=100 + 40 * lag) for lag in (0, 1, 3)]
    assert bytes_per_lag([row("sync", 0), *rows], lambda entry: entry.held_bytes) == {"bls-gloo": pytest.approx(40.0)}
    assert bytes_per_lag(rows, lambda entry: entry.library_bytes) == {}


def test_columns_of_the_table_are_aligned() -> None:
    assert format_table(("system", "k"), [("sync", "0"), ("bls-gloo", "10")]) == (
        "system     k\nsync       0\nbls-gloo  10"
    )
