# SPDX-License-Identifier: Apache-2.0
"""Checks over a group of CPU tensors: an error of one rank is raised on all of them, before anything else is sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist


def gather_objects(own: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """Returns a small object of each rank, in the order of ranks. None: this rank is alone."""
    if group is None or group.size() == 1:
        return [own]
    found: list[Any] = [None] * group.size()
    dist.all_gather_object(found, own, group=group)
    return found


def expect_equal(what: str, of_ranks: Sequence[Any]) -> None:
    """Checks that a value is the same on all ranks.

    Raises:
        ValueError: it is not; the message has both values.
    """
    for rank, each in enumerate(of_ranks):
        if each != of_ranks[0]:
            raise ValueError(f"{what} differ between ranks: rank 0 has {of_ranks[0]}, and rank {rank} has {each}")


def error_of(check: Callable[[], Any]) -> str | None:
    """Returns the message of an error of arguments that ``check`` raises, to be raised on all ranks; None: no error."""
    try:
        check()
    except (ValueError, TypeError) as error:
        return str(error)
    return None


def raise_first(errors: Sequence[str | None]) -> None:
    """Raises the error of the first rank that has one.

    Raises:
        ValueError: a rank has an error; the message names the rank.
    """
    for rank, error in enumerate(errors):
        if error is not None:
            raise ValueError(f"rank {rank}: {error}")
