# SPDX-License-Identifier: Apache-2.0
"""The layouts behind one interface, and the choice between them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, get_args

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from headway.nn.attention import AttentionExchange
from headway.nn.config import HSTUConfig
from headway.parallel.context_parallel.chunk_exchange import ChunkExchange, GridExchange
from headway.parallel.context_parallel.chunks_plan import ChunksPlan, Cut, divide_chunks
from headway.parallel.context_parallel.grid_plan import GridPlan
from headway.parallel.context_parallel.group_batch import GroupBatch, Integers
from headway.parallel.context_parallel.head_exchange import HeadExchange
from headway.parallel.context_parallel.plan import HeadsPlan

LayoutName = Literal["heads", "chunks", "grid"]


class Layout(Protocol):
    """Division of a batch among the ranks of a group."""

    @property
    def name(self) -> LayoutName:
        """Name of the layout."""
        ...

    @property
    def imbalance(self) -> float:
        """Pairs of the busiest rank over the mean."""
        ...

    def tokens_of(self, rank: int) -> Integers:
        """Tokens that a rank owns, ascending."""
        ...

    def pairs_of(self, rank: int) -> int:
        """Pairs of a query and a key that a rank computes in a layer, over heads."""
        ...

    def bytes_sent(self, rank: int, element_bytes: int) -> tuple[int, int]:
        """Bytes that a rank sends to others in a layer: forward, and backward without anything recomputed."""
        ...

    def attended_elements(self, rank: int) -> tuple[int, int]:
        """Elements of a layer's queries, and of its keys and values, that a rank attends with."""
        ...

    def exchange(self, rank: int, group: dist.ProcessGroup | None) -> AttentionExchange:
        """Returns the exchanges of a layer on a rank."""
        ...

    def query_runs(self, rank: int) -> QueryRuns | None:
        """Returns the queries that a rank attends with; None: all tokens of the batch, for some heads."""
        ...


@dataclass(frozen=True, kw_only=True)
class QueryRuns:
    """Queries of a rank: ``offsets`` (B + 1,) int64 and ``runs`` (B, 3, 2) int32, as ``Sequences`` has them.

    ``tokens``, (queries,) int64, are those of the batch, ascending. All are on the host.
    """

    offsets: Tensor
    runs: Tensor
    tokens: Tensor


class HeadsLayout:
    """``HeadsPlan`` of a batch."""

    name: LayoutName = "heads"

    def __init__(self, batch: GroupBatch, config: HSTUConfig, num_ranks: int) -> None:
        self._batch, self._config = batch, config
        self.plan = HeadsPlan(num_ranks=num_ranks, num_tokens=batch.num_tokens, num_heads=config.num_heads)

    @property
    def imbalance(self) -> float:
        return self.plan.imbalance

    def tokens_of(self, rank: int) -> Integers:
        own = self.plan.tokens_of(rank)
        return np.arange(own.start, own.stop)

    def pairs_of(self, rank: int) -> int:
        return self.plan.pairs_of(rank, self._batch, self._config)

    def bytes_sent(self, rank: int, element_bytes: int) -> tuple[int, int]:
        return self.plan.bytes_sent(rank, self._config, element_bytes)

    def attended_elements(self, rank: int) -> tuple[int, int]:
        return _elements(self._config, len(self.plan.heads_of(rank)), self.plan.num_tokens, self.plan.num_tokens)

    def exchange(self, rank: int, group: dist.ProcessGroup | None) -> AttentionExchange:
        return HeadExchange(self.plan, rank, group)

    def query_runs(self, rank: int) -> QueryRuns | None:
        return None


class _PlanLayout:
    """Chunks and grids pass these questions on to their plan."""

    @property
    def plan(self) -> ChunksPlan | GridPlan:
        raise NotImplementedError

    @property
    def imbalance(self) -> float:
        return self.plan.imbalance

    def tokens_of(self, rank: int) -> Integers:
        return self.plan.tokens_of(rank)

    def pairs_of(self, rank: int) -> int:
        return self.plan.pairs_of(rank)

    def bytes_sent(self, rank: int, element_bytes: int) -> tuple[int, int]:
        return self.plan.bytes_sent(rank, element_bytes)


class ChunksLayout(_PlanLayout):
    """``ChunksPlan`` of a batch, with the move of one rank kept for all layers."""

    name: LayoutName = "chunks"

    def __init__(self, batch: GroupBatch, config: HSTUConfig, num_ranks: int, cut: Cut) -> None:
        self._batch, self._config, self._num_ranks, self._cut = batch, config, num_ranks, cut
        self._exchanges: dict[int, ChunkExchange] = {}

    @cached_property
    def plan(self) -> ChunksPlan:
        return divide_chunks(self._batch, self._config, self._num_ranks, cut=self._cut)

    def attended_elements(self, rank: int) -> tuple[int, int]:
        return _elements(self._config, self._config.num_heads, len(self.tokens_of(rank)), self._batch.num_tokens)

    def exchange(self, rank: int, group: dist.ProcessGroup | None) -> AttentionExchange:
        if rank not in self._exchanges:
            self._exchanges[rank] = ChunkExchange(self.plan.key_move(rank), group)
        return self._exchanges[rank]

    def query_runs(self, rank: int) -> QueryRuns | None:
        return _runs_of(self.plan, rank)


class GridLayout(_PlanLayout):
    """``GridPlan`` of a batch, with the exchange of one rank kept for all layers."""

    name: LayoutName = "grid"

    def __init__(self, batch: GroupBatch, config: HSTUConfig, shape: tuple[int, int], cut: Cut) -> None:
        self._batch, self._config, self._shape, self._cut = batch, config, shape, cut
        self._exchanges: dict[int, GridExchange] = {}

    @cached_property
    def plan(self) -> GridPlan:
        num_head_ranks, num_groups = self._shape
        chunks = divide_chunks(self._batch, self._config, num_groups, cut=self._cut)
        return GridPlan(chunks=chunks, num_head_ranks=num_head_ranks)

    def attended_elements(self, rank: int) -> tuple[int, int]:
        heads, (_, index) = self.plan.heads(rank), self.plan.place_of(rank)
        return _elements(self._config, len(heads.heads_of(index)), heads.num_tokens, self._batch.num_tokens)

    def exchange(self, rank: int, group: dist.ProcessGroup | None) -> AttentionExchange:
        if rank not in self._exchanges:
            heads = HeadExchange(
                self.plan.heads(rank), self.plan.place_of(rank)[1], group, self.plan.head_members(rank)
            )
            self._exchanges[rank] = GridExchange(heads, ChunkExchange(self.plan.key_move(rank), group))
        return self._exchanges[rank]

    def query_runs(self, rank: int) -> QueryRuns | None:
        return _runs_of(self.plan.chunks, self.plan.place_of(rank)[0])


def _elements(config: HSTUConfig, num_heads: int, num_queries: int, num_keys: int) -> tuple[int, int]:
    return num_queries * num_heads * config.qk_dim, num_keys * num_heads * (config.qk_dim + config.v_dim)


def _runs_of(plan: ChunksPlan, rank: int) -> QueryRuns:
    return QueryRuns(
        offsets=torch.from_numpy(plan.query_offsets(rank)),
        runs=torch.from_numpy(plan.runs[rank]).to(torch.int32).contiguous(),
        tokens=torch.from_numpy(plan.tokens_of(rank)),
    )


@dataclass(frozen=True, kw_only=True)
class LayoutChoice:
    """A layout for groups of a size.

    Attributes:
        name: the layout.
        shape: U and G of a grid: ranks of a group, and groups. Heads are (C, 1), chunks (1, C).
        cut: sequences that are cut into chunks.
    """

    name: LayoutName
    shape: tuple[int, int]
    cut: Cut

    def divide(self, batch: GroupBatch, config: HSTUConfig) -> Layout:
        """Divides a batch."""
        if self.name == "heads":
            return HeadsLayout(batch, config, self.shape[0])
        if self.name == "chunks":
            return ChunksLayout(batch, config, self.shape[1], self.cut)
        return GridLayout(batch, config, self.shape, self.cut)


def choose_layout(name: str, config: HSTUConfig, num_ranks: int, cut: Cut) -> LayoutChoice:
    """Returns the layout for a group.

    Args:
        name: "heads", "chunks", "grid(U, G)", or "auto": heads if there are at least as many as ranks. Else a grid with
            the largest U that divides both ranks and heads, or chunks if that is 1.
        config: config of the layers.
        num_ranks: C.
        cut: see ``divide_chunks()``.

    Raises:
        ValueError: there is no such layout, its ranks cannot divide the heads, or U times G is not C.
    """
    if cut not in get_args(Cut):
        raise ValueError(f"cut must be one of {', '.join(get_args(Cut))}, not {cut!r}")
    grid = re.fullmatch(r"grid\((\d+), ?(\d+)\)", name)
    if grid:
        shape = int(grid[1]), int(grid[2])
        if shape[0] * shape[1] != num_ranks:
            raise ValueError(f"{name} is for {shape[0] * shape[1]} ranks, and the group has {num_ranks}")
    elif name == "heads" or (name == "auto" and num_ranks <= config.num_heads):
        shape = num_ranks, 1
    elif name == "chunks":
        shape = 1, num_ranks
    elif name == "auto":
        num_head_ranks = math.gcd(num_ranks, config.num_heads)
        shape = num_head_ranks, num_ranks // num_head_ranks
    else:
        raise ValueError(f'layout must be auto, heads, chunks or "grid(U, G)", not {name!r}')
    HeadsPlan(num_ranks=shape[0], num_tokens=0, num_heads=config.num_heads)  # Raises if it is impossible.
    if shape[1] == 1:
        return LayoutChoice(name="heads", shape=shape, cut=cut)
    return LayoutChoice(name="chunks" if shape[0] == 1 else "grid", shape=shape, cut=cut)
