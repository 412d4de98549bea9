"""The optimizer of a collection's tables, as ``torch.optim`` and its schedulers see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from headway.embedding.merging import MergedTable


class Learner(Protocol):
    """What has gradients to be applied."""

    def apply_gradients(self, rates: Sequence[float], grad_scale: float) -> None: ...
    def drop_gradients(self) -> None: ...


class TableOptimizer(torch.optim.Optimizer):
    """Applies the gradients of the backward passes since the last ``step()`` or ``zero_grad()``, added up by key.

    A parameter group for each merged table, with its ``lr``, for schedulers. Its parameter is no weight: it has one
    element, whose gradient is not a number if any of the tables' is not finite, for ``torch.amp.GradScaler``. With a
    scaler all ranks must skip the same steps: let it see gradients that all ranks share, as those of DDP are.
    """

    #: GradScaler then leaves scaling to step(), and during it sets ``grad_scale`` and ``found_inf`` here.
    _step_supports_amp_scaling = True

    def __init__(self, learner: Learner, groups: Sequence[MergedTable], anchors: Sequence[torch.Tensor]) -> None:
        self._learner = learner
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
            self._learner.drop_gradients()
            return loss
        scale = float(getattr(self, "grad_scale", 1.0))
        self._learner.apply_gradients([float(group["lr"]) for group in self.param_groups], scale)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients that were not applied."""
        super().zero_grad(set_to_none)
        self._learner.drop_gradients()

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("the optimizer of tables cannot be copied: save its state_dict(), and the tables by save()")
