# SPDX-License-Identifier: Apache-2.0
"""Configuration of a comparison: the experiment that all systems share, and the systems."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dlrm_examples.streaming_ctr.tables import TableLimits
from dlrm_examples.streaming_ctr.trainer import TrainerSettings

Kind = Literal["static", "dynamic"]


@dataclass(frozen=True, kw_only=True)
class Restart:
    """A restart: all ranks save a checkpoint and end; new ranks load it and go on.

    Attributes:
        at: share of the training before the restart, between 0 and 1, rounded down to whole batches.
        num_ranks: number of ranks after the restart.
    """

    at: float
    num_ranks: int

    def __post_init__(self) -> None:
        if not 0.0 < self.at < 1.0:
            raise ValueError(f"a restart must be at a share of the training between 0 and 1, not {self.at}")


@dataclass(frozen=True, kw_only=True)
class Servers:
    """Parameter servers that have the rows of dynamic tables.

    Attributes:
        mode: ``sync`` waits for the updates of all steps before; ``hybrid`` lets lookups miss some; ``async`` has the
            dense model on the servers, too, and no rank waits for another.
        staleness: steps whose updates lookups may miss, with ``hybrid``, and with ``async`` those of the same rank.
        count: servers, which are processes of this host.
        is_exact: every lookup misses the updates of the last ``staleness`` steps, and no others.
        compresses: messages with ids, and with embeddings and gradients, are compressed.
        combine: ``sum`` adds the gradients of all ranks before an update; ``none`` updates by each.
        sync_rows: with ``hybrid``, tables of up to so many ids in the log are in step on the ranks; 0: none.
    """

    mode: Literal["sync", "hybrid", "async"]
    staleness: int = 0
    count: int = 2
    is_exact: bool = False
    compresses: bool = False
    combine: Literal["sum", "none"] = "sum"
    sync_rows: int = 0


@dataclass(frozen=True, kw_only=True)
class System:
    """One trained system of a comparison.

    Attributes:
        kind: kind of its tables. Static tables run on one rank only.
        limits: limits of dynamic tables.
        num_ranks: ranks that share tables and batches, up to the restart if there is one.
        restart: None: train without a restart.
        servers: parameter servers of dynamic tables; None: the ranks have the rows.
    """

    kind: Kind
    limits: TableLimits = field(default_factory=TableLimits)
    num_ranks: int = 1
    restart: Restart | None = None
    servers: Servers | None = None

    def __post_init__(self) -> None:
        if self.kind == "static" and (self.limits != TableLimits() or self.num_ranks != 1 or self.restart is not None):
            raise ValueError(f"static tables have no limits and are of one rank without a restart: {self}")
        if self.servers is not None and (self.kind == "static" or self.restart is not None):
            raise ValueError("parameter servers have dynamic tables, and no restart")

    @property
    def name(self) -> str:
        """Name in reports: the kind and all settings that differ from the defaults."""
        parts: list[str] = [self.kind if self.servers is None else self.servers.mode]
        if self.servers is not None:
            if self.servers.mode != "sync":
                parts.append(f"staleness {self.servers.staleness}{', exact order' if self.servers.is_exact else ''}")
            if self.servers.combine == "none":
                parts.append("gradients not added")
            if self.servers.sync_rows > 0:
                parts.append(f"tables up to {self.servers.sync_rows} rows in step")
            parts.append(f"{self.servers.count} servers{', compressed' if self.servers.compresses else ''}")
        if self.restart is not None:
            parts.append(f"{self.num_ranks} then {self.restart.num_ranks} ranks")
        elif self.num_ranks > 1:
            parts.append(f"{self.num_ranks} ranks")
        if self.limits.max_rows is not None:
            parts.append(f"{self.limits.eviction or 'at most'} {self.limits.max_rows} rows")
        if self.limits.min_count > 1:
            parts.append(f"rows from look-up {self.limits.min_count} on")
        if self.limits.hot_count > 0:
            parts.append(f"bfloat16 below {self.limits.hot_count} look-ups")
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Settings that all systems share.

    Attributes:
        data: path of the log.
        history: longest list of recent items.
        num_train: examples of an epoch, in time order; all later examples are for evaluation.
        epochs: passes over the training examples.
        settings: settings of the trainer; each run replaces the seed of its tables.
        seeds: one run per seed.
        timeout_s: time limit in seconds for the ranks of one part of a training, up to a restart or the end.
    """

    data: Path
    history: int
    num_train: int
    epochs: int
    settings: TrainerSettings
    seeds: tuple[int, ...]
    timeout_s: float

    def examples_after(self, share: float) -> int:
        """Examples in ``share`` of the training, rounded down to whole batches, so that a stop changes no batch."""
        total = self.epochs * self.num_train
        if share >= 1.0:
            return total
        epochs, examples = divmod(int(share * total), self.num_train)
        return epochs * self.num_train + examples - examples % self.settings.batch_size
