"""How all ranks of a benchmark give a system up together, where it fails at some of them."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from benchmarks.harness.errors import BenchmarkError

_Result = TypeVar("_Result")


class _Failure(NamedTuple):
    """As text, which holds no tensors as an exception does."""

    reason: str  #: a line
    traceback: str


class _Outcome(NamedTuple):
    """Of an action on one rank."""

    result: Any
    failure: _Failure | None


class SystemFailure(Exception):
    """A system failed at a rank, and all ranks know; says which rank, and its traceback."""


def on_all_ranks(action: Callable[[], _Result], device: torch.device) -> list[_Result]:
    """Calls ``action`` on all ranks, which begin together, and waits until the devices of all have nothing to do.

    Every rank must call it at the same point. ``action`` must leave the default group, whose timeout bounds each wait
    here, alone, and its own groups should wait longer: then a rank that fails is the first to give up.

    Returns:
        what it gave on each rank, the same everywhere.
    Raises:
        SystemFailure: it failed at a rank, and each rank is through with it: all may go on with something else.
        BenchmarkError: it failed here, and another rank still waits for this one, or the device is lost.
    """
    dist.barrier()
    outcome = _call(action)
    outcomes = [outcome] * dist.get_world_size()
    try:
        if device.type == "cuda":
            torch.cuda.synchronize()  # What was enqueued of an exchange that others have not joined never ends.
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
    except Exception as error:  # Whatever it is: a peer's, or one that says that there is no memory.
        reason = traceback.format_exception_only(error)[0].splitlines()[0]
        return _Outcome(None, _Failure(reason, traceback.format_exc()))
