# SPDX-License-Identifier: Apache-2.0
"""Lets all ranks of a benchmark drop a system (a library under test) together if it fails at some of them."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from benchmarks.harness.errors import BenchmarkError

_Result = TypeVar("_Result")


class _Failure(NamedTuple):
    """An error as text. Unlike an exception, it keeps no tensors alive."""

    reason: str  #: One line.
    traceback: str


class _Outcome(NamedTuple):
    """Result or error of an action on one rank."""

    result: Any
    failure: _Failure | None


class SystemFailure(Exception):
    """A system failed at a rank, and all ranks know it. The message holds the rank and its traceback."""


def on_all_ranks(action: Callable[[], _Result], device: torch.device) -> list[_Result]:
    """Calls ``action`` on all ranks at the same time, and waits until the devices of all ranks are idle.

    Every rank must call it at the same point. ``action`` must not use the default group: its timeout bounds each wait
    here. The timeouts of other groups should be longer, so that a rank that fails is the first to give up.

    Returns:
        the result of each rank, the same list everywhere.
    Raises:
        SystemFailure: the action failed at a rank, and each rank has ended it: all may go on with something else.
        BenchmarkError: the action failed here, and another rank still waits for this one, or the device is lost.
    """
    dist.barrier()
    outcome = _call(action)
    outcomes = [outcome] * dist.get_world_size()
    try:
        if device.type == "cuda":
            torch.cuda.synchronize()  # Kernels of an exchange that other ranks have not joined never end.
        dist.all_gather_object(outcomes, outcome)
    except RuntimeError as error:
        if outcome.failure is None:
            raise
        raise BenchmarkError(f"it failed, and the ranks cannot go on: {outcome.failure.reason}") from error
    for rank, each in enumerate(outcomes):
        if each.failure is not None:
            raise SystemFailure(f"rank {rank}:\n{each.failure.traceback}")
    return [each.result for each in outcomes]


def _call(action: Callable[[], Any]) -> _Outcome:
    try:
        return _Outcome(action(), None)
    except Exception as error:  # Any error, such as a lost peer or a lack of memory.
        reason = traceback.format_exception_only(error)[0].splitlines()[0]
        return _Outcome(None, _Failure(reason, traceback.format_exc()))
