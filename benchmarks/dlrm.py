# SPDX-License-Identifier: Apache-2.0
"""DLRM inference under every setting of the paper on bounded-lag collectives (arXiv 2512.19342).

The systems are synchronous exchanges, and exchanges with bounded lag over Gloo and over Headway.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

DESCRIPTION = "DLRM inference: random delays, heterogeneous lookups, a straggler, balance; three systems, k = 0 to 4"


def main(argv: Sequence[str]) -> int:
    """Runs the grid of ``dlrm_examples``; returns the exit status."""
    # Imported here because it loads torch, which ``headway bench --list`` does not need.
    from dlrm_examples.dlrm_inference.grid import main as run_grid

    return run_grid(list(argv))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
