# SPDX-License-Identifier: Apache-2.0
"""``TargetScores``: scores of targets on all ranks, and their quality.

Idea: exact AUC needs all scores in one order. So each rank keeps its scores, all ranks gather them at the end, and each
computes the metrics of all. Sums over users are in the order of users, so the value does not depend on the ranks.

Example: rank 0 has scores of users 1 and 3, and rank 1 those of user 2. Both compute the mean over users 1, 2 and 3.

Complexity: on each rank after the gathering, 16 bytes per target and label (score and label), and 8 per target (user).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from headway.evaluation.auc import UserAucs, Weights, auc, normalized_entropy, user_aucs

T = TypeVar("T")


class LabelQuality(NamedTuple):
    """Quality of the prediction of one label. A metric is None if it is not defined; ``reason`` says why.

    Attributes:
        auc: over all targets.
        gauc, gauc_by_clicks, gauc_unweighted: mean AUC of users, weighted by a user's targets (impressions), by
            its positive ones (clicks), and not.
        normalized_entropy: cross entropy over that of the mean rate.
        num_targets, num_positive: numbers of targets.
        reason: a sentence; None if all metrics are defined.
    """

    auc: float | None
    gauc: float | None
    gauc_by_clicks: float | None
    gauc_unweighted: float | None
    normalized_entropy: float | None
    num_targets: int
    num_positive: int
    reason: str | None


class TargetScores:
    """Collects the scores of a rank.

    Args:
        labels: keys that ``add()`` finds in scores and labels.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = tuple(labels)
        names = ["", *(f"{kind} {name}" for name in labels for kind in ("score", "label"))]
        #: By column: "" has the users, "score NAME" and "label NAME" those of a label.
        self._columns: dict[str, list[np.ndarray[Any, Any]]] = {name: [] for name in names}

    def add(
        self, scores: Mapping[str, torch.Tensor], labels: Mapping[str, torch.Tensor], users: torch.Tensor | None
    ) -> None:
        """Adds N targets.

        Args:
            scores: (N,) log-probabilities by label.
            labels: (N,) 0 or 1 by label.
            users: (N,) int64; None: there are no users, and no GAUC.
        """
        self._columns[""].append(np.empty(0, dtype=np.int64) if users is None else users.cpu().numpy())
        for name in self._labels:
            self._columns[f"score {name}"].append(scores[name].detach().double().cpu().numpy())
            self._columns[f"label {name}"].append(labels[name].cpu().numpy().astype(np.int64))

    def quality(self, group: dist.ProcessGroup | None = None) -> dict[str, LabelQuality]:
        """Computes the quality of each label, over all ranks of ``group``, which all call it. None: this rank alone."""
        own = {name: _join(name, parts) for name, parts in self._columns.items()}
        of_ranks: list[Any] = [own]
        if group is not None and group.size() > 1:
            of_ranks = [None] * group.size()
            dist.all_gather_object(of_ranks, own, group=group)
        columns = {name: np.concatenate([each[name] for each in of_ranks]) for name in own}
        return {
            name: _quality(columns[f"score {name}"], columns[f"label {name}"], columns[""]) for name in self._labels
        }


def _join(name: str, parts: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    return np.concatenate([np.empty(0, dtype=np.float64 if name.startswith("score") else np.int64), *parts])


def _quality(scores: Any, labels: Any, users: Any) -> LabelQuality:
    reasons: list[str] = []

    def value(function: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return function(*arguments)
        except ValueError as error:
            reasons.append(str(error))
            return None

    has_users = len(users) == len(scores) > 0
    if not has_users:
        reasons.append("there are no users" if len(scores) else "there are no targets")
    if len(scores) == 0:
        return LabelQuality(None, None, None, None, None, 0, 0, reasons[0])

    of_users: UserAucs | None = value(user_aucs, scores, labels, users) if has_users else None

    def mean(weights: Weights) -> float | None:
        return None if of_users is None else of_users.mean(weights)

    return LabelQuality(
        auc=value(auc, scores, labels),
        gauc=mean("impressions"),
        gauc_by_clicks=mean("clicks"),
        gauc_unweighted=mean("none"),
        normalized_entropy=value(normalized_entropy, scores, labels),
        num_targets=len(labels),
        num_positive=int(labels.sum()),
        reason="; ".join(dict.fromkeys(reasons)) or None,
    )
