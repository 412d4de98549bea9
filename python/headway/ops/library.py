# SPDX-License-Identifier: Apache-2.0
"""Loads the C++ library that defines the operators."""

from __future__ import annotations

import torch

from headway._extension_import import load_operators

load_operators()

#: Library of the registrations that Python adds to the C++ operators: shapes. Gradients are in kernels/torch/.
LIBRARY = torch.library.Library("headway", "FRAGMENT")  # type: ignore[no-untyped-call]
