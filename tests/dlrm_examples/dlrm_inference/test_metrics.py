# SPDX-License-Identifier: Apache-2.0
"""Latency, throughput and the memory estimate match the definitions of the paper, arXiv 2512.19342."""

from __future__ import annotations

import numpy as np
import pytest

from dlrm_examples.dlrm_inference.reporting.metrics import batch_latency, estimate, estimated_bytes_per_lag, throughput


def test_the_interval_uses_students_t() -> None:
    # Five samples, standard deviation sqrt(2.5), t of 4 degrees of freedom 2.776.
    value = estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    assert value.mean == 3.0
    assert value.half_width == pytest.approx(2.776 * np.sqrt(2.5) / np.sqrt(5))
    assert (value.low, value.high) == (3.0 - value.half_width, 3.0 + value.half_width)


def test_a_single_sample_has_no_interval() -> None:
    assert estimate([2.0]).half_width == 0.0


def test_no_sample_is_an_error() -> None:
    with pytest.raises(ValueError, match="no samples"):
        estimate([])


def test_latency_is_over_runs_and_processes_and_throughput_over_runs() -> None:
    elapsed_s = np.array([[1.0, 2.0], [2.0, 4.0]])  # Two runs of two processes, ten steps each.
    assert batch_latency(elapsed_s, num_steps=10).mean == pytest.approx(0.225)
    assert throughput(elapsed_s, num_steps=10).mean == pytest.approx(((10 + 5) + (5 + 2.5)) / 2)


def test_the_estimate_for_the_papers_sizes_is_about_860_kb() -> None:
    assert estimated_bytes_per_lag(row_bytes=64, mini_batch=512, num_tables=26) == pytest.approx(860e3, rel=0.01)
