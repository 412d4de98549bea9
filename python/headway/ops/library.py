# SPDX-License-Identifier: Apache-2.0
"""Loads the C++ extension that defines the operators."""

from __future__ import annotations

from typing import Any

import torch

from headway._extension_import import import_extension

import_extension("_kernels")

#: Library of the registrations that Python adds to the C++ operators: shapes and gradients.
LIBRARY = torch.library.Library("headway", "FRAGMENT")  # type: ignore[no-untyped-call]


def refuse_gradients_of(name: str) -> None:
    """Makes second derivatives raise instead of being zero. ``name`` is the backward operator."""

    def refuse(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError(f"torch.ops.headway.{name} has no gradient: second derivatives are not there")

    torch.library.register_autograd(f"headway::{name}", refuse, lib=LIBRARY)
