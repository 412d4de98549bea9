"""What a rank reports, and the messages that carry it to the process that started the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dlrm_examples.bls_dlrm.plan import Point
from dlrm_examples.bls_dlrm.recurrence import RankWork

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One run of one rank at one point.

    Attributes:
        workload: index into the plan.
        elapsed_s: duration of the loop, drain included.
        finished_s: end of the loop, on the clock of ``work.start_s``.
        request_latency_s: (steps,) from the arrival of a mini-batch to its predictions.
        work: time outside of communication, for the replay.
        posting_s: total time inside the calls that start exchanges.
        waiting_s: total time inside the waits.
        held_bytes: most bytes that pending steps kept alive.
        bytes_per_exchange: mean bytes that the rank sends in one exchange, all destinations together, itself included.
        predictions_digest: hash over the bits of all predictions.
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
    """What ``headway.stats(group)`` says on one rank after all runs of a point."""

    rank: int
    workload: int
    point: Point
    stats: dict[str, Any]


@dataclass(frozen=True)
class Ready:
    """A rank is connected and goes on to load its data."""

    rank: int


@dataclass(frozen=True)
class Failed:
    """A rank stops; the text is one line."""

    rank: int
    text: str


@dataclass(frozen=True)
class Finished:
    """A rank has done its part."""

    rank: int


Message = Measurement | GroupStats | Ready | Failed | Finished
