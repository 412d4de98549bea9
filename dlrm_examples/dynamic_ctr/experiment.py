"""What is trained: once for all systems of a comparison, and what a system is."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dlrm_examples.dynamic_ctr.tables import TableLimits
from dlrm_examples.dynamic_ctr.trainer import TrainerSettings

Kind = Literal["static", "dynamic"]


@dataclass(frozen=True, kw_only=True)
class Restart:
    """All ranks save and end, and others go on.

    Attributes:
        at: share of the training after which they do, rounded down to whole batches.
        num_ranks: that go on.
    """

    at: float
    num_ranks: int

    def __post_init__(self) -> None:
        if not 0.0 < self.at < 1.0:
            raise ValueError(f"a restart must be at a share of the training between 0 and 1, not {self.at}")


@dataclass(frozen=True, kw_only=True)
class System:
    """A way to train: one line of a comparison.

    Attributes:
        kind: of its tables; static ones are those of one rank.
        limits: of dynamic tables.
        num_ranks: that share tables and batches, up to the restart if there is one.
    """

    kind: Kind
    limits: TableLimits = field(default_factory=TableLimits)
    num_ranks: int = 1
    restart: Restart | None = None

    def __post_init__(self) -> None:
        if self.kind == "static" and (self.limits != TableLimits() or self.num_ranks != 1 or self.restart is not None):
            raise ValueError(f"static tables have no limits and are of one rank without a restart: {self}")

    @property
    def name(self) -> str:
        """For the reader: what is not as by default."""
        parts: list[str] = [self.kind]
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
    """What all systems have in common.

    Attributes:
        data: the log.
        history: longest list of recent items.
        num_train: examples of an epoch, in time order; all later ones are for evaluation.
        epochs: passes over them.
        settings: of the trainer; the seed of its tables gives way to that of a run.
        seeds: a run for each.
        timeout_s: for the ranks that one part of a training needs.
    """

    data: Path
    history: int
    num_train: int
    epochs: int
    settings: TrainerSettings
    seeds: tuple[int, ...]
    timeout_s: float

    def examples_after(self, share: float) -> int:
        """Examples in ``share`` of the training, in whole batches, so that a stop there changes no batch."""
        total = self.epochs * self.num_train
        if share >= 1.0:
            return total
        epochs, examples = divmod(int(share * total), self.num_train)
        return epochs * self.num_train + examples - examples % self.settings.batch_size
