# SPDX-License-Identifier: Apache-2.0
"""Metrics match their definitions, pair by pair, for any number of ranks.

GAUC (grouped AUC) is the mean of the users' AUCs. By default a user weighs as many as their examples.
A target is an item to score for a user; a label says whether the user clicked it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.distributed as dist
from headway.evaluation import LabelQuality, TargetScores, auc, gauc, normalized_entropy
from rank_processes import run_ranks


def pairwise_auc(scores: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> float:
    """Returns the share of (positive, negative) pairs whose scores are in order. Ties count one half."""
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


def test_users_may_weigh_by_clicks_or_equally() -> None:
    users = np.array([1, 1, 1, 2, 2, 2, 2])
    labels = np.array([1, 1, 0, 1, 0, 0, 0])
    scores = np.array([0.9, 0.1, 0.5, 0.1, 0.2, 0.3, 0.0])  # AUC 1/2 and 1/3.

    assert gauc(scores, labels, users) == pytest.approx((3 * 0.5 + 4 / 3) / 7)
    assert gauc(scores, labels, users, weights="clicks") == pytest.approx((2 * 0.5 + 1 / 3) / 3)
    assert gauc(scores, labels, users, weights="none") == pytest.approx((0.5 + 1 / 3) / 2)


def test_normalized_entropy_is_that_of_its_definition() -> None:
    labels = np.array([1, 0, 0, 1])
    log_p = np.log(np.array([0.8, 0.3, 0.1, 0.6]))
    expected = -np.mean(np.log([0.8, 0.7, 0.9, 0.6])) / np.log(2)
    assert normalized_entropy(log_p, labels) == pytest.approx(expected)
    assert normalized_entropy(np.full(4, np.log(0.5)), labels) == pytest.approx(1)
    with pytest.raises(ValueError, match="one class"):
        normalized_entropy(log_p, np.ones(4))
    assert np.isfinite(normalized_entropy(np.array([-1, -np.inf, -1, -1]), labels))  # A negative may have 0.
    with pytest.raises(ValueError, match="the cross entropy is infinite"):
        normalized_entropy(np.array([-np.inf, -1, -1, -1]), labels)
    with pytest.raises(ValueError, match="score 2 is not a number"):
        normalized_entropy(np.array([-1, -1, np.nan, -1]), labels)


def scores_of(rows: npt.NDArray[np.int64], *, users: bool = True) -> TargetScores:
    """Adds the rows of a fixed set of 200 targets, in three parts. Scores are log-probabilities, so below 0."""
    random = np.random.default_rng(3)
    scores, labels = -random.exponential(size=200).round(1) - 0.01, random.integers(0, 2, 200)
    found = TargetScores(["click"])
    for part in np.array_split(rows, 3):
        found.add(
            {"click": torch.from_numpy(scores[part])},
            {"click": torch.from_numpy(labels[part])},
            torch.from_numpy(part % 17) if users else None,
        )
    return found


def test_any_division_of_the_targets_has_the_same_quality() -> None:
    expected = scores_of(np.arange(200)).quality()["click"]
    assert expected.reason is None and expected.num_targets == 200
    assert scores_of(np.random.default_rng(0).permutation(200)).quality()["click"] == expected
    for size in (2, 3):
        assert run_ranks(quality_of_part, size, size) == [expected] * size


def quality_of_part(rank: int, size: int) -> LabelQuality:
    return scores_of(np.arange(rank, 200, size)).quality(dist.group.WORLD)["click"]


def test_a_metric_that_is_not_defined_has_a_reason() -> None:
    quality = scores_of(np.arange(200), users=False).quality()["click"]
    assert quality.auc is not None and quality.gauc is None and quality.reason == "there are no users"
    nothing = TargetScores(["click"]).quality()["click"]
    assert nothing.auc is None and nothing.reason == "there are no targets"
    one_class = TargetScores(["click"])
    one_class.add({"click": torch.zeros(3) - 1}, {"click": torch.ones(3)}, torch.arange(3))
    assert one_class.quality()["click"].auc is None
    assert "all labels are of one class" in (one_class.quality()["click"].reason or "")
    certain = TargetScores(["click"])
    certain.add({"click": torch.tensor([-torch.inf, -1.0])}, {"click": torch.tensor([1.0, 0.0])}, torch.zeros(2).long())
    found = certain.quality()["click"]
    assert found.normalized_entropy is None and found.auc is None
    reasons = ["score 0 is not finite", "the cross entropy is infinite: a positive example has the probability 0"]
    assert found.reason == "; ".join(reasons)
