# SPDX-License-Identifier: Apache-2.0
"""Errors that the user of a benchmark can act on."""

from __future__ import annotations


class BenchmarkError(RuntimeError):
    """One line that says what is missing, or which program failed and how."""
