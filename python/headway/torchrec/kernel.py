# SPDX-License-Identifier: Apache-2.0
"""One rank's shard of a merged table, as a TorchRec embedding kernel.

V keys that ranks ask for, W of them unique, B bags, D columns.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torchrec.distributed.batched_embedding_kernel import BaseBatchedEmbedding
from torchrec.distributed.embedding_types import GroupedEmbeddingConfig
from torchrec.optim.fused import FusedOptimizer, FusedOptimizerModule

from headway._embedding import KeyStatus, Table, ThreadPool, UniqueKeys
from headway.embedding.collection import is_recomputation
from headway.embedding.merging import MergedTable
from headway.embedding.state_records import ReadRecords, import_records, updates_of
from headway.embedding.table_records import TableShard
from headway.torchrec.settings import GroupMember

#: Key of a table's ``GroupMember`` in TorchRec's fused_params.
MEMBER = "headway_member"


@dataclass(frozen=True)
class FoundRows:
    """Row indices of keys in a table. They become invalid if rows are removed or moved, or the table is replaced."""

    table: Table
    rows_W: torch.Tensor
    generation: int  #: Generation of the table when the rows were found; it changes when rows may become invalid.

    def are_of(self, table: Table) -> bool:
        """Are the rows still valid, and those of ``table``?"""
        return self.table is table and self.generation == table.generation


@dataclass(frozen=True)
class OwnerLookup:
    """Keys of a batch and their rows. Rows are searched again if they were removed or moved, or the table replaced."""

    kernel: TableKernel
    unique: UniqueKeys
    found: FoundRows  #: Rows of the unique keys.

    def expand(self, *, offsets: torch.Tensor | None = None, weights: torch.Tensor | None = None) -> torch.Tensor:
        """Pools the embeddings of the V keys: (B, D).

        Args:
            offsets: (B + 1,) int64, bounds of the bags; None: each key is a bag.
            weights: (V,) weights of the keys; None: all 1.
        """
        return self.kernel.table.gather_bags(self.unique, self._current_rows(), offsets=offsets, weights=weights)

    def apply_gradients(
        self, gradients_BD: torch.Tensor, *, offsets: torch.Tensor | None = None, weights: torch.Tensor | None = None
    ) -> None:
        """Updates the rows once by the gradients of what ``expand()`` returned. They are summed in their order."""
        kernel = self.kernel
        kernel.updates += 1
        kernel.table.update_bags(
            self.unique.keys,
            self._current_rows(),
            self.unique,
            gradients_BD,
            offsets=offsets,
            weights=weights,
            lr=kernel.learning_rate,
            step=kernel.updates,
        )
        kernel.begin_step()

    def _current_rows(self) -> torch.Tensor:
        """Returns the rows of the keys, (W,), and searches them again if they may have become invalid."""
        table = self.kernel.table
        if self.found.are_of(table):
            return self.found.rows_W
        rows_W, _ = table.find(self.unique.keys)
        return rows_W


class TableKernel(BaseBatchedEmbedding, FusedOptimizerModule):  # type: ignore[misc]
    """Looks up the unique keys that all ranks ask this rank for. The ``OwnerLookup`` reads and updates their rows.

    With ``eval()`` nothing is inserted or counted. On CUDA it does not wait for the device.
    """

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
        self._statuses_W: torch.Tensor | None = None  #: ``KeyStatus`` of each key of the last lookup.
        self._optimizer = TableOptimizer(self)
        self.table, self.updates = self._build(), 0
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

    def forward(self, unique: UniqueKeys) -> OwnerLookup:
        """Finds the rows of the keys; inserts and counts only in training, and not when a checkpoint recomputes."""
        inserts = self.training and not is_recomputation()
        look = self.table.find_or_insert if inserts else self.table.find
        rows_W, self._statuses_W = look(unique.keys)
        return OwnerLookup(self, unique, FoundRows(self.table, rows_W, self.table.generation))

    def refused(self) -> torch.Tensor:
        """Returns the number of keys of the last lookup that got no row, () int64."""
        if self._statuses_W is None:
            return torch.zeros((), dtype=torch.int64, device=self._device)
        return (self._statuses_W == KeyStatus.NO_ROOM.value).sum()

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
