# SPDX-License-Identifier: Apache-2.0
"""Loads the C++ extension that defines the operators."""

from __future__ import annotations

import torch

from headway._extension_import import import_extension

import_extension("_kernels")

#: Library of the registrations that Python adds to the C++ operators: shapes. Gradients are in kernels/torch/.
LIBRARY = torch.library.Library("headway", "FRAGMENT")  # type: ignore[no-untyped-call]
