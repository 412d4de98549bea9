"""Loads the C++ operators."""

from __future__ import annotations

import torch

from headway._built_for import import_extension

import_extension("_kernels")

#: What Python adds to the operators: shapes, gradients and casts.
LIBRARY = torch.library.Library("headway", "FRAGMENT")  # type: ignore[no-untyped-call]
