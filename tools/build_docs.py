# SPDX-License-Identifier: Apache-2.0
"""Builds the documents in ``docs/`` as a site in ``out/docs/html``. Every warning is an error.

Doxygen reads the public C++ headers, and Sphinx the pages and the compiled Python package. No GPU is needed.
The exit status is 77 where Doxygen or Sphinx is not installed.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "out/docs"
NOT_INSTALLED = 77


def main() -> int:
    """Runs Doxygen and Sphinx; returns the status of the first that fails, or NOT_INSTALLED."""
    if missing := _missing_programs():
        print(f"docs: {' and '.join(missing)} not installed: tools/setup.sh --docs installs what is missing")
        return NOT_INSTALLED
    OUT.mkdir(parents=True, exist_ok=True)
    for folder in ("doxygen", "html"):  # Pages that are gone from the sources must not stay.
        shutil.rmtree(OUT / folder, ignore_errors=True)
    for command in (
        ["doxygen", "docs/Doxyfile"],
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-E", "-b", "html",
         "-d", str(OUT / "doctrees"), "docs", str(OUT / "html")],
    ):  # fmt: skip
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        if status != 0:
            return status
    print(f"docs: {OUT.relative_to(ROOT)}/html/index.html")
    return 0


def _missing_programs() -> list[str]:
    missing = [] if shutil.which("doxygen") else ["Doxygen"]
    modules = ("sphinx", "myst_parser", "breathe", "furo")
    return missing + [name for name in modules if importlib.util.find_spec(name) is None]


if __name__ == "__main__":
    sys.exit(main())
