# SPDX-License-Identifier: Apache-2.0
"""Baseline without a model: the rate of positive labels of an id, smoothed by a prior.

Idea: naive Bayes on log odds. With n examples of an id, p of them positive, a common rate c and a prior weight w, the
smoothed rate is r = (p + w * c) / (n + w). The score of an example is

    logit(c) + sum over rate features f of (logit(r_f) - logit(c))

Example: c = 0.5, w = 10. An id with 10 examples, all positive, has r = 15 / 20 = 0.75. An unseen id adds 0.

Invariants: counts use only the training examples. The score does not depend on the order of the features.
Complexity: O(E log E) per rate feature, to number its distinct ids.

Shapes: E examples of the log, L labels.
"""

from __future__ import annotations

import torch

from dlrm_examples.support.data.log import Log


def smoothed_rates(log: Log, *, num_train: int, prior_examples: float = 10.0) -> torch.Tensor:
    """Scores the examples after the first ``num_train`` from counts over the first ``num_train``.

    Args:
        log: the log; its labels after ``num_train`` are not read.
        num_train: number of training examples, at least 1.
        prior_examples: w, weight of the common rate in examples, above 0.
    Returns:
        (E - num_train, L) float64 log odds.
    Raises:
        ValueError: a label has the same value in all training examples.
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
