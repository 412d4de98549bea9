# SPDX-License-Identifier: Apache-2.0
"""Hybrid training: embedding tables that learn asynchronously within a bound, and a synchronous dense model.

Rows are on parameter servers (``headway hybrid ps``). A lookup may lack the updates of the last ``staleness`` steps,
and never more: servers hold its answer back. One model and loop run with any ``mode``.

::

    from headway import hybrid

    dense = hybrid.DenseOptimizer(model, Adam(lr=0.002))
    tables = hybrid.connect("ctr.toml", tables=[...], features=[...], dense=dense)
    for batch in hybrid.batches(tables, source):       # source yields hybrid.Batch
        dense.zero_grad()
        loss_of(model(tables(batch.features), batch.dense), batch.labels).backward()
        dense.step()
        tables.optimizer.step()
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
import torch.distributed as dist

from headway._hybrid import ServerStatus
from headway.config_files import ConfigError
from headway.embedding import FeatureConfig, HashTableCollection, TableConfig
from headway.embedding.process_groups import GroupOrLocal, resolve_group
from headway.hybrid.batch_counts import BatchCounts
from headway.hybrid.batch_window import HybridBatch
from headway.hybrid.batches import Batch, batches
from headway.hybrid.checkpoints import Checkpoint, Checkpoints
from headway.hybrid.config import HybridConfig
from headway.hybrid.dense_optimizer import DenseOptimizer
from headway.hybrid.lookups import BatchRef, Loader
from headway.hybrid.tables import HybridTables

__all__ = [
    "Batch",
    "BatchCounts",
    "BatchRef",
    "Checkpoint",
    "Checkpoints",
    "ConfigError",
    "DenseOptimizer",
    "HybridBatch",
    "HybridConfig",
    "HybridTables",
    "Loader",
    "ServerStatus",
    "batches",
    "connect",
]


def connect(
    config: HybridConfig | str | os.PathLike[str],
    *,
    tables: Iterable[TableConfig],
    features: Iterable[FeatureConfig],
    dense: DenseOptimizer | None = None,
    process_group: GroupOrLocal = None,
    seed: int = 0,
    num_threads: int | None = None,
    device: torch.device | str = "cpu",
) -> HybridTables | HashTableCollection:
    """Connects this dense worker with the parameter servers. All dense workers call it together.

    Args:
        config: settings, or their file.
        tables, features, process_group, seed, num_threads, device: see ``HybridTables``.
        dense: optimizer of the dense model, needed with mode ``async``. With the others its steps add the gradients of
            all dense workers. None: the caller trains the dense model.
    Returns:
        with mode ``local`` a ``HashTableCollection`` with ``gradient_reduction="sum"``, else a ``HybridTables``.
    Raises:
        ConfigError: a setting is wrong.
        ValueError: an argument is wrong, dense workers have different initial parameters, or the secret of the job is
            missing.
        RuntimeError: a server cannot be reached, or has other tables. The message names it.
    """
    settings = HybridConfig.of_argument(config)
    if process_group is None and not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            f"there are {os.environ['WORLD_SIZE']} dense workers and no process group: call "
            "torch.distributed.init_process_group() before, or pass process_group=LOCAL for a trainer of one worker"
        )
    if dense is not None and settings.mode != "async":
        dense.bind(resolve_group(process_group))
    if settings.mode == "local":
        return HashTableCollection(
            tables=tables,
            features=features,
            process_group=process_group,
            gradient_reduction="sum",
            seed=seed,
            num_threads=num_threads if torch.device(device).type == "cpu" else None,
            device=device,
        )
    return HybridTables(
        settings,
        tables=tables,
        features=features,
        dense=dense,
        process_group=process_group,
        seed=seed,
        num_threads=num_threads,
        device=device,
    )
