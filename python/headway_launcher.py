# SPDX-License-Identifier: Apache-2.0
"""The ``headway`` command. It works where ``import headway`` does not, so that ``headway doctor`` can say why.

The package's ``__init__`` imports torch and registers the backend, which takes seconds and may fail. This launcher
makes the package known without running it; ``headway.cli.main`` runs it when a command needs it.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    package = types.ModuleType("headway")
    package.__path__ = [str(Path(__file__).parent / "headway")]
    sys.modules["headway"] = package
    from headway.cli.main import main as run

    return run(sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main())
