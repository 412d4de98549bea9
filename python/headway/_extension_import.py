# SPDX-License-Identifier: Apache-2.0
"""Imports a C++ extension and checks that torch is supported and the one that the extension was built for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from headway._supported_versions import check_torch


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
        raise ImportError(
            f"headway's C++ extension {name} cannot be loaded with torch {torch.__version__}: {error}. "
            "Build it with `make build`, or reinstall headway for this torch."
        ) from error
    if torch.__version__.split("+")[0] != extension.torch_version:
        raise ImportError(
            f"headway was built for torch {extension.torch_version}, and torch {torch.__version__} is installed: "
            "reinstall headway"
        )
    return extension
