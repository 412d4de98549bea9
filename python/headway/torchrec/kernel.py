# SPDX-License-Identifier: Apache-2.0
"""One rank's shard of a merged table, as a TorchRec embedding kernel.

Tables of equal configuration are merged: they share one hash table (headway/embedding/merging.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torchrec.distributed.batched_embedding_kernel import BaseBatchedEmbedding
from torchrec.distributed.embedding_types import GroupedEmbeddingConfig
from torchrec.optim.fused import FusedOptimizer, FusedOptimizerModule

from headway._embedding import Table, ThreadPool
from headway.embedding.merging import MergedTable
from headway.embedding.state_records import ReadRecords, import_records, updates_of
from headway.embedding.table_records import TableShard
from headway.torchrec.settings import GroupMember

#: Key of a table's ``GroupMember``, its configuration and seed, in TorchRec's fused_params.
MEMBER = "headway_member"


class TableKernel(BaseBatchedEmbedding, FusedOptimizerModule):  # type: ignore[misc]
    """The table of this rank, its learning rate and its state. ``DynamicLookup`` looks up in all kernels at once."""

    def __init__(
        self, config: GroupedEmbeddingConfig, pg: dist.ProcessGroup, thread_pool: ThreadPool, device: torch.device
    ) -> None:
        super().__init__(config, pg)
        self.pg = pg
        members: list[GroupMember] = [table.fused_params[MEMBER] for table in config.embedding_tables]
        self.merged = MergedTable(tuple(member.config for member in members))
        self._seed = members[0].seed
        self._thread_pool = thread_pool
        self._device = device
        self.learning_rate = self.merged.config.optimizer.lr
        self._optimizer = TableOptimizer(self)
        self.table, self.updates = self._build(), 0  # The shard, and the number of updates (steps) so far.
        self.begin_step()

    def _build(self) -> Table:
        return self.merged.build(
            seed=self._seed, num_ranks=self.pg.size(), thread_pool=self._thread_pool, device=self._device
        )

    @property
    def shard(self) -> TableShard:
        """This kernel's table as source or destination of records."""
        names = tuple(table.name for table in self.merged.tables)
        return TableShard(names, self.table, self.updates, self.pg.rank(), self.pg.size())

    def shard_of(self, read: ReadRecords) -> TableShard:
        """Makes a new table with these records only. The kernel keeps its table until ``replace_by()``.

        Raises:
            MemoryError: there is no room for all records.
        """
        shard = replace(self.shard, table=self._build(), updates=updates_of(read))
        import_records(shard, read)
        shard.table.resume_step(shard.updates + 1, shard.updates)
        return shard

    def replace_by(self, shard: TableShard) -> None:
        """Replaces the table by one that ``shard_of()`` made. Cannot fail."""
        self.table, self.updates = shard.table, shard.updates

    def begin_step(self) -> None:
        """Begins the next step, after an update."""
        _begin_step(self.table, self.updates)

    # TorchRec's interface of kernels. There are no parameters: embeddings are only in the table.

    @property
    def fused_optimizer(self) -> FusedOptimizer:
        return self._optimizer

    @property
    def emb_module(self) -> TableKernel:
        return self

    def split_embedding_weights(self) -> list[torch.Tensor]:
        return []

    def state_dict(
        self, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """Adds nothing: the sharded module saves the records of tables."""
        return {} if destination is None else destination

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Parameter]]:
        return iter(())

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(())

    def named_parameters_by_table(self) -> Iterator[tuple[str, Any]]:
        return iter(())


def _begin_step(table: Table, updates: int) -> None:
    # A batch may be looked up before the update of the previous one: rows of the last two steps are not removed.
    table.begin_step(updates + 1, updates)


class TableOptimizer(FusedOptimizer):  # type: ignore[misc]
    """TorchRec's view of a kernel's optimizer, for schedulers: one group with a learning rate.

    ``step()`` and ``zero_grad()`` copy the rate to the kernel, which updates its rows in the backward pass. The
    parameters are empty tensors under the tables' names. Optimizer state is in the rows.
    """

    def __init__(self, kernel: TableKernel) -> None:
        self._kernel = weakref.ref(kernel)
        params = {f"{table.name}.weight": torch.empty(0) for table in kernel.merged.tables}
        super().__init__(params, {}, [{"params": list(params.values()), "lr": kernel.learning_rate}])

    def step(self, closure: Any = None) -> None:
        self._push_rate()

    def zero_grad(self, set_to_none: bool = False) -> None:
        self._push_rate()

    def post_load_state_dict(self) -> None:
        self._push_rate()

    def _push_rate(self) -> None:
        kernel = self._kernel()
        if kernel is not None:
            kernel.learning_rate = float(self.param_groups[0]["lr"])
