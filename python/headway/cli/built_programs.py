# SPDX-License-Identifier: Apache-2.0
"""The C++ programs ``headway_serve`` and ``headway_load``, which are built where gRPC is found."""

from __future__ import annotations

import sys
from pathlib import Path


def program_path(name: str) -> Path:
    """Path of a program, built or not."""
    return Path(__file__).resolve().parents[1] / "bin" / name


def has_program(command: str, name: str) -> bool:
    """Is a program built? Prints what to install if not."""
    if program_path(name).exists():
        return True
    print(
        f"headway {command}: this build has no {name}, as gRPC was not found. Install libgrpc++-dev, "
        "protobuf-compiler-grpc and nlohmann-json3-dev (Debian, Ubuntu), and build again.",
        file=sys.stderr,
    )
    return False
