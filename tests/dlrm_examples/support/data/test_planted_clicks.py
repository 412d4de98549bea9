# SPDX-License-Identifier: Apache-2.0
"""Clicks of a planted model: their rate and spread, effects that stay, and a log from which they can be learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from headway.evaluation.auc import auc

from dlrm_examples.dlrm_inference.generate import main, write_criteo_log
from dlrm_examples.support.data.planted_clicks import SPREAD, click_probabilities

ROWS = 20_000


def _draw_ids(*, columns: int, rows: int = ROWS, below: int = 5000) -> list[npt.NDArray[np.int64]]:
    random = np.random.default_rng(7)
    return [random.integers(0, below, rows) for _ in range(columns)]


def _log_odds(probabilities: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.log(probabilities / (1 - probabilities))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_rate_and_the_spread_are_those_asked_for(seed: int) -> None:
    probabilities = click_probabilities(_draw_ids(columns=26), click_rate=0.25, seed=seed)
    assert probabilities.mean() == pytest.approx(0.25, abs=0.02)
    assert _log_odds(probabilities).std() == pytest.approx(SPREAD, rel=0.05)


def test_a_row_has_the_same_probability_in_every_log() -> None:
    ids = _draw_ids(columns=4)
    whole = click_probabilities(ids, click_rate=0.3, seed=5)
    part = click_probabilities([each[100:200] for each in ids], click_rate=0.3, seed=5)
    assert np.array_equal(whole[100:200], part)
    assert not np.array_equal(whole, click_probabilities(ids, click_rate=0.3, seed=6))


def test_ids_have_effects_of_their_own_and_pairs_have_more() -> None:
    """With one column the log-odds are a function of the id; with two, they are no sum of functions of each id."""
    [ids] = _draw_ids(columns=1, below=50)
    alone = click_probabilities([ids], click_rate=0.25, seed=1)
    assert len(np.unique(alone)) == len(np.unique(ids))
    first, second = (each.ravel() for each in np.meshgrid(np.arange(40), np.arange(40)))
    table = _log_odds(click_probabilities([first, second], click_rate=0.25, seed=1)).reshape(40, 40)
    left = table - table.mean(0) - table.mean(1)[:, None] + table.mean()
    assert left.var() == pytest.approx(0.3 * SPREAD**2, rel=0.2)


def test_a_missing_id_has_no_effect() -> None:
    ids = _draw_ids(columns=3, rows=100)
    missing = [np.full(100, column == 1) for column in range(3)]
    other = [ids[0], ids[1][::-1].copy(), ids[2]]
    probabilities = [click_probabilities(each, click_rate=0.25, seed=1, is_missing=missing) for each in (ids, other)]
    assert np.array_equal(*probabilities)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"not 0 and 0\.25"):
        click_probabilities([], click_rate=0.25, seed=0)
    with pytest.raises(ValueError, match="not 1 and 1"):
        click_probabilities(_draw_ids(columns=1), click_rate=1, seed=0)


def _auc_of_first_column(path: Path) -> float:
    """Predicts the second half of a log by the click rates of the first categorical column in the first half."""
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    clicks = np.array([int(row[0]) for row in rows])
    _, ids = np.unique([row[14] for row in rows], return_inverse=True)
    half = len(rows) // 2
    shown = np.bincount(ids[:half], minlength=ids.max() + 1)
    rates = (np.bincount(ids[:half], weights=clicks[:half], minlength=ids.max() + 1) + 5) / (shown + 20)
    return auc(rates[ids[half:]], clicks[half:])


def test_clicks_of_a_planted_log_can_be_predicted(tmp_path: Path) -> None:
    cardinalities = (200, 50)
    write_criteo_log(tmp_path / "planted", num_rows=ROWS, cardinalities=cardinalities, planted_model=3)
    write_criteo_log(tmp_path / "random", num_rows=ROWS, cardinalities=cardinalities)
    assert _auc_of_first_column(tmp_path / "planted") > 0.6
    assert _auc_of_first_column(tmp_path / "random") == pytest.approx(0.5, abs=0.02)


def test_the_command_refuses_a_model_of_another_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["ali_ccp", str(tmp_path / "log"), "--planted", "1"])
    assert "--planted needs the format criteo" in capsys.readouterr().err
