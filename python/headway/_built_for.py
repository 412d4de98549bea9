"""Imports a C++ extension and checks that it was built for the installed torch."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch


def import_extension(name: str) -> Any:
    """Imports the C++ extension ``headway.<name>``.

    Raises:
        ImportError: the extension is missing, does not load, or was built for another version of torch.
    """
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
