# SPDX-License-Identifier: Apache-2.0
"""The command ``headway flight-records``."""

from __future__ import annotations

import argparse

from headway.cli.one_line_parser import OneLineParser
from headway.comm.flight_recorder import export


def main(arguments: list[str]) -> int:
    """Runs ``headway flight-records``; returns the exit status."""
    parser = OneLineParser(
        prog="headway flight-records",
        description="Makes of the flight records of all ranks what PyTorch's analyzer (torchfrtrace) reads.",
        epilog="Records come from a run with HEADWAY_FLIGHT_RECORDER=FOLDER in which a group failed.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="FOLDER", help="where the ranks wrote them")
    parser.add_argument("--output", metavar="FOLDER", required=True, help="where to put the analyzer's files")
    chosen = parser.parse_args(arguments)
    try:
        written = export(chosen.folder, chosen.output)
    except (OSError, ValueError) as error:
        parser.error(" ".join(str(error).split()))
    print(f"{len(written)} ranks; now: torchfrtrace {chosen.output}")
    return 0
