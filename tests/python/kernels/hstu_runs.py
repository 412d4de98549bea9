# SPDX-License-Identifier: Apache-2.0
"""Runs HSTU attention and its reference on a case, and measures the error of the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from headway import reference
from headway.ops import hstu_attention
from hstu_cases import Case, batch_of
from torch import Tensor

#: Types that are held to the error of the reference in the same type. Float64 is the truth.
TYPES = [torch.float32, torch.bfloat16, torch.float16]

Attention = Callable[..., Tensor]

#: Largest error of a sigmoid that is computed by a GPU's tanh instruction, whose relative error is up to 2^-11.
_TANH_ERROR = 2.0**-12

#: Arguments of ``hstu_attention`` that ``reference.hstu_mask`` takes too.
_OF_MASKS = ("causal", "window", "full_attention_tail")


def wanted(inputs: list[Tensor], named: dict[str, Any]) -> list[Tensor]:
    """Returns the tensors that get gradients."""
    return [
        each for each in (*inputs[:3], named.get("position_weights"), named.get("time_weights")) if each is not None
    ]


def run(attention: Attention, case: Case, dtype: torch.dtype, *, device: str = "cpu") -> list[Tensor]:
    """Returns output and gradients (of q, k, v, and of the bias weights that the case has) in float64."""
    inputs, named = batch_of(case, dtype)
    return _run(attention, inputs, named, dtype, device)


def run_truth(case: Case, dtype: torch.dtype) -> list[Tensor]:
    """Runs the reference in float64 on a batch with values of ``dtype``."""
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
    grad = _grad_like(out, dtype)
    gradients = torch.autograd.grad(out, leaves, grad.to(device, out.dtype), allow_unused=True, materialize_grads=True)
    return [each.detach().cpu().double() for each in (out, *gradients)]


def _grad_like(out: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def error_of(values: Tensor, truth: Tensor) -> float:
    """Relative error: norm of the difference over the norm of the truth."""
    return float((values - truth).norm() / truth.norm().clamp(min=1e-30)) if truth.numel() else 0.0


def expect_as_good_as_reference(attention: Attention, case: Case, dtype: torch.dtype, *, device: str = "cpu") -> None:
    """Checks that the errors are at most twice those of the reference in the same type, for output and gradients."""
    truth = run_truth(case, dtype)
    plain = run(reference.hstu_attention, case, dtype)
    ours = run(attention, case, dtype, device=device)
    for which, (each, reference_each, truth_each) in enumerate(zip(ours, plain, truth, strict=True)):
        limit = 2 * error_of(reference_each, truth_each) + torch.finfo(dtype).eps / 4
        assert error_of(each, truth_each) <= limit, f"output or gradient {which}"


def expect_bias_gradients_as_promised(
    attention: Attention, case: Case, dtype: torch.dtype, *, device: str = "cpu"
) -> None:
    """Checks the error bound of the gradients of bias weights that ``headway.ops.hstu_attention`` documents."""
    ours, truth = run(attention, case, dtype, device=device), run_truth(case, dtype)
    tanh_error = 0.0 if device == "cpu" or dtype == torch.float32 else _TANH_ERROR
    # Entries 0 to 3 are the output and the gradients of q, k and v.
    for each, truth_each, limits in zip(ours[4:], truth[4:], _error_limits(case, dtype, tanh_error), strict=True):
        error = ((each - truth_each).abs() / limits.clamp(min=1e-30)).max()
        assert error <= 1, f"{error} times what the operator promises"


def _error_limits(case: Case, dtype: torch.dtype, tanh_error: float) -> list[Tensor]:
    """The promised largest error of the gradient of each bias weight: a sum over the pairs that use the weight.

    ``headway.ops.hstu_attention`` has the formula, under "Accuracy".

    Shapes: H heads, Q queries and K keys of one sequence.
    """
    (q, k, v, offsets), named = batch_of(case, dtype)
    grad = _grad_like(q.new_empty(*q.shape[:2], v.shape[2]), dtype).double()
    ends, key_ends = offsets.tolist(), named["key_offsets"].tolist()
    sums = {name: named[name].double().zero_() for name in ("position_weights", "time_weights") if name in named}
    for b in range(len(ends) - 1):
        queries, keys = slice(ends[b], ends[b + 1]), slice(key_ends[b], key_ends[b + 1])
        num_queries, num_keys = queries.stop - queries.start, keys.stop - keys.start
        if num_queries == 0:
            continue
        is_wide = dtype in (torch.float32, torch.float64)
        scores_HQK = torch.einsum("qhd,khd->hqk", q[queries].double(), k[keys].double())
        score_sizes_HQK = torch.einsum("qhd,khd->hqk", q[queries].double().abs(), k[keys].double().abs())
        key_K = torch.arange(num_keys)
        if "position_weights" in sums:
            index_QK = sums["position_weights"].numel() // 2 + key_K - key_K[num_keys - num_queries :, None]
            scores_HQK += named["position_weights"].double()[index_QK]
        if "time_weights" in sums:
            apart_QK = (named["query_times"][queries, None] - named["key_times"][keys]).abs().float()
            bucket_QK = torch.bucketize(apart_QK, named["time_bounds"], right=True)
            scores_HQK += named["time_weights"].double()[bucket_QK]
        scores_HQK *= case.options.get("alpha", 1.0)
        eps = torch.finfo(dtype).eps
        if is_wide:
            limits_HQK = torch.einsum("qhv,khv->hqk", grad[queries].abs(), v[keys].double().abs())
            limits_HQK *= 4 * eps * (1 + case.options.get("alpha", 1.0) * score_sizes_HQK)
        else:
            limits_HQK = torch.einsum("qhv,khv->hqk", grad[queries], v[keys].double()).abs()
            limits_HQK *= 4 * eps + tanh_error * (1 + scores_HQK.abs())
        magnitudes_QK = limits_HQK.sum(0)
        options = {name: value for name, value in case.options.items() if name in _OF_MASKS}
        counts = {name: int(named[name][b]) for name in ("num_contextual", "num_targets") if name in named}
        magnitudes_QK *= reference.hstu_mask(num_queries, num_keys, **options, **counts)
        scale = case.options.get("scale", "max_length")
        scale = {"max_length": 1 / named["max_length"], "length": 1 / num_keys}.get(scale, scale)
        magnitudes_QK *= scale * case.options.get("alpha", 1.0)
        if "position_weights" in sums:
            sums["position_weights"].index_add_(0, index_QK.flatten(), magnitudes_QK.flatten())
        if "time_weights" in sums:
            sums["time_weights"].index_add_(0, bucket_QK.flatten(), magnitudes_QK.flatten())
    return list(sums.values())


def expect_zeros_behind(
    case: Case, dtype: torch.dtype, *, device: str = "cpu", attention: Attention = hstu_attention
) -> None:
    """Rows behind the last offset that are not numbers change nothing but become zeros, as do their gradients."""
    num_behind = 70
    inputs, named = batch_of(case, dtype)
    longer, longer_named = batch_of(case, dtype)
    longer[:3] = [torch.cat([each, each.new_full((num_behind, *each.shape[1:]), torch.nan)]) for each in longer[:3]]
    for name in ("query_times", "key_times"):
        if name in longer_named:
            longer_named[name] = torch.cat([longer_named[name], torch.full((num_behind,), 1 << 62)])
    grad = torch.randn((*inputs[0].shape[:2], inputs[2].shape[2]), generator=torch.Generator().manual_seed(2)).to(dtype)
    results = []
    for batch, options, given in (
        (inputs, named, grad),
        (longer, longer_named, torch.cat([grad, grad.new_full((num_behind, *grad.shape[1:]), torch.nan)])),
    ):
        batch = [each.to(device) for each in batch]
        options = {name: each.to(device) if isinstance(each, Tensor) else each for name, each in options.items()}
        leaves = [each.requires_grad_() for each in wanted(batch, options)]
        out = attention(*batch, **options)
        results.append([out, *torch.autograd.grad(out, leaves, given.to(device))])
    for which, (expected, found) in enumerate(zip(*results, strict=True)):
        if which < 4:  # The output and the gradients of q, k and v have one row per token.
            expected = torch.cat([expected, expected.new_zeros(num_behind, *expected.shape[1:])])
        # On a GPU some sums have another order each time.
        tolerance = 0 if device == "cpu" else 8 * torch.finfo(dtype).eps
        limit = tolerance * expected.abs().max().item() if expected.numel() else 0
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=limit, msg=f"output or gradient {which}")
        if which < 4:
            assert not found[found.shape[0] - num_behind :].any(), f"output or gradient {which}"
