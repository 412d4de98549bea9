# SPDX-License-Identifier: Apache-2.0
"""Progress of a training: the line that rank 0 prints every ``log_every`` steps, and how its figures are measured.

Idea: each rank adds up its losses and waits between two lines (``Window``). For a line all ranks exchange a few
numbers.

Waits of a rank for others are those in exchanges of tables, in the last gradient bucket of DDP, and in the sums of loss
terms and losses. On CUDA they pass on streams, where the host does not see them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import headway
from headway.embedding import HashTableCollection
from headway.evaluation import LabelQuality
from headway.hybrid import HybridTables, ServerStatus
from headway.parallel.balance import Spread
from headway.training.trained_tables import TrainedTables


def counted(number: int, noun: str) -> str:
    """Formats a number of things: ``1 sample``, ``8,000 samples``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_place(step: int, num_steps: int | None, epoch: int, num_epochs: int | None) -> str:
    """Formats a step, counted from 1, and an epoch, counted from 0: ``step 2 of 126, epoch 1 of 2``."""
    of_steps = "" if num_steps is None else f" of {num_steps}"
    of_epochs = "" if num_epochs is None else f" of {num_epochs}"
    return f"step {step}{of_steps}, epoch {epoch + 1}{of_epochs}"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """State and speed of a training since the last line.

    Attributes:
        step, num_steps: optimizer steps so far, and at the end; None: it is not known, since batches have a budget.
        epoch: the present one, from 0. A line has it from 1.
        num_epochs: passes over the data.
        losses: mean loss of each head, over all ranks.
        tokens_per_s: events and contextual tokens of all ranks.
        input_wait: fraction of the time, 0 to 1, that rank 0 waited for data.
        idle: fraction of the time that ranks waited for other ranks, their mean; None on CUDA.
        exchange_wait: the part of ``idle`` in exchanges of tables. On CUDA the part of the time that streams waited for
            them; None on CPUs over other backends than headway.
        slowest_rank: the one that waited least for others; None with one rank, and on CUDA.
        server_wait: fraction of the time that ranks waited for parameter servers, their mean; None without servers. It
            is no part of ``idle``.
        staleness: mean number of steps whose updates a lookup lacked, since the servers began; None without servers.
        rows: of all tables, on ranks or servers.
        evictions: rows evicted since the training began or was resumed, or since the servers began.
        truncated: samples of all ranks since the last line whose oldest events were dropped.
        skipped_steps: steps whose gradients overflowed float16.
        seconds: since the training began.
        flops_per_s: floating-point operations of all ranks, forward and backward; None: the model does not count them.
        balance: means over the steps since the last line, if samples move between ranks; else None. ``planned_idle``:
            part of the work that ranks wait by the plan, 1 - mean / largest weight of a rank. ``unbalanced_idle``: as
            the reader divides samples. ``idle_tokens``, ``idle_samples``: the same of tokens and samples. ``moved``:
            part of the samples that move. ``measured_idle``: 1 - mean / largest time that ranks computed; only on CPUs.
            Each from 0 to 1.
        collision_share: part of the unique keys, since the training began, that the step before updated, so their rows
            were read late; None without prioritized updates.
    """

    step: int
    num_steps: int | None
    epoch: int
    losses: Mapping[str, float]
    tokens_per_s: float
    input_wait: float
    idle: float | None
    exchange_wait: float | None
    slowest_rank: int | None
    rows: int
    evictions: int
    truncated: int
    skipped_steps: int
    seconds: float
    flops_per_s: float | None
    balance: Mapping[str, float] | None = None
    collision_share: float | None = None
    server_wait: float | None = None
    staleness: float | None = None
    num_epochs: int | None = None

    def line(self) -> str:
        """Formats the line."""
        losses = ", ".join(f"{name} {loss:.4f}" for name, loss in self.losses.items())
        parts = [f"{self.tokens_per_s:,.0f} tokens/s"]
        if self.flops_per_s is not None:
            parts.append(f"{self.flops_per_s / 1e9:,.1f} GFLOP/s")
        parts.append(f"input wait {100 * self.input_wait:.1f}%")
        if self.idle is not None:
            parts.append(f"idle {100 * self.idle:.1f}%")
        elif self.exchange_wait:  # On GPUs.
            parts.append(f"wait for exchanges {100 * self.exchange_wait:.1f}%")
        if self.server_wait is not None and self.staleness is not None:
            parts.append(f"wait for servers {100 * self.server_wait:.1f}%, staleness {self.staleness:.1f}")
        if self.balance is not None:
            planned, unbalanced = self.balance["planned_idle"], self.balance["unbalanced_idle"]
            parts.append(f"planned idle {100 * planned:.1f}% (unbalanced {100 * unbalanced:.1f}%)")
        if self.collision_share is not None:
            parts.append(f"collisions {100 * self.collision_share:.1f}%")
        parts.append(f"{self.rows:,} rows")
        if self.truncated:
            parts.append(f"{counted(self.truncated, 'sample')} truncated")
        place = format_place(self.step, self.num_steps, self.epoch, self.num_epochs)
        return f"{place}: loss of {losses}; {', '.join(parts)}"


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The end of a training.

    Attributes:
        step: optimizer steps so far.
        losses: mean loss of each head in the steps of the last line.
        quality: of each label on the evaluation data; empty without them.
        checkpoint: the last one.
        report: an HTML page with plots, on rank 0; None without ``out`` or without the packages for it.
        stopped: the training was stopped by SIGTERM, and may be resumed.
        seconds: duration.
    """

    step: int
    losses: Mapping[str, float]
    quality: Mapping[str, LabelQuality]
    checkpoint: Path | None
    report: Path | None
    stopped: bool
    seconds: float


@dataclass
class Window:
    """Sums since the last line.

    Attributes:
        losses, counts: sum of losses and number of terms of each head, over all ranks.
        tokens: of all ranks.
        truncated: samples of this rank whose oldest events were dropped.
        flops: of this rank.
        input_s, reduction_s: seconds that this rank waited for data, and for sums over ranks.
        begin, begin_exchange_s, begin_server_s: monotonic clock, ``exchange_seconds()`` and ``server_seconds()`` when
            the window began, in seconds.
        begin_busy_s: seconds that each rank had computed then; empty if it is not known.
    """

    losses: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    truncated: int = 0
    flops: float = 0.0
    input_s: float = 0.0
    reduction_s: float = 0.0
    begin: float = field(default_factory=time.monotonic)
    begin_exchange_s: float = 0.0
    begin_server_s: float = 0.0
    begin_busy_s: Sequence[float] = ()

    def add(self, sums: Mapping[str, float], counts: Mapping[str, int], *, tokens: int) -> None:
        """Adds the losses of a step."""
        for name, total in sums.items():
            self.losses[name] = self.losses.get(name, 0.0) + total
            self.counts[name] = self.counts.get(name, 0) + counts[name]
        self.tokens += tokens

    def means(self) -> dict[str, float]:
        return {name: total / max(self.counts[name], 1) for name, total in self.losses.items()}


class RankFigures(NamedTuple):
    """Figures of a rank for a line, which all ranks exchange. Waits are fractions of the time since the last line."""

    rows: float
    evictions: float
    truncated: float
    input_wait: float
    exchange_wait: float  #: NaN: not known.
    reduction_wait: float
    keys_ahead: float
    collisions: float
    server_wait: float = 0.0
    staleness: float = 0.0  #: On rank 0 alone; 0 on others.


def balance_of(
    spreads: Sequence[Spread], begin_busy_s: Sequence[float], busy_s: Sequence[float]
) -> dict[str, float] | None:
    """Returns ``balance`` of a ``Progress``; None without steps.

    Args:
        spreads: of the steps since the last line.
        begin_busy_s, busy_s: seconds that each rank had computed at the last line, and now; empty: not known.
    """
    if not spreads:
        return None
    busy = [end - begin for begin, end in zip(begin_busy_s or [0.0] * len(busy_s), busy_s, strict=True)]
    measured = {"measured_idle": 1 - sum(busy) / len(busy) / max(busy)} if busy and max(busy) > 0 else {}
    means = Spread(*(sum(column) / len(spreads) for column in zip(*spreads, strict=True)))
    return {
        "planned_idle": 1 - means.weight,
        "unbalanced_idle": 1 - means.unbalanced,
        "idle_tokens": 1 - means.tokens,
        "idle_samples": 1 - means.samples,
        "moved": means.moved,
    } | measured


def exchange_seconds(group: dist.ProcessGroup | None, tables: Sequence[TrainedTables] = ()) -> float:
    """Returns how long this process has waited in exchanges.

    For tables on CUDA it is the time that streams have waited in theirs, since ``time_waits()``, and the host waits for
    the device. Otherwise it is the time in all exchanges of the group; NaN over another backend than headway.
    """
    if group is None or group.size() == 1:
        return 0.0
    of_ranks = [each for each in tables if isinstance(each, HashTableCollection)]
    if any(collection.device.type == "cuda" for collection in of_ranks):
        return sum(collection.waited_s() for collection in of_ranks)
    try:
        return float(sum(peer["wait_s"] for peer in headway.stats(group)["peers"].values()))
    except (ValueError, TypeError, RuntimeError):
        return math.nan


def server_seconds(tables: Sequence[TrainedTables]) -> float:
    """Returns how long this process has waited for parameter servers."""
    return sum(each.waited_s() for each in tables if isinstance(each, HybridTables))


def figures_of(window: Window, tables: Sequence[TrainedTables], group: dist.ProcessGroup | None) -> RankFigures:
    """Returns the figures of this rank. Rank 0 has those of the servers."""
    seconds = max(time.monotonic() - window.begin, 1e-9)
    statistics = [each.statistics() for each in tables if isinstance(each, HashTableCollection)]
    of_tables = [each for of_collection in statistics for each in of_collection["tables"].values()]
    is_first = group is None or group.rank() == 0
    servers = [status for each in tables if isinstance(each, HybridTables) and is_first for status in each.status()]
    return RankFigures(
        rows=sum(each["rows"] for each in of_tables) + sum(each.rows for each in servers),
        evictions=sum(each["evicted"] for each in of_tables) + sum(each.evicted for each in servers),
        truncated=window.truncated,
        input_wait=window.input_s / seconds,
        exchange_wait=(exchange_seconds(group, tables) - window.begin_exchange_s) / seconds,
        reduction_wait=window.reduction_s / seconds,
        keys_ahead=sum(each["traffic"]["keys_ahead"] for each in statistics),
        collisions=sum(each["traffic"]["collisions"] for each in statistics),
        server_wait=(server_seconds(tables) - window.begin_server_s) / seconds,
        staleness=_mean_staleness(servers),
    )


def _mean_staleness(servers: Sequence[ServerStatus]) -> float:
    """Returns the mean of a histogram: entry n is the number of lookups that lacked the updates of n steps."""
    lacked = sum(n * count for each in servers for n, count in enumerate(each.staleness))
    return lacked / max(sum(count for each in servers for count in each.staleness), 1)


def gather(own: RankFigures, group: dist.ProcessGroup | None, device: torch.device) -> list[RankFigures]:
    """Returns the figures of all ranks. All ranks call it."""
    if group is None or group.size() == 1:
        return [own]
    values = torch.tensor(own, dtype=torch.float64, device=device)
    of_ranks = [torch.empty_like(values) for _ in range(group.size())]
    dist.all_gather(of_ranks, values, group=group)
    return [RankFigures(*each.tolist()) for each in of_ranks]


def waits(of_ranks: Sequence[RankFigures], device: torch.device) -> dict[str, Any]:
    """Returns ``idle``, ``exchange_wait`` and ``slowest_rank`` of a ``Progress``."""
    exchanges = [each.exchange_wait for each in of_ranks]
    known = not any(math.isnan(each) for each in exchanges)
    if device.type == "cuda":
        return {"idle": None, "exchange_wait": sum(exchanges) / len(exchanges) if known else None, "slowest_rank": None}
    idle = [each.reduction_wait + (each.exchange_wait if known else 0.0) for each in of_ranks]
    return {
        "idle": sum(idle) / len(idle),
        "exchange_wait": sum(exchanges) / len(exchanges) if known else None,
        "slowest_rank": min(range(len(idle)), key=idle.__getitem__) if len(idle) > 1 else None,
    }
