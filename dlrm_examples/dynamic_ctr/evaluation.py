"""How well scores predict the labels of a log."""

from __future__ import annotations

from typing import NamedTuple

import torch

from dlrm_examples.dynamic_ctr.log import Log
from dlrm_examples.dynamic_ctr.metrics import auc, gauc


class Quality(NamedTuple):
    """Of one label."""

    auc: float
    gauc: float | None  # None for a log without users


def evaluate(log: Log, scores: torch.Tensor) -> dict[str, Quality]:
    """Label -> quality of ``scores`` (E, L) for the last E examples of the log.

    Raises:
        ValueError: a label has one class only among them, or for every user alone.
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
