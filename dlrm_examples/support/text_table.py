# SPDX-License-Identifier: Apache-2.0
"""Tables for the terminal, and sizes and times in readable units."""

from __future__ import annotations

from collections.abc import Sequence


def format_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligns columns, the first to the left and the others to the right."""
    lines = [tuple(headings), *map(tuple, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def format_bytes(count: float) -> str:
    """Formats a size with up to four digits and a binary unit, such as 32 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.4g} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def format_time(seconds: float | None) -> str:
    """Formats a time with three digits and a unit from ns to s."""
    if seconds is None:
        return "-"
    for scale, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def format_ratio(ratio: float | None, low: float | None = None, high: float | None = None) -> str:
    """Formats a ratio with its interval, such as ``2.10x (1.95 to 2.30)``."""
    if ratio is None:
        return "-"
    return f"{ratio:.2f}x" if low is None or high is None else f"{ratio:.2f}x ({low:.2f} to {high:.2f})"
