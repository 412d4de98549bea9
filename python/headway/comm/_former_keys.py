# SPDX-License-Identifier: Apache-2.0
"""Keys of public dictionaries that have new names. The former ones work for one release, with a warning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway._deprecation import warn_renamed


class WithFormerKeys(dict[str, Any]):
    """A dictionary that also answers to the former names of its keys."""

    def __init__(self, values: Mapping[str, Any], *, new_names: Mapping[str, str], owner: str) -> None:
        """``new_names``: new name of each former key; ``owner``: function that returned the dictionary."""
        super().__init__(values)
        self._new_names = dict(new_names)
        self._owner = owner

    def __missing__(self, key: str) -> Any:
        new = self._new_names.get(key)
        if new is None or new not in self:
            raise KeyError(key)
        warn_renamed(f"{self._owner}: {key}", new)
        return self[new]
