# SPDX-License-Identifier: Apache-2.0
"""Scores the targets of an evaluation, and checks what the model predicts for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headway.data.sample_batch import SampleBatch
from headway.evaluation import TargetScores


def score_targets(
    model: Any,
    batches: Iterable[SampleBatch],
    *,
    labels: Sequence[str],
    user: str,
    device: torch.device,
    autocast: contextlib.AbstractContextManager[Any],
) -> TargetScores:
    """Predicts the labels of all targets, without an insertion of rows. Ranks may have batches of their own.

    Args:
        model: a ``TrainableModel``; it is in the mode of training again afterwards if it was before.
        batches: of this rank.
        labels: names of the labels.
        user: column of the context by which targets are grouped; empty: none.
        device: of the model.
        autocast: context of the predictions.
    Raises:
        ValueError: predictions lack a label, or are no log-probabilities of the targets.
    """
    scores = TargetScores(tuple(labels))
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), autocast:
            for host_batch in batches:
                batch = host_batch.to(device)
                found = model.predict(batch)
                for label in labels:
                    _expect_predictions(found, label, batch.num_targets)
                users = batch.context[user].repeat_interleave(batch.target_lengths) if user else None
                scores.add(found, batch.labels, users)
    finally:
        model.train(was_training)
    return scores


def _expect_predictions(found: Mapping[str, Tensor], label: str, num_targets: int) -> None:
    if label not in found:
        raise ValueError(f"predict() returned nothing for the label {label}, only {', '.join(found)}")
    if found[label].shape != (num_targets,):
        raise ValueError(
            f"predict() returned {tuple(found[label].shape)} for {label}, and the batch has {num_targets} targets"
        )
    if bool((found[label] > 0).any()):
        raise ValueError(f"predict() returned a value above 0 for {label}: it returns log-probabilities")
