# SPDX-License-Identifier: Apache-2.0
"""Calls that all dense workers make together, and that succeed or fail on all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

from headway.embedding.checkpoint import CheckpointError
from headway.embedding.checkpoint.rank_values import all_gather, broadcast

Ask = Callable[[Callable[[], Any]], tuple[Any, str | None]]


@contextlib.contextmanager
def agreed_call(name: str, *, rank: int, step: Callable[[], int], group: dist.ProcessGroup | None) -> Iterator[Ask]:
    """Runs its body on all workers, and raises on all if one fails or workers are at different steps afterwards.

    Args:
        name: of the call, for messages.
        rank: of this dense worker.
        step: returns its step, or the same number on all workers that may be at different ones.
        group: the dense workers; None: this one is alone.
    Yields:
        a function that lets the first worker call something, and returns result and error on all.
    Raises:
        RuntimeError: another worker has failed. The message names it.
        ValueError: workers are at different steps.
    """
    error: Exception | None = None

    def ask(call: Callable[[], Any]) -> tuple[Any, str | None]:
        outcome: tuple[Any, str | None] = (None, None)
        if rank == 0:
            try:
                outcome = (call(), None)
            except (CheckpointError, RuntimeError, ValueError) as failure:
                outcome = (None, str(failure))
        agreed: tuple[Any, str | None] = broadcast(outcome, group)
        return agreed

    try:
        yield ask
    except (RuntimeError, ValueError) as failure:
        error = failure
    said = None if error is None else f"dense worker {rank}: {error}"
    states = all_gather((said, step()), group)
    if error is not None:
        raise error
    errors = [each for each, _ in states if each is not None]
    if errors:
        raise RuntimeError(f"{name}: {errors[0]}")
    if len({each for _, each in states}) > 1:
        steps = ", ".join(str(each) for _, each in states)
        raise ValueError(f"{name}: dense workers are at different steps: {steps}")
