# SPDX-License-Identifier: Apache-2.0
"""Settings of a dynamic table that are not in its ``EmbeddingConfig``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torchrec.modules.embedding_configs import DataType

from headway.embedding import Eviction, Initializer, Optimizer, Sgd, TableConfig, Uniform
from headway.embedding.merging import merge_key
from headway.torchrec.optimizers import optimizer_of

#: Bytes of a key in the key index, and of the count and step of its lookups, at the average load of tables.
KEY_AND_NOTE_BYTES = 44


@dataclass(frozen=True, kw_only=True)
class DynamicTable:
    """Settings of a dynamic table. Its ``EmbeddingConfig`` has name, dimension and features.

    Args:
        optimizer: optimizer of the rows; None: the one of ``apply_optimizer_in_backward()`` or ``fused_params``.
        initializer: initial values; None: uniform between the config's ``weight_init_min`` and ``weight_init_max``.
        expected_rows: number of rows over all ranks for which the planner plans memory; None: ``num_embeddings`` of the
            config. It is not a limit.
        max_rows, eviction, time_to_live, min_count, max_pending, hot_count: see ``headway.embedding.TableConfig``.
    """

    optimizer: Optimizer | None = None
    initializer: Initializer | None = None
    expected_rows: int | None = None
    max_rows: int | None = None
    eviction: Eviction | None = None
    time_to_live: int = 0
    min_count: int = 1
    max_pending: int | None = None
    hot_count: int = 0

    def __post_init__(self) -> None:
        if self.expected_rows is not None and self.expected_rows < 1:
            raise ValueError(f"expected_rows must be at least 1, not {self.expected_rows}")
        self._config("dynamic", 1, self.optimizer or Sgd(lr=0), self.initializer or Uniform(0, 0))

    def resolve(self, config: Any, fused_params: Mapping[str, Any]) -> TableConfig:
        """Combines these settings with TorchRec's configuration of a table.

        Args:
            config: its ``EmbeddingConfig`` or ``EmbeddingBagConfig``.
            fused_params: TorchRec's fused_params of this table.
        Raises:
            ValueError: something is missing, set twice, or not supported by dynamic tables.
        """
        _expect_plain(config)
        theirs = optimizer_of(fused_params, config.name)
        if theirs is not None and self.optimizer is not None:
            raise ValueError(f"table {config.name}: {theirs} is applied in backward, but DynamicTable has another one")
        optimizer = theirs or self.optimizer
        if optimizer is None:
            raise ValueError(
                f"table {config.name} has no optimizer: give one to DynamicTable or apply_optimizer_in_backward()"
            )
        return self._config(config.name, config.embedding_dim, optimizer, self.initializer or _initializer_of(config))

    def _config(self, name: str, dim: int, optimizer: Optimizer, initializer: Initializer) -> TableConfig:
        return TableConfig(
            name,
            dim=dim,
            optimizer=optimizer,
            initializer=initializer,
            max_rows=self.max_rows,
            eviction=self.eviction,
            time_to_live=self.time_to_live,
            min_count=self.min_count,
            max_pending=self.max_pending,
            hot_count=self.hot_count,
        )


@dataclass(frozen=True, eq=False)
class GroupMember:
    """A table as TorchRec groups it: tables whose members are equal get one kernel.

    Members are equal if their tables may be merged (``merge_key()``) and have the same seed of initial embeddings.
    """

    config: TableConfig
    seed: int

    def _shared(self) -> tuple[TableConfig, int]:
        return merge_key(self.config), self.seed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GroupMember) and self._shared() == other._shared()

    def __hash__(self) -> int:
        return hash(self._shared())


def _expect_plain(config: Any) -> None:
    if config.data_type != DataType.FP32:
        raise ValueError(f"table {config.name}: dynamic tables are of FP32, with BF16 for rare ids by hot_count")
    for name in ("use_virtual_table", "enable_embedding_update", "need_pos", "stash_weights"):
        if getattr(config, name, False):
            raise ValueError(f"table {config.name}: dynamic tables have nothing for {name}")


def _initializer_of(config: Any) -> Uniform:
    init_fn = config.init_fn
    if not isinstance(init_fn, functools.partial) or init_fn.func is not torch.nn.init.uniform_:
        raise ValueError(f"table {config.name}: init_fn cannot fill a dynamic table; give DynamicTable an initializer")
    return Uniform(float(init_fn.keywords["a"]), float(init_fn.keywords["b"]))
