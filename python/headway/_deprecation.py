# SPDX-License-Identifier: Apache-2.0
"""Old names of functions and arguments, which stay for one release with a ``DeprecationWarning``."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def warn_renamed(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Warns that ``old`` is called ``new`` now, in the name of the caller's caller."""
    warnings.warn(f"{old} is deprecated and will be removed: use {new}", DeprecationWarning, stacklevel=stacklevel)


def renamed_argument(old: str, new: str) -> Callable[[_Function], _Function]:
    """Makes a function take the keyword argument ``new`` under its name ``old`` too."""

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def call(*arguments: Any, **others: Any) -> Any:
            if old in others:
                warn_renamed(f"{function.__name__}({old}=)", f"{new}=")
                others[new] = others.pop(old)
            return function(*arguments, **others)

        return call  # type: ignore[return-value]

    return decorate
