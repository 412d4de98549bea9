# SPDX-License-Identifier: Apache-2.0
"""Queue of the pending exchanges of a bounded-lag loop, oldest first.

Idea: a loop that may run ahead of its peers starts one exchange per step and completes it up to ``max_lag`` steps
later. The queue keeps each pending exchange together with the payload that the caller needs to finish that step. A push
waits for the oldest exchanges until at most ``max_lag`` are pending.

Example: max_lag = 2. push(0) and push(1) return nothing. push(2) leaves three pending, so it waits for exchange 0 and
returns its payload. drain() then yields the payloads of 1 and 2.

Invariants: exchanges complete in the order of their pushes. After a push at most ``max_lag`` are pending.
    Payloads and results do not depend on ``max_lag``; it only changes who waits when.
Complexity: O(1) per push, besides the wait. The payloads of up to ``max_lag + 1`` steps stay in memory.
Source: listing 2 of Dichev et al., arXiv 2512.19342; docs/bounded_lag.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch
import torch.distributed as dist

from headway.comm.collectives import all_to_all_single
from headway.comm.groups import find_backend

PayloadT = TypeVar("PayloadT")


class Waitable(Protocol):
    """The part of ``torch.distributed.Work`` that the queue uses."""

    def wait(self) -> Any:
        """Blocks until the exchange is complete; raises the error of one that failed."""


class LagQueue(Generic[PayloadT]):
    """First-in first-out queue of exchanges; at most ``max_lag`` stay pending after a push.

    A loop that may lag by two steps::

        queue = headway.LagQueue(group, max_lag=2)
        for step in steps:
            work = dist.all_to_all_single(received, rows, out_splits, in_splits, group=group, async_op=True)
            for earlier in queue.push(work, (received, dense)):
                predict(*earlier)
        for earlier in queue.drain():
            predict(*earlier)

    Call sites that need different bounds use one channel and one queue each::

        users, items = (headway.LagQueue(group, channel=channel) for channel in (0, 1))
        ...
        work = users.all_to_all_single(received, rows, out_splits, in_splits)
        for earlier in users.push(work, received):
            ...

    ``push()`` starts no collective. A queue is not thread-safe: only one thread may use it at a time.
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
            group: a headway group; its ``max_lag`` is the default. Any other group needs ``max_lag``.
            max_lag: bound, at least 0; for a headway group at most its ``max_lag_limit``. ``"auto"`` needs a group
                created with ``Options(max_lag="auto")``. The queue then follows the group's recommendation: the
                smallest bound whose throughput is within 2.5% of the best on the channel's latest exchanges, and
                ``max_lag_limit`` for the first few exchanges.
            channel: channel of the exchanges; the queue sets its bound. Functions of ``torch.distributed`` use
                channel 0.
        Raises:
            ValueError: no bound is given and the group has none; the bound is negative or above the group's limit; it
                is "auto" and the group was not created with "auto"; or the group has no such channel.
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
        """Channel of the queue's exchanges; 0 if the group is not a headway group."""
        return self._channel

    @property
    def max_lag(self) -> int:
        """Number of exchanges that may stay pending after a push.

        It may be set at any time and per rank, and takes effect at the next push. The setter also sets the bound of the
        headway group's channel, so that the group lets this rank run as far ahead. It ends automatic adjustment
        ("auto").
        """
        return self._max_lag

    @max_lag.setter
    def max_lag(self, value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"max_lag must be an integer, not {value!r}")
        if value < 0:
            raise ValueError(f"max_lag must be at least 0, not {value}")
        self._apply_max_lag(value)
        self._is_automatic = False

    def _apply_max_lag(self, value: int) -> None:
        if self._backend is not None:
            self._backend.set_max_lag(value, self._channel)
        self._max_lag = value

    def __len__(self) -> int:
        """Number of pending exchanges."""
        return len(self._pending)

    @property
    def oldest(self) -> Waitable | None:
        """The oldest pending exchange, or None if nothing is pending."""
        return self._pending[0][0] if self._pending else None

    def payloads(self) -> Iterator[PayloadT]:
        """Payloads of the pending exchanges, oldest first."""
        return (payload for _, payload in self._pending)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: list[int] | None = None,
        input_split_sizes: list[int] | None = None,
    ) -> dist.Work:
        """Starts an exchange on the queue's group and channel. The caller passes the result to ``push()``.

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
            payloads of the exchanges that this call completed, oldest first. Usually none or one; more after the
            bound was lowered.
        Raises:
            Exception: the error of ``work.wait()``. The failed exchange is then no longer pending.
        """
        self._pending.append((work, payload))
        if self._is_automatic and self._backend is not None:
            recommended = self._backend.recommended_max_lag(self._channel)
            if recommended != self._max_lag:
                self._apply_max_lag(recommended)
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
        """Waits for all pending exchanges, oldest first; yields each payload as soon as its exchange is complete."""
        while self._pending:
            yield self.pop()
