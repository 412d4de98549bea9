# SPDX-License-Identifier: Apache-2.0
"""``ContextParallel``: ranks that share batches of long sequences.

Idea: see ``plan.py``. The lengths of a batch determine everything else, so ranks exchange them on the host, a batch
ahead. Then rows move: ids and times before the lookup, queries, keys, values and outputs in each layer.

Invariants: all ranks call the same functions in the same order. An error that concerns several ranks is raised on all
of them before tokens travel. Losses and gradients of weights are parts of sums over ranks, never means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from headway.nn.config import HSTUConfig
from headway.parallel.context_parallel.agreement import error_of, expect_equal, gather_objects, raise_first
from headway.parallel.context_parallel.chunks_plan import Cut
from headway.parallel.context_parallel.context_plan import ContextPlan, RankGroups
from headway.parallel.context_parallel.group_batch import GroupBatch, Integers
from headway.parallel.context_parallel.layouts import choose_layout

Samples = Literal["own", "all"]
Lengths = Sequence[int] | Tensor

_SAMPLES = ("own", "all")


class ContextParallel:
    """Context parallelism over the ranks of a group.

    Args:
        group: the ranks; a mesh with a dimension "cp", or with one dimension; None: this rank alone. Token data travels
            over it. The constructor makes two further groups of the same ranks for CPU tensors, over Gloo.
        layer: config of the layers that attend.
        layout: "heads" divides the heads of the attention (``plan.py``), "chunks" the queries of long sequences
            (``chunks_plan.py``), "grid(U, G)" both (``grid_plan.py``). Chunks and grids are there on the CPU only.
            "auto" is heads if there are at least as many as ranks, else a grid, or chunks.
        cut: sequences that "chunks" cuts: as few as even work allows ("needed"), or all.
        loss_group: ranks whose samples make up a step, for ``mean()``; None: all ranks of the job.

    Raises:
        ValueError: the mesh has no dimension "cp", the layout is unknown, or the ranks cannot divide the heads.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | DeviceMesh | None,
        layer: HSTUConfig,
        *,
        layout: str = "auto",
        cut: Cut = "needed",
        loss_group: dist.ProcessGroup | None = None,
    ) -> None:
        data = _group_of(group)
        self.layer, self.num_ranks, self._loss_group = layer, 1 if data is None else data.size(), loss_group
        self.layout = choose_layout(layout, layer, self.num_ranks, cut)
        self._groups = RankGroups() if data is None else _groups_of(data)
        self._num_plans = 0

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The ranks; None: this rank alone."""
        return self._groups.data

    def plan(
        self,
        lengths: Lengths,
        *,
        num_targets: Lengths | None = None,
        num_contextual: Lengths | None = None,
        samples: Samples = "own",
    ) -> ContextPlan:
        """Divides a batch. All ranks call it, in the same order; a thread that prefetches may do so.

        Args:
            lengths: (B,) tokens of each sequence, in host memory: contextual ones, history and targets.
            num_targets, num_contextual: (B,) of each sequence; None: there are none.
            samples: "own": each rank brings sequences of its own, maybe none, and the batch is those of all ranks in
                their order. "all": each rank brings the whole batch.

        Raises:
            ValueError: arguments of a rank are wrong, or differ between ranks where they must not. All ranks raise it.
        """
        if samples not in _SAMPLES:
            raise ValueError(f"samples must be one of {', '.join(_SAMPLES)}, not {samples!r}")
        own: dict[str, list[int] | None] = {}

        def read() -> None:
            given = {"lengths": lengths, "num_targets": num_targets, "num_contextual": num_contextual}
            own.update({name: None if each is None else _on_host(name, each) for name, each in given.items()})
            _batch_of([own])

        error = error_of(read)
        kinds = (samples, *(each is not None for each in (num_targets, num_contextual)))
        of_ranks = gather_objects((error, kinds, own), self._groups.planning)
        raise_first([each[0] for each in of_ranks])
        expect_equal("samples, and whether there are targets and contextual tokens,", [each[1] for each in of_ranks])
        brought = [each[2] for each in of_ranks]
        if samples == "all":
            for name in ("lengths", "num_targets", "num_contextual"):
                expect_equal(name, [each[name] for each in brought])
        batch = _batch_of(brought[:1] if samples == "all" else brought)
        self._num_plans += 1
        return ContextPlan(
            batch,
            self.layout.divide(batch, self.layer),
            self.layer,
            self._groups,
            number=self._num_plans - 1,
            is_whole_everywhere=samples == "all",
        )

    def shard(self, tensors: Sequence[Tensor], plan: ContextPlan) -> list[Tensor]:
        """Moves rows of tokens from the ranks that brought them to their owners, all tensors in one all-to-all.

        It has gradients. Use it for ids, times and dropout keys before the lookup, or for activations.

        Args:
            tensors: (tokens that this rank brought, ...), any dtypes.
            plan: plan of the batch.

        Returns:
            (tokens that this rank owns, ...) for each.

        Raises:
            ValueError: a tensor has another number of rows, or ranks use different plans. All ranks raise it.
        """
        return plan.shard(tensors)

    def unshard(self, tensors: Sequence[Tensor], plan: ContextPlan) -> list[Tensor]:
        """Moves rows of tokens from their owners back to the ranks that brought them; see ``shard()``.

        With ``samples="all"`` all ranks get all rows, and gradients of a row are added over ranks: let each rank
        compute a part of the loss.
        """
        return plan.unshard(tensors)

    def mean(self, total: Tensor, count: int | Tensor) -> Tensor:
        """Returns the mean loss of a step, (): the sum over all ranks of ``total``, by that of ``count``.

        All ranks call it, also with a count of 0. The value is the same on all of them. Gradients are those of this
        rank's part, so gradients of weights must be added over ranks, not averaged: take
        ``headway.training.gradients.sum_gradients`` with DDP. The host does not wait for a device.

        Args:
            total: (), sum of the losses of this rank's tokens.
            count: number of terms in it.
        """
        group = self._loss_group
        if group is None and dist.is_initialized():
            group = dist.group.WORLD
        out: Tensor = _Mean.apply(total, count, group)
        return out


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, total: Tensor, count: int | Tensor, group: dist.ProcessGroup | None) -> Tensor:
        own = total.detach().double().reshape(())
        # A fill on the device, not a copy from the host.
        counts = count.to(own).reshape(()) if isinstance(count, Tensor) else torch.full_like(own, count)
        sums = torch.stack([own, counts])
        if group is not None and group.size() > 1:
            dist.all_reduce(sums, group=group)
        divisor = sums[1].clamp(min=1)
        ctx.save_for_backward(divisor)
        return (sums[0] / divisor).to(total.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (divisor,) = ctx.saved_tensors
        return (grad / divisor).to(grad.dtype), None, None


def _group_of(group: dist.ProcessGroup | DeviceMesh | None) -> dist.ProcessGroup | None:
    if not isinstance(group, DeviceMesh):
        return group
    names = group.mesh_dim_names or ()
    if "cp" in names:
        return group.get_group("cp")
    if group.ndim == 1:
        return group.get_group()
    raise ValueError(f'the mesh needs a dimension "cp", and has {group.ndim} dimensions: {names}')


def _groups_of(data: dist.ProcessGroup) -> RankGroups:
    def make() -> dist.ProcessGroup:
        ranks = dist.get_process_group_ranks(data)
        group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        assert isinstance(group, dist.ProcessGroup), "this rank is a member"
        return group

    return RankGroups(rank=data.rank(), data=data, host=make(), planning=make())


def _on_host(name: str, values: Lengths) -> list[int]:
    if isinstance(values, Tensor):
        if values.device.type != "cpu":
            raise ValueError(f"{name} must be in host memory, and is on {values.device}: copy it before the plan")
        if values.is_floating_point() or values.dim() != 1:
            raise ValueError(f"{name} must be (sequences,) integers, not {tuple(values.shape)} {values.dtype}")
        return [int(each) for each in values.tolist()]
    return [int(each) for each in values]


def _batch_of(brought: Sequence[dict[str, list[int] | None]]) -> GroupBatch:
    """Concatenates what ranks brought."""

    def joined(name: str) -> Integers | None:
        parts = [each[name] for each in brought]
        if parts[0] is None:
            return None
        return np.array([value for part in parts for value in part or ()], dtype=np.int64)

    lengths = joined("lengths")
    assert lengths is not None
    counts = [len(each["lengths"] or ()) for each in brought]
    return GroupBatch(
        lengths=lengths,
        num_targets=joined("num_targets"),
        num_contextual=joined("num_contextual"),
        samples_of_ranks=tuple(counts),
    )
