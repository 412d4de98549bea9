# SPDX-License-Identifier: Apache-2.0
"""Runs calls in a background thread, a few of them ahead of the consumer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_In = TypeVar("_In")
_Out = TypeVar("_Out")

_CALLS_AHEAD = 8  # A call handles a block, which has 20 to 100 MB if embeddings are wide.


def in_background(thread: ThreadPoolExecutor, call: Callable[[_In], _Out], values: Iterable[_In]) -> Iterator[_Out]:
    """Yields ``call(value)`` for each value, in order. Calls run in ``thread``, up to ``_CALLS_AHEAD`` in advance.

    Calls that have not begun are cancelled if the consumer stops early or a call raises.
    """
    calls: deque[Future[_Out]] = deque()
    try:
        for value in values:
            calls.append(thread.submit(call, value))
            if len(calls) > _CALLS_AHEAD:
                yield calls.popleft().result()
        while calls:
            yield calls.popleft().result()
    finally:
        for each in calls:
            each.cancel()
