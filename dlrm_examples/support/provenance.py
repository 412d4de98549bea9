# SPDX-License-Identifier: Apache-2.0
"""Files of results, with their origin: commit and machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_json_lines(path: Path, rows: Iterable[dict[str, Any]], *, devices: str = "") -> None:
    """Writes one line per row to a file, with commit and machine. It creates the directory, and replaces the file.

    ``devices`` is a description of the GPUs, which is appended to that of the machine; it brings its own separator.

    Raises:
        OSError: the file cannot be written.
    """
    origin = {"commit": current_commit(), "machine": describe_machine() + devices}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row | origin)}\n" for row in rows), encoding="utf-8")


def current_commit() -> str:
    """Commit of the checkout that holds this file, with ``+`` if files differ; ``unknown`` without a checkout."""
    command = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--exclude=*",
        "--abbrev=12",
        "--dirty=+",
    ]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def describe_machine() -> str:
    """Processor model, and number of logical processors that this process may use, which are called cores."""
    model = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{model}, {len(os.sched_getaffinity(0))} cores"
