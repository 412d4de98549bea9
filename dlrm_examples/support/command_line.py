# SPDX-License-Identifier: Apache-2.0
"""Types of command-line arguments, and the name under which a program was started."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path


def at_least(lowest: int) -> Callable[[str], int]:
    """Returns an argparse type: an integer of at least ``lowest``."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None
        if value < lowest:
            raise argparse.ArgumentTypeError(f"must be at least {lowest}, not {value}")
        return value

    return convert


def program_name(module: str) -> str:
    """Command by which the user started this program: ``headway NAME``, which sets ``argv[0]``, or ``python -m``."""
    started = Path(sys.argv[0]).name
    return sys.argv[0] if started.startswith("headway ") else f"python -m {module}"
