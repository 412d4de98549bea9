# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a training. Any number of ranks can resume from one.

A checkpoint is a folder with ``tables/`` (written by ``headway.embedding``) and ``dense.pt`` (model, optimizer,
progress, and the step of the tables). ``dense.pt`` is written last; its step tells whether both belong together.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

from dlrm_examples.streaming_ctr.dynamic_tables import DynamicTables
from dlrm_examples.streaming_ctr.group import all_gather, rank_of
from dlrm_examples.streaming_ctr.trainer import Trainer
from dlrm_examples.support.data.log_format import DataError

_TABLES, _DENSE = "tables", "dense.pt"


def save(folder: Path, trainer: Trainer, tables: DynamicTables, group: dist.ProcessGroup | None) -> None:
    """Saves tables and trainer of all ranks. Collective: no rank returns before the checkpoint is complete.

    Raises:
        headway.embedding.CheckpointError, OSError: a rank could not write.
    """
    tables.save(folder / _TABLES)
    if rank_of(group) == 0:
        state = {**trainer.state_dict(), "table_step": tables.collection.step}
        new = folder / f"{_DENSE}.new"
        with new.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, folder / _DENSE)
    all_gather(None, group)


def load(folder: Path, trainer: Trainer, tables: DynamicTables) -> None:
    """Restores trainer and tables. Collective; the number of ranks may differ from that at ``save()``.

    Raises:
        headway.embedding.CheckpointError: the tables are missing or damaged, or do not match the configuration.
        DataError: ``dense.pt`` cannot be read, or a save was interrupted between the tables and ``dense.pt``.
    """
    tables.load(folder / _TABLES)
    path = folder / _DENSE
    try:
        state = torch.load(path, weights_only=True)
        table_step = state["table_step"]
        trainer.load_state_dict(state)
    except (OSError, RuntimeError, ValueError, KeyError, EOFError) as error:
        raise DataError(f"{path}: {str(error).splitlines()[0]}") from error
    if table_step != tables.collection.step:
        raise DataError(f"{path} is of step {table_step}, the tables beside it of step {tables.collection.step}")
