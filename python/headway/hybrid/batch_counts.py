# SPDX-License-Identifier: Apache-2.0
"""``BatchCounts``: what became of the batches of a dense worker."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class BatchCounts:
    """Each batch that has begun is in one place: ``begun == trained + empty + sum(lost.values()) + in_flight``.

    Attributes:
        begun: batches whose lookup was sent.
        trained: their gradients were taken by all servers.
        empty: they had no samples, since the worker has run out of data.
        lost: batches that were not trained, by cause: ``skipped`` (no optimizer step), ``overflow`` (a loss scaler
            found inf or NaN), ``refused`` (a server refused the gradients), ``not_finite`` (a server dropped them).
        in_flight: the others.
    """

    begun: int = 0
    trained: int = 0
    empty: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
