# SPDX-License-Identifier: Apache-2.0
"""Exact AUC and GAUC, without bins, and normalized entropy. A tie counts one half.

Idea: the AUC is the Mann-Whitney statistic. Sort the scores; with ranks from 1, P positives and N negatives,

    AUC = (sum of the ranks of the positives - P * (P + 1) / 2) / (P * N)

Equal scores share the mean of their ranks. user_aucs() sorts once by (user, score). A user's block begins at index
``begin``, so the rank within the user is the global rank minus ``begin``. Ranks are doubled to stay integers. All
weights of users share this sort.

Example: scores [0.1, 0.4, 0.4, 0.8], labels [0, 0, 1, 1]: ranks [1, 2.5, 2.5, 4]. AUC = (2.5 + 4 - 3) / 4 = 0.875.

Invariants: only the order of the scores matters. A user with one class has no AUC and is left out.
Complexity: O(E log E) time and O(E) memory for E examples.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Weights = Literal["impressions", "clicks", "none"]


def auc(scores: Floats, labels: npt.NDArray[np.generic]) -> float:
    """Probability that a random positive scores above a random negative.

    Args:
        scores: (E,) finite.
        labels: (E,) 0 or 1.
    Raises:
        ValueError: all labels are equal, or an argument is invalid.
    """
    if len(labels) > 0 and (labels == labels[0]).all():
        raise ValueError("all labels are of one class")
    return gauc(scores, labels, np.zeros(len(scores), dtype=np.int64))


class UserAucs(NamedTuple):
    """AUC of each user with examples of both classes.

    Attributes:
        auc: (U,).
        impressions, clicks: (U,) numbers of examples, and of positive ones.
    """

    auc: npt.NDArray[np.float64]
    impressions: npt.NDArray[np.int64]
    clicks: npt.NDArray[np.int64]

    def mean(self, weights: Weights = "impressions") -> float:
        """Returns the mean over users; see ``gauc()``."""
        of_users = {"impressions": self.impressions, "clicks": self.clicks, "none": None}[weights]
        return float(np.average(self.auc, weights=of_users))


def gauc(
    scores: Floats,
    labels: npt.NDArray[np.generic],
    user_ids: npt.NDArray[np.int64],
    *,
    weights: Weights = "impressions",
) -> float:
    """Mean AUC of the users. Users whose labels are all equal are left out.

    Args:
        scores, labels, user_ids: as in ``user_aucs()``.
        weights: a user weighs by its number of examples, by that of its positives ("clicks"), or 1 ("none").
    Raises:
        ValueError: no user has examples of both classes, or an argument is invalid.
    """
    return user_aucs(scores, labels, user_ids).mean(weights)


def user_aucs(scores: Floats, labels: npt.NDArray[np.generic], user_ids: npt.NDArray[np.int64]) -> UserAucs:
    """AUC of each user with examples of both classes.

    Args:
        scores: (E,) finite.
        labels: (E,) 0 or 1.
        user_ids: (E,) user of each example.
    Raises:
        ValueError: no user has examples of both classes, or an argument is invalid.
    """
    if not len(scores) == len(labels) == len(user_ids):
        raise ValueError(f"{len(scores)} scores, {len(labels)} labels and {len(user_ids)} users")
    if not np.isfinite(scores).all():
        raise ValueError(f"score {int(np.argmin(np.isfinite(scores)))} is not finite")
    if not np.isin(labels, (0, 1)).all():
        raise ValueError("a label is neither 0 nor 1")
    order = np.lexsort((scores, user_ids))
    users, ordered, positive = user_ids[order], scores[order], labels[order].astype(np.int64)
    new_user = np.diff(users, prepend=users[:1] - 1) != 0
    new_score = new_user | (np.diff(ordered, prepend=ordered[:1]) != 0)

    # Ranks start at 1 and run over all users. Equal scores of a user share their mean rank, doubled to stay an integer.
    group_begin = np.flatnonzero(new_score)
    group_size = np.diff(group_begin, append=len(order))
    doubled_rank = np.repeat(2 * group_begin + group_size + 1, group_size)

    begin = np.flatnonzero(new_user)
    size = np.diff(begin, append=len(order))
    positives = np.add.reduceat(positive, begin) if len(begin) else size
    doubled_ranks = np.add.reduceat(doubled_rank * positive, begin) if len(begin) else size
    negatives = size - positives
    has_both = (positives > 0) & (negatives > 0)
    if not has_both.any():
        raise ValueError("no user has examples of both classes")
    # Twice the number of (positive, negative) pairs in the right order. 2 * begin turns global ranks into user ranks.
    doubled_wins = doubled_ranks - positives * (2 * begin + positives + 1)
    user_auc = doubled_wins[has_both] / (2 * positives * negatives)[has_both]
    return UserAucs(user_auc, size[has_both], positives[has_both])


def normalized_entropy(log_probabilities: Floats, labels: npt.NDArray[np.generic]) -> float:
    """Mean cross entropy over that of the rate of positives (He et al. 2014). Below 1 is better than the rate.

    Sums are exact before they are rounded, so they do not depend on the order of examples.

    Args:
        log_probabilities: (E,) logarithm of the predicted probability of label 1, below 0.
        labels: (E,) 0 or 1.
    Raises:
        ValueError: all labels are equal, a score is NaN, or the cross entropy is infinite.
    """
    rate = float(np.mean(labels.astype(np.float64)))
    if not 0 < rate < 1:
        raise ValueError("all labels are of one class")
    if np.isnan(log_probabilities).any():
        raise ValueError(f"score {int(np.argmax(np.isnan(log_probabilities)))} is not a number")
    if np.isneginf(log_probabilities[labels == 1]).any():
        raise ValueError("the cross entropy is infinite: a positive example has the probability 0")
    own = np.where(labels == 1, log_probabilities, np.log(-np.expm1(np.minimum(log_probabilities, -1e-300))))
    of_rate = rate * math.log(rate) + (1 - rate) * math.log1p(-rate)
    return math.fsum(own.tolist()) / len(labels) / of_rate
