# SPDX-License-Identifier: Apache-2.0
"""``TrainStep``: updates of a model with tables, from micro-batches on any number of ranks.

Idea: a model returns a sum of losses for each head. ``backward()`` divides the sums by the numbers of loss terms of the
whole step, so gradients are only added: over micro-batches by autograd, over ranks by DDP with a hook that sums, and in
tables by their owners. ``update()`` clips by the norm over dense and sparse gradients, and steps all optimizers.

Example, for a loop of one's own::

    step = TrainStep(model, optimizer=torch.optim.Adam(model.parameters()), group=group)
    for batch in batches:
        losses = step([batch], counts={"click": num_clicks_of_all_ranks})

Invariants: all ranks make the same calls, also without samples of their own. Nothing is updated by a step whose loss is
not finite.
Source: see ``gradients.py``.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from headway.embedding import HashTableCollection
from headway.hybrid import HybridTables
from headway.training.gradients import loss_of, sum_gradients
from headway.training.host_sum import HostSum
from headway.training.loss_scaling import LossScaler
from headway.training.trained_state import TrainedState
from headway.training.trained_tables import TrainedTables, reading, tables_of

DType = Literal["float32", "bfloat16", "float16"]


class LossError(RuntimeError):
    """A loss is not finite."""


class TrainStep:
    """Computes gradients of a model, and updates it.

    Args:
        model: returns the sum of the losses of each head, (), of a micro-batch. It is equal on all ranks.
        optimizer: of the dense parameters.
        tables: tables whose optimizers step, too; None: the ``HashTableCollection`` and ``HybridTables`` modules of the
            model. The former need ``gradient_reduction="sum"``.
        group: ranks of the training; None: this rank alone.
        dtype: of autocast; float32: no autocast. With float16 losses are scaled.
        clip_norm: largest norm of all gradients together; 0: no limit. Not with tables on parameter servers.

    Attributes:
        state: the model with what trains it.
        reduction_s: seconds that this process has waited for sums over ranks.

    Raises:
        ValueError: tables average gradients over ranks, or are on parameter servers and ``clip_norm`` is set.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizer: torch.optim.Optimizer,
        tables: Sequence[TrainedTables] | None = None,
        group: dist.ProcessGroup | None = None,
        dtype: DType = "float32",
        clip_norm: float = 0.0,
    ) -> None:
        if tables is None:
            tables = tables_of(model)
        for each in tables:  # On one rank the other setting has no effect, but the same model has one on two.
            if isinstance(each, HashTableCollection) and each.gradient_reduction != "sum":
                raise ValueError('tables of a model need gradient_reduction="sum": losses are divided before')
        if clip_norm and any(isinstance(each, HybridTables) for each in tables):
            raise ValueError("clip_norm needs the norm of all gradients, which parameter servers do not tell")
        self.state = TrainedState(model, list(tables), optimizer, LossScaler(enabled=dtype == "float16"))
        self.reduction_s = 0.0
        self._group = None if group is None or group.size() == 1 else group
        self._dtype, self._clip_norm = dtype, clip_norm
        self._device = next((each.device for each in model.parameters()), torch.device("cpu"))
        #: For the sums of losses.
        self._loss_stream = (
            torch.cuda.Stream(self._device) if self._device.type == "cuda" else None  # type: ignore[no-untyped-call]
        )
        self._parallel: Any = model
        self._last_bucket_s = 0.0  #: When DDP began to add the last bucket of gradients over ranks.
        if self._group is not None:
            ids = [self._device.index] if self._device.type == "cuda" else None
            self._parallel = DistributedDataParallel(model, device_ids=ids, process_group=self._group)
            self._parallel.register_comm_hook(None, lambda _, bucket: self._sum_bucket(bucket))

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Returns the context of a forward pass."""
        dtype = torch.float16 if self._dtype == "float16" else torch.bfloat16
        return torch.autocast(self._device.type, dtype=dtype, enabled=self._dtype != "float32")

    def settle_buckets(self, without_samples: Any, **options: Any) -> None:
        """Runs a pass over a batch without samples, after which DDP orders the gradients in its buckets for good.

        A bucket is a buffer whose gradients are added over ranks at once. Without this pass DDP would
        order them after the first step. That would be another step after a resume than in a training that was not
        stopped, and sums over ranks would be in another order.

        Raises:
            ValueError: a parameter that needs a gradient got none. DDP waits for the gradient of each.
        """
        if self._group is None:
            return
        with self.autocast(), reading(self.state.tables):
            of_heads = self._parallel(without_samples, **options)
        loss_of(of_heads, dict.fromkeys(of_heads, 0)).backward()  # type: ignore[no-untyped-call]
        unused = self.without_gradient()
        self.state.zero_grad()
        if unused:
            raise ValueError(
                f"no loss depends on the parameters {', '.join(unused)}: leave them out, or call requires_grad_(False)"
            )

    def without_gradient(self) -> list[str]:
        """Returns the names of the dense parameters that need a gradient and have none, after a backward pass."""
        of_tables = {id(each) for tables in self.state.tables for each in tables.parameters()}
        return [
            name
            for name, each in self.state.model.named_parameters()
            if each.requires_grad and each.grad is None and id(each) not in of_tables
        ]

    def __call__(
        self, batches: Sequence[Any], counts: Mapping[str, int], *, options: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, float]:
        """Does a whole step; see ``backward()``.

        Raises:
            LossError: the loss of a head is not finite. Nothing is updated.
        """
        sums = self.backward(batches, counts, options=options)
        if (name := not_finite(sums)) is not None:
            self.state.skip_update()
            raise LossError(f"the loss of {name} is {sums[name]}")
        self.update()
        return sums

    def backward(
        self,
        batches: Sequence[Any],
        counts: Mapping[str, int],
        *,
        options: Sequence[Mapping[str, Any]] = (),
        before_last_backward: Callable[[], None] = lambda: None,
    ) -> dict[str, float]:
        """Computes the gradients of a step, after those of the last one are dropped.

        Args:
            batches: micro-batches of this rank.
            counts: number of loss terms of each head in the step, over all ranks and micro-batches.
            options: keyword arguments of the model for each batch; empty: none.
            before_last_backward: called once the last forward pass is enqueued.
        Returns:
            the sum of the losses of each head, over all ranks.
        Raises:
            ValueError: there is no batch, or the model returned other heads than ``counts`` has.
        """
        if not batches:
            raise ValueError("a rank without samples needs a batch without samples, as other ranks wait for it")
        heads = list(counts)
        self.state.optimizer.zero_grad(set_to_none=True)
        sums = torch.zeros(len(heads), dtype=torch.float64, device=self._device)
        for index, (batch, of_batch) in enumerate(zip(batches, options or [{}] * len(batches), strict=True)):
            is_last = index == len(batches) - 1
            with contextlib.nullcontext() if is_last or self._group is None else self._parallel.no_sync():
                with self.autocast(), record_function("forward"):
                    of_heads = self._parallel(batch, **of_batch)
                if set(of_heads) != set(heads):
                    raise ValueError(
                        f"forward() has the heads {', '.join(of_heads)}, and the counts {', '.join(heads)}"
                    )
                sums += torch.stack([of_heads[name].detach().double() for name in heads])
                if is_last:
                    before_last_backward()
                    total = self._add_up(sums)  # After exchanges that do not wait for the forward pass.
                with record_function("backward"):
                    self.state.scaler.scale(loss_of(of_heads, counts)).backward()  # type: ignore[no-untyped-call]
        if self._group is not None:
            self.reduction_s += time.monotonic() - self._last_bucket_s
        return dict(zip(heads, total.wait().tolist(), strict=True))

    def update(self) -> None:
        """Updates weights and rows by the gradients. All ranks call it."""
        with record_function("update"):
            self.state.update(clip_norm=self._clip_norm)

    def _add_up(self, sums: Tensor) -> HostSum:
        """Starts to add losses over ranks, on a stream of its own. The host has them while the backward pass runs."""
        if self._loss_stream is None:
            return HostSum(sums, self._group)
        self._loss_stream.wait_stream(torch.cuda.current_stream(self._device))
        sums.record_stream(self._loss_stream)
        with torch.cuda.stream(self._loss_stream):
            return HostSum(sums, self._group)

    def _sum_bucket(self, bucket: Any) -> Any:
        assert self._group is not None
        self._last_bucket_s = time.monotonic()
        return sum_gradients(self._group, bucket)


def not_finite(sums: Mapping[str, float]) -> str | None:
    """Returns the first head whose sum is not finite; None if all are."""
    return next((name for name, total in sums.items() if not math.isfinite(total)), None)
