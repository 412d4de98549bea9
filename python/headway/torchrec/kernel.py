"""The part of a rank of some merged tables, as a kernel of TorchRec.

V keys that ranks ask for, W of them unique, D columns.
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

from headway._embedding import KeyStatus, Table, UniqueKeys, Workers
from headway.embedding.lookup import FoundRows
from headway.embedding.lookup_function import is_recomputation
from headway.embedding.merging import MergedTable
from headway.embedding.state_records import ReadRecords, import_records, updates_of
from headway.embedding.table_records import TablePart
from headway.torchrec.settings import GroupMember

#: Where a table's ``GroupMember`` is in TorchRec's fused_params.
MEMBER = "headway_member"


@dataclass(frozen=True)
class Lookup:
    """Keys of a batch and their rows, which may be given up or move; the table may be replaced by a state's."""

    kernel: TableKernel
    unique: UniqueKeys
    found: FoundRows

    def hand_out(self, *, offsets: torch.Tensor | None = None, weights: torch.Tensor | None = None) -> torch.Tensor:
        """(B, D): sums of vectors, one for each bag of the V keys; without ``offsets`` each key is a bag."""
        return self.kernel.table.gather_bags(self.unique, self._current_rows(), offsets=offsets, weights=weights)

    def learn(
        self, gradients_BD: torch.Tensor, *, offsets: torch.Tensor | None = None, weights: torch.Tensor | None = None
    ) -> None:
        """One update of the rows by gradients of what was handed out, which are added up in their order."""
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
        """(W,): of the keys, which are found again if rows may have been given up or moved, or the table replaced."""
        table = self.kernel.table
        if self.found.are_of(table):
            return self.found.rows_W
        rows_W, _ = table.find(self.unique.keys)
        return rows_W


class TableKernel(BaseBatchedEmbedding, FusedOptimizerModule):  # type: ignore[misc]
    """Looks unique keys of all ranks up; what it gives hands out their vectors, and learns in backward.

    With ``eval()`` nothing is inserted or counted. On CUDA it does not wait for the device.
    """

    def __init__(
        self, config: GroupedEmbeddingConfig, pg: dist.ProcessGroup, workers: Workers, device: torch.device
    ) -> None:
        super().__init__(config, pg)
        self.pg = pg
        members: list[GroupMember] = [table.fused_params[MEMBER] for table in config.embedding_tables]
        self.merged = MergedTable(tuple(member.config for member in members))
        self._seed = members[0].seed
        self._workers = workers
        self._device = device
        self.learning_rate = self.merged.config.optimizer.lr
        self._statuses_W: torch.Tensor | None = None  #: of the last lookup
        self._optimizer = TableOptimizer(self)
        self.table, self.updates = self._build(), 0
        self.begin_step()

    def _build(self) -> Table:
        return self.merged.build(seed=self._seed, num_ranks=self.pg.size(), workers=self._workers, device=self._device)

    @property
    def part(self) -> TablePart:
        """What a state has of this kernel."""
        names = tuple(table.name for table in self.merged.tables)
        return TablePart(names, self.table, self.updates, self.pg.rank(), self.pg.size())

    def part_of(self, read: ReadRecords) -> TablePart:
        """What has these records alone, in a new table; nothing here changes before ``replace_by()``.

        Raises:
            MemoryError: there is no room for all of them.
        """
        part = replace(self.part, table=self._build(), updates=updates_of(read))
        import_records(part, read)
        part.table.resume_step(part.updates + 1, part.updates)
        return part

    def replace_by(self, part: TablePart) -> None:
        """Goes on with what ``part_of()`` made. Cannot fail."""
        self.table, self.updates = part.table, part.updates

    def forward(self, unique: UniqueKeys) -> Lookup:
        inserts = self.training and not is_recomputation()
        look = self.table.find_or_insert if inserts else self.table.find
        rows_W, self._statuses_W = look(unique.keys)
        return Lookup(self, unique, FoundRows(self.table, rows_W, self.table.generation))

    def refused(self) -> torch.Tensor:
        """(): how many keys of the last lookup got no row."""
        if self._statuses_W is None:
            return torch.zeros((), dtype=torch.int64, device=self._device)
        return (self._statuses_W == KeyStatus.NO_ROOM.value).sum()

    def begin_step(self) -> None:
        """After an update."""
        _begin_step(self.table, self.updates)

    # What TorchRec asks of kernels. There are no parameters: vectors are in the table alone.

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
        """Nothing: the sharded module saves the records of tables."""
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
    # A batch may be looked up before the update of the one before it.
    table.begin_step(updates + 1, updates)


class TableOptimizer(FusedOptimizer):  # type: ignore[misc]
    """The optimizer of a kernel as TorchRec and schedulers see it: one group with a rate.

    ``step()`` and ``zero_grad()`` hand the rate to the kernel, which updates its rows in backward. The parameters are
    empty tensors under the tables' names; the state is with the rows.
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
