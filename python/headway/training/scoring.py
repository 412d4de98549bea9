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
                    _expect_predictions(found, label, batch)
                users = batch.context[user].repeat_interleave(batch.target_lengths) if user else None
                scores.add(found, batch.labels, users)
    finally:
        model.train(was_training)
    return scores


def _expect_predictions(found: Mapping[str, Tensor], label: str, batch: SampleBatch) -> None:
    num_targets = batch.num_targets
    if label not in found:
        raise ValueError(f"predict() returned nothing for the label {label}, only {', '.join(found)}")
    if found[label].shape != (num_targets,):
        raise ValueError(
            f"predict() returned {tuple(found[label].shape)} for {label}, and the batch has {num_targets} targets"
        )
    is_wrong = ~(found[label] <= 0)  # NaN is wrong, too.
    if bool(is_wrong.any()):
        target = int(is_wrong.nonzero()[0])
        sample = int(batch.sample_ids.repeat_interleave(batch.target_lengths.to(batch.sample_ids.device))[target])
        raise ValueError(
            f"predict() returned {found[label][target].item():g} for {label} of sample {sample}: it returns "
            "log-probabilities, which are at most 0"
        )
