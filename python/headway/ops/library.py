"""Loads the C++ operators."""

from __future__ import annotations

from typing import Any

import torch

from headway._built_for import import_extension

import_extension("_kernels")

#: What Python adds to the operators: shapes, gradients and casts.
LIBRARY = torch.library.Library("headway", "FRAGMENT")  # type: ignore[no-untyped-call]


def refuse_gradients_of(name: str) -> None:
    """Makes second derivatives, through the backward pass ``name`` of an operator, an error instead of zeros."""

    def refuse(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError(f"torch.ops.headway.{name} has no gradient: second derivatives are not there")

    torch.library.register_autograd(f"headway::{name}", refuse, lib=LIBRARY)
