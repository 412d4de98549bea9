# SPDX-License-Identifier: Apache-2.0
"""AUC and GAUC match their definitions, pair by pair."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from dlrm_examples.streaming_ctr.metrics import auc, gauc


def pairwise_auc(scores: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> float:
    wins = [
        1.0 if positive > negative else 0.5 if positive == negative else 0.0
        for positive in scores[labels == 1]
        for negative in scores[labels == 0]
    ]
    return float(np.mean(wins))


@pytest.mark.parametrize("num_scores", [3, 1000], ids=["many ties", "few ties"])
@pytest.mark.parametrize("seed", range(4))
def test_auc_and_gauc_are_those_of_all_pairs(seed: int, num_scores: int) -> None:
    random = np.random.default_rng(seed)
    scores = random.integers(-num_scores, num_scores, 120) / 7
    labels, users = random.integers(0, 2, 120), random.integers(-5, 20, 120)

    values, weights = [], []
    for user in np.unique(users):
        of_user = users == user
        if 0 < labels[of_user].sum() < of_user.sum():
            values.append(pairwise_auc(scores[of_user], labels[of_user]))
            weights.append(of_user.sum())

    assert auc(scores, labels) == pytest.approx(pairwise_auc(scores, labels), abs=1e-12)
    assert gauc(scores, labels, users) == pytest.approx(np.average(values, weights=weights), abs=1e-12)


def test_users_with_one_class_are_left_out_and_the_others_weigh_by_their_examples() -> None:
    users = np.array([1, 1, 2, 2, 2, 2, 3, 3])
    labels = np.array([1, 0, 1, 0, 0, 0, 1, 1])
    scores = np.array([0.9, 0.1, 0.1, 0.2, 0.3, 0.4, 0.0, 9.0])

    assert gauc(scores, labels, users) == pytest.approx((2 * 1.0 + 4 * 0.0) / 6)


def test_equal_scores_are_worth_one_half() -> None:
    assert auc(np.zeros(4), np.array([0, 1, 1, 0])) == 0.5


@pytest.mark.parametrize(
    ("scores", "labels", "users", "reason"),
    [
        ([0.1, 0.2], [0, 1, 1], [0, 0, 0], "2 scores, 3 labels and 3 users"),
        ([0.1, np.nan], [0, 1], [0, 0], "score 1 is not finite"),
        ([0.1, 0.2], [0, 2], [0, 0], "neither 0 nor 1"),
        ([0.1, 0.2], [0, 1], [0, 1], "no user has examples of both classes"),
        ([], [], [], "no user has examples of both classes"),
    ],
)
def test_what_does_not_fit_is_named(scores: list[float], labels: list[int], users: list[int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        gauc(np.array(scores), np.array(labels), np.array(users, dtype=np.int64))


def test_the_auc_of_one_class_is_an_error() -> None:
    with pytest.raises(ValueError, match="one class"):
        auc(np.array([0.1, 0.2]), np.array([1, 1]))
