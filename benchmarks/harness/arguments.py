# SPDX-License-Identifier: Apache-2.0
"""Options that the benchmarks share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from dlrm_examples.support.command_line import at_least as whole_number
from dlrm_examples.support.command_line import program_name

USAGE_ERROR = 2
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30}


class OneLineParser(argparse.ArgumentParser):
    """Reports a wrong argument in one line, without the usage. That of ``headway.cli`` would import torch."""

    def error(self, message: str) -> NoReturn:
        """Ends the program with one line on stderr."""
        self.exit(USAGE_ERROR, f"{self.prog}: {message} (see {self.prog} --help)\n")


def size(text: str) -> int:
    """Parses a number of bytes such as ``512``, ``32K`` or ``2MiB``; units are binary.

    Raises:
        argparse.ArgumentTypeError: the text is not a number of bytes.
    """
    digits = text.rstrip("KkMmGgIiBb")
    unit = text[len(digits) :].lower()
    if not digits.isdecimal() or unit not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: 512, 32K and 2M are")
    return int(digits) * _UNITS[unit]


def make_parser(
    name: str,
    description: str,
    *,
    ranks: Sequence[int],
    sizes: str | None = None,
    against: str | None = None,
    rounds: int | None = None,
    epilog: str | None = None,
) -> OneLineParser:
    """Makes a parser with the options of this benchmark. A default of None leaves the option out.

    ``--sizes`` and ``--against`` accept values separated by commas or spaces.
    """
    parser = OneLineParser(
        prog=program_name(f"benchmarks.{name}"),
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--ranks",
        type=whole_number(1),
        nargs="+",
        default=list(ranks),
        metavar="N",
        help=f"processes (default: {' '.join(map(str, ranks))})",
    )
    if sizes is not None:
        parser.add_argument(
            "--sizes",
            type=_sizes,
            nargs="+",
            default=[_sizes(sizes)],
            metavar="BYTES",
            help=f"bytes per rank, the total over all destinations (default: {sizes})",
        )
    if against is not None:
        parser.add_argument(
            "--against",
            choices=(against, "none"),
            default=None,
            help=f"compare with this system (default: {against} where it is there)",
        )
    if rounds is not None:
        parser.add_argument(
            "--rounds",
            type=whole_number(1),
            default=rounds,
            metavar="N",
            help="how often the systems take turns; ratios are taken within a round (default: %(default)s)",
        )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write one JSON line a point there")
    parser.add_argument(
        "--out", type=Path, default=Path("out/bench"), metavar="DIR", help="gets the plots (default: %(default)s)"
    )
    return parser


def add_program_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the benchmarks that start the C++ programs."""
    parser.add_argument(
        "--programs", type=Path, metavar="DIR", help="folder of the C++ programs (default: build/ of the checkout)"
    )
    parser.add_argument(
        "--repetitions", type=whole_number(1), metavar="N", help="timed calls of a point and round (default: by size)"
    )
    parser.add_argument(
        "--time-limit", type=whole_number(1), default=300, metavar="S", help="of one run (default: %(default)s s)"
    )


def flat(values: Sequence[list[int]]) -> list[int]:
    """Flattens groups of sizes such as ``[[8, 512], [4096]]``, in order and without repeats."""
    return list(dict.fromkeys(value for group in values for value in group))


def _sizes(text: str) -> list[int]:
    return [size(part) for part in text.split(",")]
