"""Work in a thread, some of it ahead of what is asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_In = TypeVar("_In")
_Out = TypeVar("_Out")

_CALLS_AHEAD = 8  # on blocks of 20 to 100 MB each, with wide vectors


def in_background(thread: ThreadPoolExecutor, call: Callable[[_In], _Out], values: Iterable[_In]) -> Iterator[_Out]:
    """``call(value)`` for each, in their order, some of them ahead of what is asked for: in ``thread``."""
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
