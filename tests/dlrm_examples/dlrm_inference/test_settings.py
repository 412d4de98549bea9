# SPDX-License-Identifier: Apache-2.0
"""Settings, the delays and requests under which systems are compared, are drawn as the comparison demands."""

from __future__ import annotations

import numpy as np
import pytest

from dlrm_examples.dlrm_inference.model import DlrmConfig
from dlrm_examples.dlrm_inference.plan import Point, make_points
from dlrm_examples.dlrm_inference.request_source import RandomRequests, scale_dense
from dlrm_examples.dlrm_inference.settings import SETTINGS, draw_delays

MANY = 4000


def delays(setting: str, *, rank: int = 0, run: int = 0) -> np.ndarray:
    return draw_delays(SETTINGS[setting], rank=rank, num_ranks=4, run=run, num_steps=MANY, seed=1)


def test_random_delays_are_uniform_from_0_to_10_ms() -> None:
    drawn = delays("random_delays")
    assert drawn.min() >= 0
    assert drawn.max() <= 0.010
    assert drawn.mean() == pytest.approx(0.005, rel=0.05)
    assert np.quantile(drawn, 0.9) == pytest.approx(0.009, rel=0.05)


def test_random_delays_differ_by_rank_and_run_and_repeat_by_seed() -> None:
    assert np.array_equal(delays("random_delays"), delays("random_delays"))
    assert not np.array_equal(delays("random_delays"), delays("random_delays", rank=1))
    assert not np.array_equal(delays("random_delays"), delays("random_delays", run=1))


def test_only_the_last_rank_straggles_and_always_as_much() -> None:
    assert (delays("straggler", rank=3) == 0.005).all()
    assert not delays("straggler", rank=2).any()


@pytest.mark.parametrize("name", ["balanced", "heterogeneous", "heterogeneous_messages"])
def test_the_other_settings_delay_no_rank(name: str) -> None:
    assert not any(delays(name, rank=rank).any() for rank in range(4))


def test_lookups_are_drawn_per_table_and_batch_from_1_to_the_largest() -> None:
    config = DlrmConfig(table_rows=(50, 7, 1000))
    source = RandomRequests(config, num_rows=6, max_lookups=100, seed=0)
    drawn = np.stack([source.lookups(step) for step in range(500)])
    assert drawn.min() == 1
    assert drawn.max() == 100
    assert len({tuple(row) for row in drawn.tolist()}) > 490
    ids = source.ids(3, 1)  # Step 3, table 1.
    assert ids.shape == (6, drawn[3, 1])
    assert ids.max() < 7
    assert np.array_equal(ids, RandomRequests(config, num_rows=6, max_lookups=100, seed=0).ids(3, 1))


def test_dense_inputs_are_logarithms_with_negatives_at_zero() -> None:
    assert scale_dense(np.array([[-3.0, 0.0, np.e - 1]])).tolist() == [[0.0, 0.0, pytest.approx(1.0)]]


def test_the_synchronous_system_counts_once() -> None:
    assert make_points(["sync", "bls-gloo"], [0, 2]) == (Point("sync", 0), Point("bls-gloo", 0), Point("bls-gloo", 2))
