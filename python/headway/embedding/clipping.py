"""Gradient clipping by a norm over the parameters of a model and its tables.

``torch.nn.utils.clip_grad_norm_()`` sees parameters alone: the gradients of tables are no ``grad`` of any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch


class TablesWithGradients(Protocol):
    """Tables between a backward pass and the optimizer's step, as ``HashTableCollection``."""

    def gradient_norm(self) -> torch.Tensor: ...
    def scale_gradients(self, factor: torch.Tensor | float) -> None: ...


def clip_grad_norm_(
    parameters: Iterable[torch.Tensor],
    max_norm: float,
    *,
    tables: Sequence[TablesWithGradients],
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """Scales all gradients so that their L2 norm is at most ``max_norm``, between ``backward()`` and ``step()``.

    All ranks of the tables call it alike. With a GradScaler call ``unscale_()`` before, also with the optimizers of
    the tables. It does not wait for the device, unless a GradScaler was there.

    Args:
        parameters: those that are not in tables; their gradients are the same on all ranks, as those of DDP.
        max_norm: of all gradients together.
        tables: the collections of the model.
        error_if_nonfinite: raise if the norm is not finite.
    Returns:
        (): the norm before.
    Raises:
        RuntimeError: ``error_if_nonfinite``, and the norm is not finite; gradients are as they were.
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
