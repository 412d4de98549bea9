"""Loads the C++ operators, after checking that they were built for the torch that is installed."""

from __future__ import annotations

import torch

try:
    from headway import _kernels
except ImportError as error:
    raise ImportError(
        f"headway's operators cannot be loaded with torch {torch.__version__}: {error}. "
        "Build them with `make build`, or reinstall headway for this torch."
    ) from error

if torch.__version__.split("+")[0] != _kernels.torch_version:
    raise ImportError(
        f"headway's operators were built for torch {_kernels.torch_version}, and torch {torch.__version__} is "
        "installed: reinstall headway"
    )

#: What Python adds to the operators: shapes, gradients and casts.
LIBRARY = torch.library.Library("headway", "FRAGMENT")  # type: ignore[no-untyped-call]
