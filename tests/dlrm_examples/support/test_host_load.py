# SPDX-License-Identifier: Apache-2.0
"""Foreign load and steal: shares of processor time that other programs or the hypervisor took from a measurement.

A ``ProcessorTime`` is a reading of the kernel's counters in seconds over all usable cores: ``total`` is all time,
``busy`` the time in which programs ran, ``own`` that of the measurement itself.
``is_busy``: foreign load and steal together took more than a tenth, too much for a comparison.
"""

from __future__ import annotations

import pytest

from dlrm_examples.support.host_load import HostLoad, ProcessorTime, load_between, read_processor_time


def reading(*, total: float, busy: float, steal: float, own: float) -> ProcessorTime:
    return ProcessorTime(total=total, busy=busy, steal=steal, own=own)


@pytest.mark.parametrize(
    ("busy", "steal", "own", "load", "is_busy"),
    [
        (18.0, 0.0, 17.9, HostLoad(foreign=0.005, steal=0.0), False),
        (15.0, 0.0, 9.0, HostLoad(foreign=0.3, steal=0.0), True),
        (15.0, 3.0, 15.0, HostLoad(foreign=0.0, steal=0.15), True),
        (9.0, 0.0, 9.5, HostLoad(foreign=0.0, steal=0.0), False),  # The counters have ticks of 10 ms.
    ],
)
def test_foreign_load_is_the_busy_time_of_others(
    busy: float, steal: float, own: float, load: HostLoad, is_busy: bool
) -> None:
    before = reading(total=100.0, busy=50.0, steal=1.0, own=2.0)
    after = reading(total=120.0, busy=50.0 + busy, steal=1.0 + steal, own=2.0 + own)
    found = load_between(before, after)
    assert found is not None
    assert (found.foreign, found.steal) == pytest.approx((load.foreign, load.steal))
    assert found.is_busy is is_busy


def test_without_time_between_the_load_is_not_known() -> None:
    some = reading(total=1.0, busy=1.0, steal=0.0, own=0.0)
    assert load_between(some, some) is None


def test_only_the_cores_of_this_process_count(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read_processor_time()
    assert 0.0 < found.own <= found.busy <= found.total
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set())
    assert read_processor_time().total == 0.0
