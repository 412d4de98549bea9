# SPDX-License-Identifier: Apache-2.0
"""Clicks of a known model, so that a model trained on generated logs has something to learn.

Idea: the log-odds of a click are a sum of effects, one of each categorical id and one of each pair of ids in a few
pairs of columns. An effect is a normal variable that a hash of (column, id) draws, so nothing is stored, whatever the
number of ids. Ids of a pair are first reduced to ``PAIR_GROUPS`` groups each. Otherwise most pairs would occur once,
and nobody could learn them.

    log-odds = bias + sum over columns c of effect(c, id_c) + sum over pairs (c, d) of effect(c, d, id_c % G, id_d % G)

Example: two columns, one pair. A row has ids 5 and 7. Their effects are say 0.3 and -0.8, and that of the pair is 0.1.
With bias -1.2 the log-odds are -1.6, so the row is clicked with probability 0.17.

Invariants: the same column, id and seed give the same effect in every row and every log. The spread of the log-odds is
``SPREAD`` in the mean over models. A missing id has no effect.
Complexity: O(rows * (columns + pairs)).
Source: Box and Muller's transform of two uniform variables; the bias uses MacKay's approximation of the mean of a
sigmoid of a normal variable (Neural Computation 4, 1992).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dlrm_examples.support.data.zipf import scatter_32_bits

SPREAD = 1.5  #: Standard deviation of the log-odds.
PAIR_SHARE = 0.3  #: Share of the variance of the log-odds that pairs have.
PAIR_GROUPS = 64  #: Groups of the ids of a column, in pairs.
NUM_PAIRS = 12

_PAIR_COLUMNS = 1 << 20  #: Numbers of pairs begin here, beyond those of columns.


def click_probabilities(
    ids: Sequence[npt.NDArray[np.int64]],
    *,
    click_rate: float,
    seed: int,
    is_missing: Sequence[npt.NDArray[np.bool_]] | None = None,
) -> npt.NDArray[np.float64]:
    """Returns the probability of a click of each row.

    Args:
        ids: (rows,) of each categorical column, below 2**32.
        click_rate: mean probability, approximately.
        seed: of the model; logs with the same seed have the same effects.
        is_missing: (rows,) of each column, True where it has no id; None: nowhere.
    Returns:
        (rows,) probabilities.
    Raises:
        ValueError: there is no column, or the rate is not between 0 and 1.
    """
    if not ids or not 0 < click_rate < 1:
        raise ValueError(f"need a column and a click rate between 0 and 1, not {len(ids)} and {click_rate}")
    log_odds = np.zeros(len(ids[0]))
    pairs = _pairs(len(ids), seed)
    of_pairs = PAIR_SHARE if pairs else 0.0
    of_column = SPREAD * math.sqrt((1 - of_pairs) / len(ids))
    present = [np.ones(len(each)) if is_missing is None else ~is_missing[column] for column, each in enumerate(ids)]
    for column, each in enumerate(ids):
        log_odds += of_column * present[column] * _effects(each, column=column, seed=seed)
    for number, (first, second) in enumerate(pairs):
        groups = ids[first] % PAIR_GROUPS * PAIR_GROUPS + ids[second] % PAIR_GROUPS
        effects = _effects(groups, column=_PAIR_COLUMNS + number, seed=seed)
        log_odds += SPREAD * math.sqrt(of_pairs / len(pairs)) * present[first] * present[second] * effects
    bias = math.log(click_rate / (1 - click_rate)) * math.sqrt(1 + math.pi * SPREAD**2 / 8)
    probabilities: npt.NDArray[np.float64] = 1 / (1 + np.exp(-(bias + log_odds)))
    return probabilities


def _pairs(num_columns: int, seed: int) -> list[tuple[int, int]]:
    """Draws pairs of different columns."""
    every = [(first, second) for first in range(num_columns) for second in range(first + 1, num_columns)]
    chosen = np.random.default_rng(seed).permutation(len(every))[:NUM_PAIRS]
    return [every[index] for index in chosen.tolist()]


def _effects(ids: npt.NDArray[np.int64], *, column: int, seed: int) -> npt.NDArray[np.float64]:
    """Returns a standard normal variable for each id."""
    salt = 2 * (column + (seed << 24))
    radius, angle = (
        (scatter_32_bits(scatter_32_bits(ids, salt=each).astype(np.int64), salt=each + 1) + 0.5) / 2.0**32
        for each in (salt, salt + 1)
    )
    effects: npt.NDArray[np.float64] = np.sqrt(-2 * np.log(radius)) * np.cos(2 * math.pi * angle)
    return effects
