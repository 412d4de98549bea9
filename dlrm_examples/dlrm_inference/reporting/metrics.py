# SPDX-License-Identifier: Apache-2.0
"""Means with 95% confidence intervals; latency, throughput and memory estimate of the paper.

Source: Dichev et al., arXiv 2512.19342, section V.C.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# 97.5% quantiles of Student's t distribution for 1 to 30 degrees of freedom.
# fmt: off
_T_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)
# fmt: on
_NORMAL_QUANTILE = 1.960


@dataclass(frozen=True)
class Estimate:
    """A mean and half the width of its 95% confidence interval (0 for a single sample)."""

    mean: float
    half_width: float

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + self.half_width


def estimate(samples: Sequence[float] | npt.NDArray[np.float64]) -> Estimate:
    """Mean of independent samples with its 95% confidence interval by Student's t.

    Raises:
        ValueError: ``samples`` is empty.
    """
    values = np.asarray(samples, dtype=np.float64).reshape(-1)
    if values.size == 0:
        raise ValueError("the mean of no samples")
    if values.size == 1:
        return Estimate(float(values[0]), 0.0)
    degrees = values.size - 1
    quantile = _T_QUANTILES[degrees - 1] if degrees <= len(_T_QUANTILES) else _NORMAL_QUANTILE
    return Estimate(float(values.mean()), quantile * float(values.std(ddof=1)) / math.sqrt(values.size))


def batch_latency(elapsed_s: npt.NDArray[np.float64], *, num_steps: int) -> Estimate:
    """Latency of a step: mean of L(i, j), the mean step time of process j in run i, over all runs and processes.

    Args:
        elapsed_s: (runs, ranks) duration of the loop, drain included.
        num_steps: steps of a run.
    """
    return estimate(elapsed_s / num_steps)


def throughput(elapsed_s: npt.NDArray[np.float64], *, num_steps: int) -> Estimate:
    """Mini-batches per second of all processes together, mean over runs.

    Args:
        elapsed_s: (runs, ranks) duration of the loop, drain included.
        num_steps: steps of a run.
    """
    return estimate((num_steps / elapsed_s).sum(axis=1))


def estimated_bytes_per_lag(*, row_bytes: int, mini_batch: int, num_tables: int) -> int:
    """The paper's estimate of the memory per unit of k and process: s * b * tables + s**2 + b bytes.

    Args:
        row_bytes: s.
        mini_batch: b, rows.
        num_tables: number of embedding tables.
    """
    return row_bytes * mini_batch * num_tables + row_bytes**2 + mini_batch
