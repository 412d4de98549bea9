"""The two inference loops: the paper's listing 1 (synchronous) and listing 2 (bounded lag), with a stamp at each event.

Neither loop calls a collective besides the exchange, and neither allocates for its stamps.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from headway import LagQueue

from dlrm_examples.bls_dlrm.model import Dlrm, EmbeddingShard, pool_rows
from dlrm_examples.bls_dlrm.placement import TablePlacement
from dlrm_examples.bls_dlrm.recurrence import RankWork
from dlrm_examples.bls_dlrm.step_inputs import StepInputs

Seconds = npt.NDArray[np.float64]


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


@dataclass(frozen=True, kw_only=True)
class LoopResult:
    """One run of one rank.

    Attributes:
        predictions: a (B,) tensor per step.
        times: the stamps.
        held_bytes: most bytes of tensors that pending exchanges kept alive at one time.
        sent_bytes: bytes of all exchanges, to all ranks.
    """

    predictions: list[torch.Tensor]
    times: RunTimes
    held_bytes: int
    sent_bytes: int


class Pending(NamedTuple):
    """What is needed to finish a step once its exchange is complete."""

    step: int
    sent: torch.Tensor
    received: torch.Tensor
    dense_output: torch.Tensor

    @property
    def num_bytes(self) -> int:
        """Bytes that this step keeps alive."""
        return self.sent.nbytes + self.received.nbytes + self.dense_output.nbytes


class InferenceRank:
    """One rank's model, tables and preloaded inputs."""

    def __init__(
        self, model: Dlrm, shard: EmbeddingShard, placement: TablePlacement, inputs: Sequence[StepInputs]
    ) -> None:
        self._model = model
        self._shard = shard
        self._placement = placement
        self._inputs = inputs

    @torch.no_grad()
    def run_synchronous(self, group: dist.ProcessGroup, delays_s: Seconds) -> LoopResult:
        """Listing 1: the exchange of a step overlaps with the bottom MLP of that step, nothing else."""
        times = RunTimes(len(delays_s))
        predictions: list[torch.Tensor] = []
        held_bytes = sent_bytes = 0
        times.started = time.perf_counter()
        for step, delay_s in enumerate(delays_s.tolist()):
            work, pending = self._start(step, delay_s, group, times)
            sent_bytes += pending.sent.nbytes
            held_bytes = max(held_bytes, pending.num_bytes)
            times.wait_began[step] = time.perf_counter()
            work.wait()
            times.wait_ended[step] = time.perf_counter()
            self._finish(pending, predictions, times)
        times.finished = time.perf_counter()
        return LoopResult(predictions=predictions, times=times, held_bytes=held_bytes, sent_bytes=sent_bytes)

    @torch.no_grad()
    def run_bounded_lag(self, group: dist.ProcessGroup, delays_s: Seconds, *, max_lag: int) -> LoopResult:
        """Listing 2: up to ``max_lag`` exchanges stay pending while later steps begin; drained at the end."""
        times = RunTimes(len(delays_s))
        predictions: list[torch.Tensor] = []
        held_bytes = sent_bytes = 0
        queue: LagQueue[Pending] = LagQueue(group, max_lag=max_lag)
        times.started = time.perf_counter()
        for step, delay_s in enumerate(delays_s.tolist()):
            work, pending = self._start(step, delay_s, group, times)
            sent_bytes += pending.sent.nbytes
            held_bytes = max(held_bytes, pending.num_bytes + sum(entry.num_bytes for entry in queue.payloads()))
            began = time.perf_counter()
            for completed in queue.push(work, pending):  # at most one: the bound does not change during a run
                times.wait_began[completed.step] = began
                times.wait_ended[completed.step] = time.perf_counter()
                self._finish(completed, predictions, times)
        while queue:
            began = time.perf_counter()
            completed = queue.pop()
            times.wait_began[completed.step] = began
            times.wait_ended[completed.step] = time.perf_counter()
            self._finish(completed, predictions, times)
        times.finished = time.perf_counter()
        return LoopResult(predictions=predictions, times=times, held_bytes=held_bytes, sent_bytes=sent_bytes)

    def _start(self, step: int, delay_s: float, group: dist.ProcessGroup, times: RunTimes) -> tuple[dist.Work, Pending]:
        """The part of a step that needs no other rank: delay, lookup, start of the exchange, bottom MLP."""
        inputs = self._inputs[step]
        times.arrived[step] = time.perf_counter()
        if delay_s > 0:
            time.sleep(delay_s)
        rows = self._shard.look_up(inputs.indices, inputs.bag_offsets)
        received = torch.empty(sum(inputs.receive_rows), rows.shape[1])
        times.post_began[step] = time.perf_counter()
        work = dist.all_to_all_single(received, rows, inputs.receive_rows, inputs.send_rows, group=group, async_op=True)
        times.post_ended[step] = time.perf_counter()
        assert work is not None, "this process is not in the group"
        return work, Pending(step, rows, received, self._model.bottom(inputs.dense))

    def _finish(self, pending: Pending, predictions: list[torch.Tensor], times: RunTimes) -> None:
        """The rest of a step: interaction and top MLP."""
        rows = pending.received
        receive_offsets = self._inputs[pending.step].receive_offsets
        if receive_offsets is not None:
            rows = pool_rows(rows, receive_offsets)
        predictions.append(self._model.predict(pending.dense_output, self._placement.in_table_order(rows)))
        times.predicted[pending.step] = time.perf_counter()
