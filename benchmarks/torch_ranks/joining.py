"""How a rank of a benchmark joins the default group, and leaves all groups."""

from __future__ import annotations

import datetime
from typing import Protocol

import torch.distributed as dist


class JoinSettings(Protocol):
    """What every benchmark's settings of a rank hold."""

    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    @property
    def store(self) -> str: ...
    @property
    def timeout_s(self) -> int: ...


def join(settings: JoinSettings) -> datetime.timedelta:
    """Joins the default group, of Gloo; returns the time limit, for further groups."""
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
    """Leaves all groups, once every rank is done."""
    dist.barrier()
    dist.destroy_process_group()
