# SPDX-License-Identifier: Apache-2.0
"""Evaluates how well scores predict the labels of a log."""

from __future__ import annotations

from typing import NamedTuple

import torch
from headway.evaluation.auc import auc, gauc

from dlrm_examples.support.data.log import Log


class Quality(NamedTuple):
    """Quality of the prediction of one label."""

    auc: float
    gauc: float | None  # None if the log has no users


def evaluate(log: Log, scores: torch.Tensor) -> dict[str, Quality]:
    """Evaluates ``scores`` (E, L) of the last E examples of the log, for its L labels.

    Returns:
        quality by label name.
    Raises:
        ValueError: all values of a label are equal, among these examples or within every user.
    """
    first = log.num_examples - len(scores)
    labels = log.labels[first:].numpy()
    user_ids = None if log.user_ids is None else log.user_ids[first:].numpy()
    quality = {}
    for name, score, label in zip(log.label_names, scores.numpy().T, labels.T, strict=True):
        try:
            quality[name] = Quality(auc(score, label), None if user_ids is None else gauc(score, label, user_ids))
        except ValueError as error:
            raise ValueError(f"label {name!r}: {error}") from error
    return quality
