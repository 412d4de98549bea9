# SPDX-License-Identifier: Apache-2.0
"""The closing line of a run: Headway's best row beside synchronous DLRM and beside other systems at the same k.

k is ``max_lag``, the number of exchanges that a rank may run ahead of the slowest; ``bls`` in names of systems stands
for bounded-lag synchronous.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dlrm_examples.dlrm_inference.reporting.metrics import Estimate, estimate
from dlrm_examples.dlrm_inference.reporting.results import REFERENCE_SYSTEM, ResultRow
from dlrm_examples.support.host_load import HostLoad

OWN_SYSTEM = "bls-headway"


def headline(rows: Sequence[ResultRow], load: HostLoad | None) -> str:
    """States what the rows of one workload show about Headway, and first whether the host was too busy to tell.

    Args:
        rows: rows of one workload.
        load: load of the host during the runs; None if it is not known.
    """
    own = [row for row in rows if row.point.system == OWN_SYSTEM]
    if not own:
        return f"{OWN_SYSTEM} was not measured, so there is nothing to compare."
    best = max(own, key=lambda row: row.throughput.mean)
    others = [
        row
        for row in rows
        if row.point.system == REFERENCE_SYSTEM
        or (row.point.system != OWN_SYSTEM and row.point.max_lag == best.point.max_lag)
    ]
    if not others:
        return f"Neither synchronous DLRM nor another system at the same k was measured beside {_name(best)}."
    comparison = f"{_name(best)}: {'; '.join(_comparison(best, other) for other in others)}."
    if load is None or not load.is_busy:
        return comparison
    return (
        f"This host was too busy to tell which system is faster: other programs used {load.foreign:.0%} of its "
        f"processor time during the runs, and the hypervisor took {load.steal:.0%}. Repeat this on a quiet host. "
        f"Measured nevertheless: {comparison}"
    )


def _comparison(best: ResultRow, other: ResultRow) -> str:
    ratio = rate_ratio(best, other)
    gain = f"{ratio.mean:.2f} times the throughput of {_name(other)}"
    if len(best.run_rates) == 1:
        return f"{gain} in a single run, which has no interval"
    text = f"{gain} (95% interval {ratio.low:.2f} to {ratio.high:.2f})"
    if ratio.low > 1.0:
        return text
    return f"{text}: {'Headway is slower' if ratio.high < 1.0 else 'no clear difference'}"


def rate_ratio(row: ResultRow, other: ResultRow) -> Estimate:
    """Throughput of ``row`` over that of ``other``, paired by run: both have the same runs in the same order."""
    assert len(row.run_rates) == len(other.run_rates), f"{len(row.run_rates)} and {len(other.run_rates)} runs"
    return estimate(np.array(row.run_rates) / np.array(other.run_rates))


def _name(row: ResultRow) -> str:
    if row.point.system == REFERENCE_SYSTEM:
        return "synchronous DLRM"
    return f"{row.point.system} with k = {row.point.max_lag}"
