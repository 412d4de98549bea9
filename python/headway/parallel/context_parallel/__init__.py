# SPDX-License-Identifier: Apache-2.0
"""Context parallelism: the ranks of a group share each batch, so that long sequences fit and finish sooner.

::

    context = ContextParallel(group, layer)
    plan = context.plan(lengths, num_targets=targets)
    ids, times, query_times = context.shard((ids, times, next_times(times, offsets)), plan)
    y = stack(table(ids), plan.sequences(times, query_times), parallel=plan)
    loss = context.mean(*loss_of(y, plan))
"""

from headway.parallel.context_parallel.chunks_plan import ChunksPlan, Cut, divide_chunks
from headway.parallel.context_parallel.context_parallel import ContextParallel
from headway.parallel.context_parallel.context_plan import ContextPlan
from headway.parallel.context_parallel.grid_plan import GridPlan
from headway.parallel.context_parallel.group_batch import GroupBatch, visible_keys
from headway.parallel.context_parallel.plan import HeadsPlan, Splits

__all__ = [
    "ChunksPlan",
    "ContextParallel",
    "ContextPlan",
    "Cut",
    "GridPlan",
    "GroupBatch",
    "HeadsPlan",
    "Splits",
    "divide_chunks",
    "visible_keys",
]
