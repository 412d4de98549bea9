"""Joins the default group of a benchmark's ranks, and leaves all groups."""

from __future__ import annotations

import datetime
from typing import Protocol

import torch.distributed as dist


class JoinSettings(Protocol):
    """Fields that the settings of every benchmark's ranks have."""

    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    @property
    def store(self) -> str: ...
    @property
    def timeout_s(self) -> int: ...


def join(settings: JoinSettings) -> datetime.timedelta:
    """Joins the default group (Gloo). Returns the timeout, for further groups."""
    timeout = datetime.timedelta(seconds=settings.timeout_s)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{settings.store}",
        rank=settings.rank,
        world_size=settings.ranks,
        timeout=timeout,
    )
    return timeout


def leave() -> None:
    """Leaves all groups after every rank is done."""
    dist.barrier()
    dist.destroy_process_group()
