# SPDX-License-Identifier: Apache-2.0
"""Systems of the table in the README: static tables with a row for every id, and dynamic tables with their features."""

from __future__ import annotations

from collections.abc import Mapping

from dlrm_examples.streaming_ctr.experiment import Restart, System
from dlrm_examples.streaming_ctr.tables import TableLimits

HOT_COUNT = 8  # Rows with fewer lookups are stored in bfloat16.
RANKS, RESTART = 2, Restart(at=0.5, num_ranks=3)


def compared_systems(*, table_sizes: Mapping[str, int]) -> list[System]:
    """Systems that ``--compare`` runs.

    Args:
        table_sizes: number of distinct ids of each table in the log.
    """
    few, many = (
        TableLimits(max_rows=sum(table_sizes.values()) * percent // 100, table_sizes=table_sizes, eviction="lfu")
        for percent in (60, 80)
    )
    return [
        System(kind="static"),
        System(kind="dynamic"),
        System(kind="dynamic", num_ranks=RANKS, restart=RESTART),
        System(kind="dynamic", limits=few),
        System(kind="dynamic", limits=many),
        System(kind="dynamic", num_ranks=RANKS, restart=RESTART, limits=many),
        System(kind="dynamic", limits=TableLimits(hot_count=HOT_COUNT)),
    ]
