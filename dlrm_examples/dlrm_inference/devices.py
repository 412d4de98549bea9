# SPDX-License-Identifier: Apache-2.0
"""Devices on which ranks compute: CPU or GPU. Each implements the delays and the time stamps of a run.

On a CPU a delay sleeps, and stamps come from the host's clock. On a GPU everything is ordered by a stream: a delay
keeps the stream busy, and stamps are CUDA events. They tell when the device reached the event, not when the host
enqueued it.
"""

from __future__ import annotations

import time
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from dlrm_examples.dlrm_inference.recurrence import RankWork

Seconds = npt.NDArray[np.float64]
DeviceName = Literal["cpu", "cuda"]
DEVICE_NAMES: tuple[DeviceName, ...] = get_args(DeviceName)
Event = Literal["arrived", "post_began", "post_ended", "wait_began", "wait_ended", "predicted"]

_HOST_LEAD_STEPS = 8
"""Largest number of steps that the host runs ahead of a GPU: enough that the GPU is never idle."""
_CALIBRATION_CYCLES = 20_000_000


class RunTimes:
    """Times at which one rank passed the events of one run.

    Times are in seconds of ``time.perf_counter``, which all processes of a host share. Arrays are (steps,).

    Attributes:
        arrived: a step begins, which is when its mini-batch arrives.
        post_began, post_ended: the call that starts the exchange of the step.
        wait_began, wait_ended: the wait for the exchange of the step.
        predicted: the predictions of the step are ready.
        started, finished: begin and end of the run.
    """

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
        """Marks the start of the run."""
        self.started = time.perf_counter()

    def stamp(self, event: Event, step: int) -> None:
        """Records an event of ``step``. It comes after everything that was called or enqueued before."""
        getattr(self, event)[step] = time.perf_counter()

    def finish(self) -> None:
        """Marks the end of the run. The times may be read only after this call."""
        self.finished = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Duration of the run on this rank."""
        return self.finished - self.started

    @property
    def request_latency_s(self) -> Seconds:
        """(steps,) time from the arrival of each mini-batch to its predictions."""
        return self.predicted - self.arrived

    def work(self, *, max_lag: int) -> RankWork:
        """Work of the rank between its events, for ``recurrence.replay()``; ``max_lag`` is the bound of the run."""
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
    """Times on the current stream of a GPU; each stamp is a CUDA event.

    ``stamp()`` also keeps the host at most ``_HOST_LEAD_STEPS`` steps ahead of the GPU.
    """

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
    """A rank's CPU."""

    torch_device = torch.device("cpu")

    def new_times(self, num_steps: int) -> RunTimes:
        """Creates the stamps of a run."""
        return RunTimes(num_steps)

    def delay(self, seconds: float) -> None:
        """Delays everything after this call by ``seconds``."""
        time.sleep(seconds)


class Gpu(Host):
    """A rank's GPU, and its current stream."""

    def __init__(self, rank: int) -> None:
        """Makes GPU ``rank`` the current device."""
        torch.cuda.set_device(rank)
        self.torch_device = torch.device("cuda", rank)
        self._cycles_per_s = _measure_cycles_per_s()

    def new_times(self, num_steps: int) -> RunTimes:
        return StreamTimes(num_steps)

    def delay(self, seconds: float) -> None:
        torch.cuda._sleep(int(seconds * self._cycles_per_s))  # A kernel of one thread that spins on its clock.


def open_device(name: DeviceName, rank: int) -> Host:
    """Opens the device of ``rank`` on this host; on GPUs, rank i uses GPU i."""
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
    return max(rates)  # The first measurement may have run at a lower clock.
