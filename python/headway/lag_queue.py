"""The pending exchanges of a loop, oldest first.

A loop that may run ahead of its peers starts one exchange a step and completes it up to ``max_lag`` steps later. The
queue keeps each exchange together with whatever the caller needs to finish that step, and says which one to wait for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch
import torch.distributed as dist

from headway.collectives import all_to_all_single
from headway.groups import find_backend

PayloadT = TypeVar("PayloadT")


class Waitable(Protocol):
    """What the queue needs of a ``torch.distributed.Work``."""

    def wait(self) -> Any:
        """Blocks until the exchange is complete; raises what made it fail."""


class LagQueue(Generic[PayloadT]):
    """First-in first-out queue of exchanges, of which at most ``max_lag`` stay pending after a push.

    Usage, the loop of a model that may lag by two steps::

        queue = headway.LagQueue(group, max_lag=2)
        for step in steps:
            work = dist.all_to_all_single(received, rows, out_splits, in_splits, group=group, async_op=True)
            for earlier in queue.push(work, (received, dense)):
                predict(*earlier)
        for earlier in queue.drain():
            predict(*earlier)

    Call sites whose exchanges need bounds of their own use a channel and a queue each::

        users, items = (headway.LagQueue(group, channel=channel) for channel in (0, 1))
        ...
        work = users.all_to_all_single(received, rows, out_splits, in_splits)
        for earlier in users.push(work, received):
            ...

    ``push()`` starts nothing and calls no collective. One thread uses a queue at a time.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        max_lag: int | Literal["auto"] | None = None,
        channel: int = 0,
    ) -> None:
        """Creates an empty queue.

        Args:
            group: a headway group, whose bound is the default; any other group needs ``max_lag``.
            max_lag: bound to use instead, at least 0; for a headway group at most its ``max_lag_limit``. With
                ``"auto"``, which needs a group made with it, the queue follows the group's recommendation: the
                smallest bound whose throughput is within 2.5% of the best on the channel's latest exchanges, and
                ``max_lag_limit`` for the first few.
            channel: the group's channel that the exchanges are on, and whose bound the queue sets. Functions of
                ``torch.distributed`` use channel 0.
        Raises:
            ValueError: no bound is known, or the bound is negative or above what the group allows, or it is "auto"
                and the group does not measure, or the group has no such channel.
        """
        self._group = group
        self._channel = channel
        self._backend = None if group is None else find_backend(group)
        if self._backend is None and channel != 0:
            raise ValueError(f"LagQueue: only a headway group has channels, so none has number {channel}")
        if max_lag is None:
            if self._backend is None:
                raise ValueError("LagQueue needs max_lag: the group is not a headway group and has no bound of its own")
            max_lag = "auto" if self._backend.options.max_lag == "auto" else self._backend.max_lag(channel)
        self._pending: deque[tuple[Waitable, PayloadT]] = deque()
        if max_lag != "auto":
            self.max_lag = max_lag
            return
        if self._backend is None or self._backend.options.max_lag != "auto":
            raise ValueError("max_lag='auto' needs a group made with headway.Options(max_lag='auto')")
        self.max_lag = self._backend.recommended_max_lag(channel)
        self._is_automatic = True

    @property
    def channel(self) -> int:
        """The group's channel that the queue's exchanges are on; 0 where the group is not a headway group."""
        return self._channel

    @property
    def max_lag(self) -> int:
        """Exchanges that may stay pending after a push.

        May be set at any time, on each rank by itself; takes effect at the next push. Sets the bound of the channel of
        a headway group as well, so that the group lets this rank go as far ahead. A queue that follows its group stops
        doing so.
        """
        return self._max_lag

    @max_lag.setter
    def max_lag(self, bound: int) -> None:
        if isinstance(bound, bool) or not isinstance(bound, int):
            raise ValueError(f"max_lag must be an integer, not {bound!r}")
        if bound < 0:
            raise ValueError(f"max_lag must be at least 0, not {bound}")
        self._set_bound(bound)
        self._is_automatic = False

    def _set_bound(self, bound: int) -> None:
        if self._backend is not None:
            self._backend.set_max_lag(bound, self._channel)
        self._max_lag = bound

    def __len__(self) -> int:
        """Number of pending exchanges."""
        return len(self._pending)

    @property
    def oldest(self) -> Waitable | None:
        """The exchange to wait for next, or None when nothing is pending."""
        return self._pending[0][0] if self._pending else None

    def payloads(self) -> Iterator[PayloadT]:
        """What the caller stored with each pending exchange, oldest first."""
        return (payload for _, payload in self._pending)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: list[int] | None = None,
        input_split_sizes: list[int] | None = None,
    ) -> dist.Work:
        """Starts an exchange on the queue's group and channel, for ``push()``.

        Args:
            output, input, output_split_sizes, input_split_sizes: as in ``headway.all_to_all_single()``.
        Raises:
            ValueError: the queue has no group.
        """
        if self._group is None:
            raise ValueError("this LagQueue was made without a group, so it cannot start an exchange")
        splits = (output_split_sizes, input_split_sizes)
        work: dist.Work | None
        if self._backend is None:
            work = dist.all_to_all_single(output, input, *splits, group=self._group, async_op=True)
        else:
            work = all_to_all_single(output, input, *splits, self._group, async_op=True, channel=self._channel)
        assert work is not None, "this process is not in the group"
        return work

    def push(self, work: Waitable, payload: PayloadT) -> list[PayloadT]:
        """Adds a started exchange, then waits for the oldest ones until at most ``max_lag`` are pending.

        Returns:
            payloads of the exchanges that are now complete, oldest first; usually none or one, more after the bound
            was lowered.
        Raises:
            whatever ``work.wait()`` raises; the failed exchange is no longer pending then.
        """
        self._pending.append((work, payload))
        if self._is_automatic and self._backend is not None:
            bound = self._backend.recommended_max_lag(self._channel)
            if bound != self._max_lag:
                self._set_bound(bound)
        completed = []
        while len(self._pending) > self._max_lag:
            completed.append(self.pop())
        return completed

    def pop(self) -> PayloadT:
        """Waits for the oldest exchange and returns its payload.

        Raises:
            IndexError: nothing is pending.
        """
        if not self._pending:
            raise IndexError("pop from a LagQueue with no pending exchange")
        work, payload = self._pending.popleft()
        work.wait()
        return payload

    def drain(self) -> Iterator[PayloadT]:
        """Waits for all pending exchanges one by one, so that a payload can be used before the next one is complete."""
        while self._pending:
            yield self.pop()
