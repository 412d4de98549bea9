"""The optimizer of a collection's tables, as ``torch.optim`` and its schedulers see it."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from headway.embedding.merging import MergedTable

if TYPE_CHECKING:
    from headway.embedding.collection import HashTableCollection


class TableOptimizer(torch.optim.Optimizer):
    """Applies the gradients of the backward passes since the last ``step()`` or ``zero_grad()``, added up by key.

    A parameter group for each merged table, with its ``lr``, for schedulers. Its parameter is no weight: its gradient
    is 1 where the tables have one, and not a number if any of theirs is not finite, so that ``torch.amp.GradScaler``
    sees it and may unscale it. With a scaler all ranks must skip the same steps: let it see gradients that all ranks
    share, as those of DDP are.
    """

    #: GradScaler then leaves scaling to step(), and during it sets ``grad_scale`` and ``found_inf`` here.
    _step_supports_amp_scaling = True

    def __init__(
        self, collection: HashTableCollection, groups: Sequence[MergedTable], anchors: Sequence[torch.Tensor]
    ) -> None:
        self._collection = weakref.ref(collection)  # Which has us.
        super().__init__(
            [
                {"params": [anchor], "lr": group.config.optimizer.lr, "name": group.name}
                for group, anchor in zip(groups, anchors, strict=True)
            ],
            {},
        )

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of all rows that have gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if bool(getattr(self, "found_inf", False)):
            self._tables().drop_gradients()
            return loss
        self._tables().apply_gradients(
            [float(group["lr"]) for group in self.param_groups],
            [self._divisor(group["params"][0].grad) for group in self.param_groups],
        )
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients that were not applied."""
        self._tables().drop_gradients()

    def _divisor(self, anchor_grad: torch.Tensor | None) -> float:
        """Of gradients: the scale that a GradScaler gives, or has divided the anchor's gradient by."""
        scale = getattr(self, "grad_scale", None)
        unscaled = 1.0 if anchor_grad is None else float(anchor_grad)
        return (1.0 if scale is None else float(scale)) / (unscaled if math.isfinite(unscaled) else 1.0)

    def _tables(self) -> HashTableCollection:
        collection = self._collection()
        if collection is None:
            raise RuntimeError("the tables of this optimizer are gone")
        return collection

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("the optimizer of tables cannot be copied: save its state_dict(), and the tables by save()")
