# SPDX-License-Identifier: Apache-2.0
"""Gradients of operators are in C++: the backward pass calls no Python of torch, and compiled autograd traces it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from headway import ops
from torch import Tensor
from torch._dynamo import compiled_autograd
from torch.utils.checkpoint import checkpoint

#: Two sequences of two rows; lengths (features, samples) of four rows; bounds of the samples of two ranks.
_OFFSETS = torch.tensor([0, 2, 4])
_LENGTHS = torch.tensor([[1, 0], [2, 1]])
_BOUNDS = torch.tensor([0, 1, 2])


def _leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), requires_grad=True)


def _attention() -> list[Tensor]:
    q, k, v = (_leaf(4, 1, 8) for _ in range(3))
    return [ops.hstu_attention(q, k, v, _OFFSETS, max_length=4, position_weights=_leaf(7))]


#: A call of each operator that has a gradient.
_CALLS: dict[str, Callable[[], list[Tensor]]] = {
    "hstu_attention": _attention,
    "gated_norm": lambda: [ops.gated_norm(_leaf(4, 8), _leaf(4, 8), weight=_leaf(8))],
    "silu_split": lambda: ops.silu_split(_leaf(4, 8), [3, 5]),
    "jagged_concat": lambda: [ops.jagged_concat([_leaf(4, 2), _leaf(4, 2)], [_OFFSETS, _OFFSETS])[0]],
    "jagged_split": lambda: ops.jagged_split(_leaf(8, 2), [_OFFSETS, _OFFSETS], [4, 4]),
    "jagged_to_padded": lambda: [ops.jagged_to_padded(_leaf(4, 2), _OFFSETS, max_length=3)],
    "padded_to_jagged": lambda: [ops.padded_to_jagged(_leaf(2, 3, 2), _OFFSETS, num_rows=4)],
    "jagged_add_dense": lambda: [ops.jagged_add_dense(_leaf(4, 2), _OFFSETS, _leaf(2, 3, 2))],
    "jagged_reduce": lambda: [ops.jagged_reduce(_leaf(4, 2), _OFFSETS, "mean")],
    "jagged_expand": lambda: [ops.jagged_expand(_leaf(2, 2), _OFFSETS, num_rows=4)],
    "jagged_permute": lambda: ops.jagged_permute([_leaf(4, 2)], _LENGTHS, features=torch.tensor([1, 0]), num_rows=4)[0],
    "jagged_transpose": lambda: ops.jagged_transpose([_leaf(4, 2)], _LENGTHS)[0],
    "ranged_dispatch": lambda: ops.ranged_dispatch([_leaf(4, 2)], _LENGTHS, _BOUNDS)[0],
    "ranged_combine": lambda: ops.ranged_combine([_leaf(4, 2)], torch.tensor([1, 2, 0, 1]), _BOUNDS, num_features=2)[0],
    "ranged_dispatch_dense": lambda: ops.ranged_dispatch_dense([_leaf(2, 2)], _BOUNDS),
    "ranged_combine_dense": lambda: ops.ranged_combine_dense([_leaf(4, 2)], _BOUNDS, num_features=2),
}


def _python_files_of(call: Callable[[], Any]) -> set[str]:
    """Runs ``call`` and returns the files of all Python functions that it enters."""
    files = set()

    def record(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    sys.setprofile(record)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


def _loss(outs: list[Tensor]) -> Tensor:
    return torch.stack([out.sin().sum() for out in outs]).sum()


@pytest.mark.parametrize("name", _CALLS)
def test_neither_pass_enters_the_python_autograd_of_torch(name: str) -> None:
    _loss(_CALLS[name]()).backward()  # Modules that torch imports at a first call do not count.
    files = _python_files_of(lambda: _loss(_CALLS[name]()).backward())
    # Gradients that are registered in Python run in torch/_library.
    assert not [each for each in files if "_library" in each], "torch runs gradients of Python there"


@pytest.mark.parametrize("name", _CALLS)
def test_activations_may_be_computed_again(name: str) -> None:
    anchor = torch.ones((), requires_grad=True)
    out: Tensor = checkpoint(lambda x: _loss([x * each for each in _CALLS[name]()]), anchor, use_reentrant=False)
    out.backward()
    again = torch.ones((), requires_grad=True)
    _loss([again * each for each in _CALLS[name]()]).backward()
    torch.testing.assert_close(anchor.grad, again.grad, rtol=0, atol=0)


def test_all_operators_with_a_gradient_are_tried() -> None:
    has_gradient = {
        name.removeprefix("headway::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("headway::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, "Autograd")
    }
    assert {name for name in has_gradient if not name.endswith("_backward")} == set(_CALLS)


def test_compiled_autograd_gives_the_same_gradients() -> None:
    def gradients(*, compiled: bool) -> list[Tensor]:
        leaves = [_leaf(4, 8), _leaf(4, 8)]
        outs = [
            ops.gated_norm(*leaves),
            *ops.silu_split(leaves[0], [4, 4]),
            ops.jagged_reduce(leaves[1], _OFFSETS, "mean"),
        ]
        loss = _loss(outs)
        if compiled:
            with compiled_autograd._enable(torch.compile(backend="eager")):
                loss.backward()
        else:
            loss.backward()
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    torch.testing.assert_close(gradients(compiled=True), gradients(compiled=False), rtol=0, atol=0)
