# SPDX-License-Identifier: Apache-2.0
"""``NestedAwaitable`` keeps the contract of TorchRec's awaitables, without a profiler range of its own.

It is for an awaitable that is waited for inside the wait of another one.
"""

from __future__ import annotations

import torch
from headway.torchrec.exchange import NestedAwaitable, ReadyAwaitable
from torch.profiler import ProfilerActivity, profile


class _Seven(NestedAwaitable):
    def _wait_impl(self) -> int:
        return 7


def test_callbacks_take_what_is_waited_for_one_after_the_other() -> None:
    for awaitable in (_Seven(), ReadyAwaitable(7)):
        awaitable.callbacks.append(lambda number: number + 1)
        awaitable.callbacks.append(lambda number: number * 10)
        assert awaitable.wait() == 80


def test_waits_have_no_name_of_their_own_in_a_profile() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        torch.zeros(1)
        _Seven().wait()
        ReadyAwaitable(7).wait()
    names = [event.name for event in profiler.events()]
    assert names and not any("wait()" in name for name in names)
