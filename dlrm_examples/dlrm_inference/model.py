# SPDX-License-Identifier: Apache-2.0
"""DLRM for inference. Embedding tables are sharded table-wise over the ranks.

Shapes: B rows of a rank's mini-batch, T tables, D columns of an embedding row, F dense inputs.
Source: Naumov et al., "Deep Learning Recommendation Model"; default sizes are its Criteo Kaggle configuration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F


@dataclass(frozen=True, kw_only=True)
class DlrmConfig:
    """Sizes of a model. The weights depend only on these and the seed, not on the number of ranks.

    Attributes:
        table_rows: rows of each embedding table.
        num_dense: F, inputs of the bottom MLP.
        dim: D, columns of an embedding row and outputs of the bottom MLP.
        bottom_hidden: hidden widths of the bottom MLP.
        top_hidden: hidden widths of the top MLP, which has one output.
        seed: seed of all weights.
    """

    table_rows: tuple[int, ...]
    num_dense: int = 13
    dim: int = 16
    bottom_hidden: tuple[int, ...] = (512, 256, 64)
    top_hidden: tuple[int, ...] = (512, 256)
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.table_rows or min(self.table_rows) < 1:
            raise ValueError(f"table_rows must name at least one table of at least one row, not {self.table_rows}")
        if self.num_dense < 1 or self.dim < 1:
            raise ValueError(f"num_dense and dim must be at least 1, not {self.num_dense} and {self.dim}")

    @property
    def num_tables(self) -> int:
        """T, the number of embedding tables."""
        return len(self.table_rows)

    @property
    def row_bytes(self) -> int:
        """Bytes of an embedding row (float32)."""
        return 4 * self.dim

    @property
    def bottom_widths(self) -> tuple[int, ...]:
        """Widths of all layers of the bottom MLP, from its inputs to its outputs."""
        return (self.num_dense, *self.bottom_hidden, self.dim)

    @property
    def top_widths(self) -> tuple[int, ...]:
        """Widths of all layers of the top MLP. Inputs: the dense output and the dot product of each vector pair."""
        num_vectors = self.num_tables + 1
        return (self.dim + num_vectors * (num_vectors - 1) // 2, *self.top_hidden, 1)


class EmbeddingShard:
    """The tables of one rank, stacked in one matrix, so that one call looks up rows of all of them."""

    def __init__(self, config: DlrmConfig, tables: Sequence[int]) -> None:
        rows = [config.table_rows[table] for table in tables]
        self.tables = tables
        self.first_row = [sum(rows[:i]) for i in range(len(rows))]
        """Row of the matrix where each table begins."""
        self.weight = torch.empty(sum(rows), config.dim)
        for table, first, count in zip(tables, self.first_row, rows, strict=True):
            _fill_table(self.weight[first : first + count], config.seed, table)

    def to(self, device: torch.device) -> EmbeddingShard:
        """Moves the tables to ``device``; returns self."""
        self.weight = self.weight.to(device)
        return self

    def lookup(self, indices: torch.Tensor, bag_offsets: torch.Tensor | None) -> torch.Tensor:
        """Looks up rows of the stacked matrix and sums them over each bag.

        Args:
            indices: (N,) int64 rows of the stacked matrix.
            bag_offsets: (M,) int64, first index of each bag in ``indices``; None: each index is a bag.
        Returns:
            (M, D) float32, or (N, D) without ``bag_offsets``.
        """
        if bag_offsets is None:
            return self.weight.index_select(0, indices)
        return F.embedding_bag(indices, self.weight, bag_offsets, mode="sum")


class Dlrm:
    """The two MLPs and the interaction, replicated on every rank. ``EmbeddingShard`` holds the tables."""

    def __init__(self, config: DlrmConfig) -> None:
        self.config = config
        self._bottom = _make_layers(config.bottom_widths, seed=_seed_of(config.seed, "bottom", 0))
        self._top = _make_layers(config.top_widths, seed=_seed_of(config.seed, "top", 0))
        num_vectors = config.num_tables + 1
        # Indices of the pairs below the diagonal in the flattened matrix of dot products.
        row, column = torch.tril_indices(num_vectors, num_vectors, offset=-1)
        self._pair = row * num_vectors + column

    def to(self, device: torch.device) -> Dlrm:
        """Moves the weights to ``device``; returns self."""
        for layers in (self._bottom, self._top):
            layers[:] = [(weight.to(device), bias.to(device)) for weight, bias in layers]
        self._pair = self._pair.to(device)
        return self

    def bottom(self, dense: torch.Tensor) -> torch.Tensor:
        """Applies the bottom MLP: (B, F) dense inputs to (B, D)."""
        for weight, bias in self._bottom:
            dense = torch.relu(F.linear(dense, weight, bias))
        return dense

    def predict(self, dense_output: torch.Tensor, pooled: Sequence[torch.Tensor]) -> torch.Tensor:
        """Predicts the probability of a click.

        Args:
            dense_output: (B, D) output of the bottom MLP.
            pooled: T tensors (B, D), the pooled embeddings of each table, table 0 first.
        Returns:
            (B,) float32 in [0, 1].
        """
        vectors = torch.stack([dense_output, *pooled], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        hidden = torch.cat([dense_output, products.index_select(1, self._pair)], dim=1)
        for weight, bias in self._top[:-1]:
            hidden = torch.relu(F.linear(hidden, weight, bias))
        weight, bias = self._top[-1]
        return torch.sigmoid(F.linear(hidden, weight, bias)).squeeze(1)


def pool_rows(rows: torch.Tensor, bag_offsets: torch.Tensor) -> torch.Tensor:
    """Sums (N, D) rows over bags with first rows ``bag_offsets`` (M,); returns (M, D)."""
    return F.embedding_bag(torch.arange(rows.shape[0], device=rows.device), rows, bag_offsets, mode="sum")


def _fill_table(weight: torch.Tensor, seed: int, table: int) -> None:
    generator = torch.Generator().manual_seed(_seed_of(seed, "table", table))
    bound = 1.0 / math.sqrt(weight.shape[0])
    weight.uniform_(-bound, bound, generator=generator)


def _make_layers(widths: tuple[int, ...], *, seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for inputs, outputs in pairwise(widths):
        weight = torch.empty(outputs, inputs).normal_(0.0, math.sqrt(2.0 / (inputs + outputs)), generator=generator)
        bias = torch.empty(outputs).normal_(0.0, math.sqrt(1.0 / outputs), generator=generator)
        layers.append((weight, bias))
    return layers


def _seed_of(seed: int, part: str, index: int) -> int:
    """Seed of one part of the model: every rank that builds the part gets the same weights."""
    return seed * 1_000_003 + {"bottom": 1, "top": 2, "table": 3}[part] * 10_007 + index
