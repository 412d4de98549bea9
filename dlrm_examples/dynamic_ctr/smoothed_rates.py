"""Prediction without a model: how often an id had a positive label, smoothed by a prior.

Shapes: E examples of the log, L labels.
"""

from __future__ import annotations

import torch

from dlrm_examples.dynamic_ctr.log import Log


def smoothed_rates(log: Log, *, num_train: int, prior_examples: float = 10.0) -> torch.Tensor:
    """Scores of the examples after the first ``num_train``, out of counts over these alone.

    The rate of an id is (positives + prior_examples * common rate) / (examples + prior_examples). The odds of an
    example are the common odds times, for each of ``log.rate_features``, the odds of its id over the common odds.

    Args:
        log: whose labels after ``num_train`` are not read.
        num_train: at least 1.
        prior_examples: how many examples of the common rate every id begins with, above 0.
    Returns:
        (E - num_train, L) float64 log odds.
    Raises:
        ValueError: a label has one value only among the examples that count.
    """
    labels = log.labels[:num_train].double()
    common = labels.mean(dim=0)  # (L,)
    for name, rate in zip(log.label_names, common.tolist(), strict=True):
        if not 0.0 < rate < 1.0:
            raise ValueError(f"label {name!r} is the same in all of the first {num_train} examples")
    base = torch.logit(common)
    scores = base.repeat(log.num_examples - num_train, 1)
    for name in log.rate_features:
        _, row = torch.unique(log.columns[name].values, return_inverse=True)
        counts = torch.zeros(int(row.max()) + 1, 1, dtype=torch.float64)
        counts.index_add_(0, row[:num_train], torch.ones(num_train, 1, dtype=torch.float64))
        positives = torch.zeros(len(counts), labels.shape[1], dtype=torch.float64).index_add_(
            0, row[:num_train], labels
        )
        rates = (positives + prior_examples * common) / (counts + prior_examples)
        scores += torch.logit(rates[row[num_train:]]) - base
    return scores
