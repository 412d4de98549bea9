"""What can go wrong in a benchmark that its user can do something about."""

from __future__ import annotations


class BenchmarkError(RuntimeError):
    """One line that says what is missing or which program failed, and how."""
