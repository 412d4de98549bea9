# SPDX-License-Identifier: Apache-2.0
"""Messages from the ranks to the process that started them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dlrm_examples.dlrm_inference.plan import Point
from dlrm_examples.dlrm_inference.recurrence import RankWork

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One run of one rank at one point.

    Attributes:
        workload: index into the plan's workloads.
        point: system and bound.
        run: index of the repetition.
        elapsed_s: duration of the loop, including the drain.
        finished_s: end of the loop, on the clock of ``work.start_s``.
        request_latency_s: (steps,) time from the arrival of a mini-batch to its predictions.
        work: time outside communication, as input of ``recurrence.replay()``.
        posting_s: total time in the calls that start exchanges.
        waiting_s: total time in the waits.
        held_bytes: largest size of the tensors that pending steps kept alive.
        bytes_per_exchange: mean bytes that the rank sends in one exchange to all ranks, including itself.
        predictions_digest: SHA-256 over the bits of all predictions.
    """

    rank: int
    workload: int
    point: Point
    run: int
    elapsed_s: float
    finished_s: float
    request_latency_s: Seconds
    work: RankWork
    posting_s: float
    waiting_s: float
    held_bytes: int
    bytes_per_exchange: float
    predictions_digest: str


@dataclass(frozen=True, kw_only=True)
class GroupStats:
    """``headway.stats(group)`` of one rank after all runs of a point."""

    rank: int
    workload: int
    point: Point
    stats: dict[str, Any]


Message = Measurement | GroupStats
