# SPDX-License-Identifier: Apache-2.0
"""The two inference loops: listing 1 (synchronous) and listing 2 (bounded lag) of the paper, with time stamps.

Idea: a step looks up embeddings, exchanges them (all-to-all), and predicts. The synchronous loop waits for the exchange
of a step in the same step. The bounded-lag loop with bound k starts step t and then waits for the exchange of step
t - k, so a rank may run up to k steps ahead of its peers. After the last step it drains the k pending exchanges.

Example: k = 1, three steps; S = delay, lookup, start of the exchange, bottom MLP; W = wait, interaction, top MLP.

    synchronous    S0 W0 S1 W1 S2 W2
    bounded lag    S0 S1 W0 S2 W1 W2

Invariants: before a rank starts step t, it has completed step t - k - 1. Exchanges complete in order.
    Predictions are bit-identical for all k. The exchange is the only collective inside a loop.
    The stamps allocate no memory during the loop. On a GPU all work is ordered by the current stream; a wait makes the
    stream wait, not the host.
Complexity: one exchange per step. The tensors of up to k + 1 steps are alive (``held_bytes``).
Source: Dichev et al., arXiv 2512.19342, listings 1 and 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from headway import LagQueue

from dlrm_examples.dlrm_inference.devices import Host, RunTimes, Seconds
from dlrm_examples.dlrm_inference.model import Dlrm, EmbeddingShard, pool_rows
from dlrm_examples.dlrm_inference.placement import TablePlacement
from dlrm_examples.dlrm_inference.step_inputs import StepInputs


@dataclass(frozen=True, kw_only=True)
class LoopResult:
    """One run of one rank.

    Attributes:
        predictions: one (B,) tensor per step.
        times: time stamps of the run.
        held_bytes: largest size of the tensors that pending steps kept alive at one time.
        sent_bytes: bytes sent in all exchanges, to all ranks.
    """

    predictions: list[torch.Tensor]
    times: RunTimes
    held_bytes: int
    sent_bytes: int


class Pending(NamedTuple):
    """State of a step between the start of its exchange and its prediction."""

    step: int
    sent: torch.Tensor
    received: torch.Tensor
    dense_output: torch.Tensor

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors that this pending step keeps alive."""
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
        """Moves model, tables and inputs to ``device``; None: the CPU."""
        self._device = Host() if device is None else device
        at = self._device.torch_device
        self._model = model.to(at)
        self._shard = shard.to(at)
        self._placement = placement
        self._inputs = [step.to(at) for step in inputs]

    @torch.no_grad()
    def run_synchronous(self, group: dist.ProcessGroup, delays_s: Seconds) -> LoopResult:
        """Runs listing 1: the exchange of a step overlaps only with the bottom MLP of that step.

        Args:
            group: group of the exchange.
            delays_s: (steps,) delay of this rank in each step.
        """
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
        """Runs listing 2: up to ``max_lag`` exchanges stay pending while later steps begin; drained at the end.

        Args:
            group: group of the exchange.
            delays_s: (steps,) delay of this rank in each step.
            max_lag: the bound k.
        """
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
            for completed in queue.push(work, pending):  # only step - max_lag, as the bound is constant
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
        """First part of a step, which needs no other rank: delay, lookup, start of the exchange, bottom MLP."""
        inputs = self._inputs[step]
        times.stamp("arrived", step)
        if delay_s > 0:
            self._device.delay(delay_s)
        rows = self._shard.lookup(inputs.indices, inputs.bag_offsets)
        # send_rows and receive_rows count embedding rows to and from each rank.
        received = rows.new_empty(sum(inputs.receive_rows), rows.shape[1])
        times.stamp("post_began", step)
        work = dist.all_to_all_single(received, rows, inputs.receive_rows, inputs.send_rows, group=group, async_op=True)
        times.stamp("post_ended", step)
        assert work is not None, "this process is not in the group"
        return work, Pending(step, rows, received, self._model.bottom(inputs.dense))

    def _finish(self, pending: Pending, predictions: list[torch.Tensor], times: RunTimes) -> None:
        """Last part of a step, after its exchange: pooling if the receiver does it, interaction, top MLP."""
        rows = pending.received
        receive_offsets = self._inputs[pending.step].receive_offsets
        if receive_offsets is not None:
            rows = pool_rows(rows, receive_offsets)
        predictions.append(self._model.predict(pending.dense_output, self._placement.in_table_order(rows)))
        times.stamp("predicted", pending.step)
