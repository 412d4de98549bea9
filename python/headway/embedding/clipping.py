# SPDX-License-Identifier: Apache-2.0
"""Gradient clipping by the norm over the parameters of a model and its tables.

``torch.nn.utils.clip_grad_norm_()`` sees only the ``grad`` of parameters. Tables keep their gradients themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch


class TablesWithGradients(Protocol):
    """Interface of tables with pending gradients; ``HashTableCollection`` implements it."""

    def gradient_norm(self) -> torch.Tensor:
        """Returns the L2 norm of the pending gradients on all ranks, () float64, equal on all ranks."""

    def scale_gradients(self, factor: torch.Tensor | float) -> None:
        """Multiplies the pending gradients of this rank."""


def clip_grad_norm_(
    parameters: Iterable[torch.Tensor],
    max_norm: float,
    *,
    tables: Sequence[TablesWithGradients],
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """Scales all gradients so that their L2 norm is at most ``max_norm``, between ``backward()`` and ``step()``.

    All ranks of the tables call it with the same arguments. With a GradScaler call ``unscale_()`` before, also for the
    optimizers of the tables. It waits for the device only if a GradScaler read the gradients, or with
    ``error_if_nonfinite``.

    Args:
        parameters: the parameters outside of tables. Their gradients must be the same on all ranks, as with DDP.
        max_norm: largest norm of all gradients together.
        tables: the collections of the model.
        error_if_nonfinite: raise if the norm is not finite.
    Returns:
        the norm before clipping, ().
    Raises:
        RuntimeError: ``error_if_nonfinite`` is set and the norm is not finite; the gradients are unchanged.
    """
    dense = [parameter for parameter in parameters if parameter.grad is not None]
    norms = [torch.nn.utils.get_total_norm([each.grad for each in dense if each.grad is not None])] if dense else []
    norms += [each.gradient_norm() for each in tables]
    if not norms:
        return torch.zeros(())
    device = norms[-1].device
    total: torch.Tensor = torch.stack([norm.to(device, torch.float64) for norm in norms]).norm().float()
    if error_if_nonfinite and not bool(total.isfinite()):
        raise RuntimeError(f"the norm of the gradients is {float(total)}, so they cannot be clipped")
    torch.nn.utils.clip_grads_with_norm_(dense, max_norm, total)
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for each in tables:
        each.scale_gradients(factor)
    return total
