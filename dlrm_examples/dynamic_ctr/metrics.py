"""AUC and GAUC, exact: no bins, ties count one half."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]


def auc(scores: Floats, labels: npt.NDArray[np.generic]) -> float:
    """Chance that a random positive scores above a random negative.

    Args:
        scores: (E,) finite.
        labels: (E,) 0 or 1.
    Raises:
        ValueError: the labels are of one class only, or an argument does not fit.
    """
    if np.unique(labels).size == 1:
        raise ValueError("all labels are of one class")
    return gauc(scores, labels, np.zeros(len(scores), dtype=np.int64))


def gauc(scores: Floats, labels: npt.NDArray[np.generic], user_ids: npt.NDArray[np.int64]) -> float:
    """Mean of the users' AUC, weighted by their number of examples; users with one class only are left out.

    Args:
        scores: (E,) finite.
        labels: (E,) 0 or 1.
        user_ids: (E,) user of each example.
    Raises:
        ValueError: no user has examples of both classes, or an argument does not fit.
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

    # Ranks start at 1 over all users; a group of equal scores shares the mean of its ranks, doubled to stay integer.
    group_begin = np.flatnonzero(new_score)
    group_size = np.diff(group_begin, append=len(order))
    doubled_rank = np.repeat(2 * group_begin + group_size + 1, group_size)

    begin = np.flatnonzero(new_user)
    size = np.diff(begin, append=len(order))
    positives = np.add.reduceat(positive, begin) if len(begin) else size
    doubled_ranks = np.add.reduceat(doubled_rank * positive, begin) if len(begin) else size
    negatives = size - positives
    both = (positives > 0) & (negatives > 0)
    if not both.any():
        raise ValueError("no user has examples of both classes")
    # Of all pairs of a positive and a negative, those in the right order; begin turns ranks into ranks of the user.
    doubled_wins = doubled_ranks - positives * (2 * begin + positives + 1)
    user_auc = doubled_wins[both] / (2 * positives * negatives)[both]
    return float(np.average(user_auc, weights=size[both]))
