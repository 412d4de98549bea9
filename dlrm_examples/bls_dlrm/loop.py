"""The two inference loops: the paper's listing 1 (synchronous) and listing 2 (bounded lag), with a stamp at each event.

Neither loop calls a collective besides the exchange, and neither allocates for its stamps. Both are the same on a CPU
and on a GPU, where all is in the order of the current stream: a wait makes the stream wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from headway import LagQueue

from dlrm_examples.bls_dlrm.devices import Host, RunTimes, Seconds
from dlrm_examples.bls_dlrm.model import Dlrm, EmbeddingShard, pool_rows
from dlrm_examples.bls_dlrm.placement import TablePlacement
from dlrm_examples.bls_dlrm.step_inputs import StepInputs


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
        self,
        model: Dlrm,
        shard: EmbeddingShard,
        placement: TablePlacement,
        inputs: Sequence[StepInputs],
        device: Host | None = None,
    ) -> None:
        """Moves everything to ``device``, the CPU where it is None."""
        self._device = Host() if device is None else device
        at = self._device.torch_device
        self._model = model.to(at)
        self._shard = shard.to(at)
        self._placement = placement
        self._inputs = [step.to(at) for step in inputs]

    @torch.no_grad()
    def run_synchronous(self, group: dist.ProcessGroup, delays_s: Seconds) -> LoopResult:
        """Listing 1: the exchange of a step overlaps with the bottom MLP of that step, nothing else."""
        times = self._device.new_times(len(delays_s))
        predictions: list[torch.Tensor] = []
        held_bytes = sent_bytes = 0
        times.start()
        for step, delay_s in enumerate(delays_s.tolist()):
            work, pending = self._start(step, delay_s, group, times)
            sent_bytes += pending.sent.nbytes
            held_bytes = max(held_bytes, pending.num_bytes)
            times.stamp("wait_began", step)
            work.wait()
            times.stamp("wait_ended", step)
            self._finish(pending, predictions, times)
        times.finish()
        return LoopResult(predictions=predictions, times=times, held_bytes=held_bytes, sent_bytes=sent_bytes)

    @torch.no_grad()
    def run_bounded_lag(self, group: dist.ProcessGroup, delays_s: Seconds, *, max_lag: int) -> LoopResult:
        """Listing 2: up to ``max_lag`` exchanges stay pending while later steps begin; drained at the end."""
        times = self._device.new_times(len(delays_s))
        predictions: list[torch.Tensor] = []
        held_bytes = sent_bytes = 0
        queue: LagQueue[Pending] = LagQueue(group, max_lag=max_lag)
        times.start()
        for step, delay_s in enumerate(delays_s.tolist()):
            work, pending = self._start(step, delay_s, group, times)
            sent_bytes += pending.sent.nbytes
            held_bytes = max(held_bytes, pending.num_bytes + sum(entry.num_bytes for entry in queue.payloads()))
            if step >= max_lag:
                times.stamp("wait_began", step - max_lag)
            for completed in queue.push(work, pending):  # that one: the bound does not change during a run
                times.stamp("wait_ended", completed.step)
                self._finish(completed, predictions, times)
        while queue:
            times.stamp("wait_began", next(queue.payloads()).step)
            completed = queue.pop()
            times.stamp("wait_ended", completed.step)
            self._finish(completed, predictions, times)
        times.finish()
        return LoopResult(predictions=predictions, times=times, held_bytes=held_bytes, sent_bytes=sent_bytes)

    def _start(self, step: int, delay_s: float, group: dist.ProcessGroup, times: RunTimes) -> tuple[dist.Work, Pending]:
        """The part of a step that needs no other rank: delay, lookup, start of the exchange, bottom MLP."""
        inputs = self._inputs[step]
        times.stamp("arrived", step)
        if delay_s > 0:
            self._device.delay(delay_s)
        rows = self._shard.look_up(inputs.indices, inputs.bag_offsets)
        received = rows.new_empty(sum(inputs.receive_rows), rows.shape[1])
        times.stamp("post_began", step)
        work = dist.all_to_all_single(received, rows, inputs.receive_rows, inputs.send_rows, group=group, async_op=True)
        times.stamp("post_ended", step)
        assert work is not None, "this process is not in the group"
        return work, Pending(step, rows, received, self._model.bottom(inputs.dense))

    def _finish(self, pending: Pending, predictions: list[torch.Tensor], times: RunTimes) -> None:
        """The rest of a step: interaction and top MLP."""
        rows = pending.received
        receive_offsets = self._inputs[pending.step].receive_offsets
        if receive_offsets is not None:
            rows = pool_rows(rows, receive_offsets)
        predictions.append(self._model.predict(pending.dense_output, self._placement.in_table_order(rows)))
        times.stamp("predicted", pending.step)
