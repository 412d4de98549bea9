# SPDX-License-Identifier: Apache-2.0
"""The closing line compares Headway with its rivals, and claims nothing on a busy host.

System ``sync`` is synchronous DLRM. ``bls-gloo`` and others are bounded-lag synchronous DLRM over that backend. k is
``max_lag``.
"""

from __future__ import annotations

from dlrm_examples.dlrm_inference.plan import Point
from dlrm_examples.dlrm_inference.reporting.headline import headline
from dlrm_examples.dlrm_inference.reporting.metrics import Estimate, estimate
from dlrm_examples.dlrm_inference.reporting.results import ResultRow
from dlrm_examples.support.host_load import HostLoad

QUIET = HostLoad(foreign=0.02, steal=0.01)
BUSY = HostLoad(foreign=0.35, steal=0.04)  # Fractions of the CPU time: other programs, and the hypervisor.
ANY = Estimate(1.0, 0.1)  # For figures that the line does not use.


def row(system: str, max_lag: int, *run_rates: float) -> ResultRow:
    """``run_rates`` is the throughput of each run, in mini-batches per second."""
    return ResultRow(
        workload=0,
        point=Point(system, max_lag),
        num_samples=len(run_rates),
        latency=ANY,
        latency_quantiles=(1.0, 1.0, 1.0),
        throughput=estimate(run_rates),
        run_rates=run_rates,
        speedup=None,
        request_latency=ANY,
        request_latency_p99=1.0,
        waiting=ANY,
        posting=ANY,
        replay_ratio=ANY,
        held_bytes=0,
        library_bytes=None,
        bytes_per_exchange=1.0,
        identical=True,
        stats={},
    )


SYNC = row("sync", 0, 100.0, 102.0, 98.0)
HEADWAY = [row("bls-headway", 0, 100.0, 100.0, 100.0), row("bls-headway", 2, 130.0, 132.0, 128.0)]


def test_headways_best_row_is_compared_with_the_synchronous_system_and_with_gloo_at_the_same_k() -> None:
    gloo = [row("bls-gloo", 2, 118.0, 120.5, 116.0), row("bls-gloo", 4, 148.0, 151.0, 145.0)]
    line = headline([SYNC, *gloo, *HEADWAY], QUIET)
    assert line.startswith("bls-headway with k = 2: 1.30 times the throughput of synchronous DLRM (95% interval 1.")
    assert "1.10 times the throughput of bls-gloo with k = 2 (95% interval 1." in line
    assert "k = 4" not in line
    assert "busy" not in line


def test_a_gloo_that_is_faster_or_as_fast_is_called_so() -> None:
    faster = headline([SYNC, row("bls-gloo", 2, 150.0, 152.0, 148.0), *HEADWAY], QUIET)
    assert "0.87 times the throughput of bls-gloo with k = 2" in faster
    assert faster.endswith(": Headway is slower.")
    level = headline([SYNC, row("bls-gloo", 2, 120.0, 140.0, 130.0), *HEADWAY], QUIET)
    assert level.endswith(": no clear difference.")


def test_a_busy_host_is_named_before_any_figure() -> None:
    line = headline([SYNC, row("bls-gloo", 2, 118.0, 120.5, 116.0), *HEADWAY], BUSY)
    assert line.startswith("This host was too busy to tell which system is faster: other programs used 35% ")
    assert "the hypervisor took 4%. Repeat this on a quiet host." in line
    assert "Measured nevertheless: bls-headway with k = 2: 1.30 times" in line


def test_without_a_known_load_the_figures_stand_alone() -> None:
    assert headline([SYNC, *HEADWAY], None) == headline([SYNC, *HEADWAY], QUIET)


def test_what_was_not_measured_is_not_compared() -> None:
    assert headline([SYNC, row("bls-gloo", 2, 1.0)], QUIET).startswith("bls-headway was not measured")
    assert headline([HEADWAY[1]], QUIET).startswith("Neither synchronous DLRM nor another system at the same k")
    single = headline([row("sync", 0, 2.0), row("bls-headway", 1, 3.0)], QUIET)
    assert single.endswith("1.50 times the throughput of synchronous DLRM in a single run, which has no interval.")
