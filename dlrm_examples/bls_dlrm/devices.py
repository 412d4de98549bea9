"""Where the ranks compute: what a delay is there, and how the events of a run are stamped.

On a CPU both are the host's. On a GPU everything is in the order of a stream: a delay keeps the stream busy, and the
stamps are the device's, so that they say when something happened and not when the host asked for it.
"""

from __future__ import annotations

import time
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from dlrm_examples.bls_dlrm.recurrence import RankWork

Seconds = npt.NDArray[np.float64]
DeviceName = Literal["cpu", "cuda"]
DEVICE_NAMES: tuple[DeviceName, ...] = get_args(DeviceName)
Event = Literal["arrived", "post_began", "post_ended", "wait_began", "wait_ended", "predicted"]

_HOST_LEAD_STEPS = 8
"""Steps of which the host may have asked a GPU for more than the GPU has done: enough that it is never idle."""
_CALIBRATION_CYCLES = 20_000_000


class RunTimes:
    """When one rank passed the events of one run, in seconds of ``time.perf_counter`` (one clock for all of a host)."""

    def __init__(self, num_steps: int) -> None:
        self.arrived = np.zeros(num_steps)
        self.post_began = np.zeros(num_steps)
        self.post_ended = np.zeros(num_steps)
        self.wait_began = np.zeros(num_steps)
        self.wait_ended = np.zeros(num_steps)
        self.predicted = np.zeros(num_steps)
        self.started = 0.0
        self.finished = 0.0

    def start(self) -> None:
        """The run begins."""
        self.started = time.perf_counter()

    def stamp(self, event: Event, step: int) -> None:
        """All that was asked for before this call comes before the event."""
        getattr(self, event)[step] = time.perf_counter()

    def finish(self) -> None:
        """The run has ended; from now on the times may be read."""
        self.finished = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Duration of the run on this rank."""
        return self.finished - self.started

    @property
    def request_latency_s(self) -> Seconds:
        """(steps,) from the arrival of each mini-batch to its predictions."""
        return self.predicted - self.arrived

    def work(self, *, max_lag: int) -> RankWork:
        """What the rank did between its events, for the replay of a run with this bound."""
        num_steps = len(self.arrived)
        before_post, before_wait = np.zeros(num_steps), np.zeros(num_steps)
        previous = self.started
        for step in range(num_steps + max_lag):
            if step < num_steps:
                before_post[step] = self.post_began[step] - previous
                previous = self.post_ended[step]
            if 0 <= step - max_lag < num_steps:
                before_wait[step - max_lag] = self.wait_began[step - max_lag] - previous
                previous = self.wait_ended[step - max_lag]
        return RankWork(
            start_s=self.started,
            before_post_s=before_post,
            before_wait_s=before_wait,
            tail_s=self.finished - previous,
        )


class StreamTimes(RunTimes):
    """The same for the current stream of a GPU; a stamp is an event of CUDA."""

    def __init__(self, num_steps: int) -> None:
        super().__init__(num_steps)
        self._events: dict[Event, list[torch.cuda.Event]] = {
            name: [torch.cuda.Event(enable_timing=True) for _ in range(num_steps)] for name in get_args(Event)
        }
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def start(self) -> None:
        torch.cuda.synchronize()
        self._start.record()
        self._start.synchronize()
        self.started = time.perf_counter()

    def stamp(self, event: Event, step: int) -> None:
        self._events[event][step].record()
        if event == "predicted" and step >= _HOST_LEAD_STEPS:
            self._events[event][step - _HOST_LEAD_STEPS].synchronize()

    def finish(self) -> None:
        self._end.record()
        self._end.synchronize()
        self.finished = self._time_of(self._end)
        for name, events in self._events.items():
            setattr(self, name, np.array([self._time_of(event) for event in events]))

    def _time_of(self, event: torch.cuda.Event) -> float:
        return self.started + self._start.elapsed_time(event) / 1e3


class Host:
    """The CPU of a rank."""

    torch_device = torch.device("cpu")

    def new_times(self, num_steps: int) -> RunTimes:
        """Stamps for a run."""
        return RunTimes(num_steps)

    def delay(self, seconds: float) -> None:
        """Lets everything after it come that much later."""
        time.sleep(seconds)


class Gpu(Host):
    """The GPU of a rank, and its current stream."""

    def __init__(self, rank: int) -> None:
        """Makes GPU ``rank`` the current one."""
        torch.cuda.set_device(rank)
        self.torch_device = torch.device("cuda", rank)
        self._cycles_per_s = _measure_cycles_per_s()

    def new_times(self, num_steps: int) -> RunTimes:
        return StreamTimes(num_steps)

    def delay(self, seconds: float) -> None:
        torch.cuda._sleep(int(seconds * self._cycles_per_s))  # One thread that looks at its clock.


def open_device(name: DeviceName, rank: int) -> Host:
    """The device of a rank of this host."""
    return Host() if name == "cpu" else Gpu(rank)


def _measure_cycles_per_s() -> float:
    rates = []
    for _ in range(3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.cuda._sleep(_CALIBRATION_CYCLES)
        end.record()
        end.synchronize()
        rates.append(_CALIBRATION_CYCLES / start.elapsed_time(end) * 1e3)
    return max(rates)  # The first may have been at a lower clock.
