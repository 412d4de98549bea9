# SPDX-License-Identifier: Apache-2.0
"""Loads the C++ libraries of this package, and checks that torch is supported and the one that they were built for."""

from __future__ import annotations

import ctypes
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from headway._supported_versions import check_torch

#: Defines ``torch.ops.headway`` and ``torch.classes.headway``. It needs no Python, so C++ programs may load it too.
OPERATOR_LIBRARY = Path(__file__).with_name("libheadway_operators.so")


def import_extension(name: str) -> Any:
    """Imports the C++ extension ``headway.<name>``.

    Raises:
        ImportError: this torch is not supported, or the extension is missing, does not load, or was built for another
            version of torch.
    """
    check_torch(torch.__version__)
    try:
        extension = import_module(f"headway.{name}")
    except ImportError as error:
        raise _not_loaded(f"C++ extension {name}", error) from error
    _expect_version(extension.torch_version)
    return extension


def load_operators() -> None:
    """Loads ``OPERATOR_LIBRARY``. Raises as ``import_extension()``."""
    check_torch(torch.__version__)
    try:
        torch.ops.load_library(OPERATOR_LIBRARY)  # type: ignore[no-untyped-call]
        version = ctypes.CDLL(str(OPERATOR_LIBRARY)).headway_torch_version
    except OSError as error:
        if not OPERATOR_LIBRARY.exists():
            raise ImportError(
                f"headway's operator library is not built ({OPERATOR_LIBRARY} is missing): run `make build`; "
                "`make demo` does not need it, and builds less"
            ) from error
        raise _not_loaded("operator library", error) from error
    version.restype = ctypes.c_char_p
    _expect_version(version().decode())


def _not_loaded(what: str, error: Exception) -> ImportError:
    return ImportError(
        f"headway's {what} cannot be loaded with torch {torch.__version__}: {str(error).rstrip('.')}. "
        "Build it with `make build`, or reinstall headway for this torch"
    )


def _expect_version(built_for: str) -> None:
    if torch.__version__.split("+")[0] != built_for:
        raise ImportError(
            f"headway was built for torch {built_for}, and torch {torch.__version__} is installed: reinstall headway"
        )
