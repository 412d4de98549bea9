"""Runs HSTU attention and its reference on a case, and says how far results are from the truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from headway import reference
from hstu_cases import Case, batch_of
from torch import Tensor

TYPES = [torch.float32, torch.bfloat16, torch.float16]

Attention = Callable[..., Tensor]


def wanted(inputs: list[Tensor], named: dict[str, Any]) -> list[Tensor]:
    """The tensors that get gradients."""
    return [
        each for each in (*inputs[:3], named.get("position_weights"), named.get("time_weights")) if each is not None
    ]


def run(attention: Attention, case: Case, dtype: torch.dtype, *, device: str = "cpu") -> list[Tensor]:
    """Output and gradients in float64."""
    inputs, named = batch_of(case, dtype)
    return _run(attention, inputs, named, dtype, device)


def run_truth(case: Case, dtype: torch.dtype) -> list[Tensor]:
    """The reference in float64, of a batch with the values of ``dtype``."""
    inputs, named = batch_of(case, dtype)
    inputs = [each.double() if each.is_floating_point() else each for each in inputs]
    named |= {name: named[name].double() for name in ("position_weights", "time_weights") if name in named}
    return _run(reference.hstu_attention, inputs, named, dtype, "cpu")


def _run(
    attention: Attention, inputs: list[Tensor], named: dict[str, Any], dtype: torch.dtype, device: str
) -> list[Tensor]:
    inputs = [each.to(device) for each in inputs]
    named = {name: each.to(device) if isinstance(each, Tensor) else each for name, each in named.items()}
    leaves = [each.requires_grad_() for each in wanted(inputs, named)]
    out = attention(*inputs, **named)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    gradients = torch.autograd.grad(out, leaves, grad.to(device, out.dtype), allow_unused=True, materialize_grads=True)
    return [each.detach().cpu().double() for each in (out, *gradients)]


def error_of(values: Tensor, truth: Tensor) -> float:
    """Norm of the difference over that of the truth."""
    return float((values - truth).norm() / truth.norm().clamp(min=1e-30)) if truth.numel() else 0.0


def expect_as_good_as_reference(attention: Attention, case: Case, dtype: torch.dtype, *, device: str = "cpu") -> None:
    """Output and gradients are at most twice as far from the truth as those of the reference in the same type."""
    truth = run_truth(case, dtype)
    plain = run(reference.hstu_attention, case, dtype)
    ours = run(attention, case, dtype, device=device)
    for which, (each, reference_each, truth_each) in enumerate(zip(ours, plain, truth, strict=True)):
        limit = 2 * error_of(reference_each, truth_each) + torch.finfo(dtype).eps / 4
        assert error_of(each, truth_each) <= limit, f"output or gradient {which}"
