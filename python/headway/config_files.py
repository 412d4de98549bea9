# SPDX-License-Identifier: Apache-2.0
"""Configuration files: TOML whose sections are dataclasses. An unknown key is an error that names the nearest one."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class ConfigError(ValueError):
    """A setting is unknown, of a wrong type, or contradicts another one."""


def read_toml(path: Path) -> dict[str, Any]:
    """Reads a file.

    Raises:
        ConfigError: it cannot be read, or is not TOML. The message names the file.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def build_config(kind: type[T], values: Mapping[str, Any]) -> T:
    """Makes a dataclass from nested dictionaries. Its fields are values, or dataclasses for sections.

    Raises:
        ConfigError: a setting is unknown, missing or of a wrong type. The message names it.
    """
    made: T = _build_section(kind, values, "")
    return made


def _build_section(kind: Any, values: Any, path: str) -> Any:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path or 'the file'} is {values!r}, not a section")
    hints = get_type_hints(kind)
    known = {each.name: each for each in fields(kind)}
    for name in values:
        if name not in known:
            # A section for a section: "modle.dim" means "model", though "mode" is nearer.
            is_section = isinstance(values[name], Mapping)
            alike = [each for each in known if is_dataclass(hints[each]) == is_section] or known
            near = difflib.get_close_matches(name, alike, n=1, cutoff=0.5)
            hint = f": did you mean {_key(path, near[0])}?" if near else f"; there are {', '.join(known)}"
            raise ConfigError(f"unknown key {_key(path, name)}{hint}")
    arguments = {}
    for name, each in known.items():
        if name in values:
            arguments[name] = _convert(hints[name], values[name], _key(path, name))
        elif each.default is MISSING and each.default_factory is MISSING:
            raise ConfigError(f"{_key(path, name)} is missing")
    return kind(**arguments)


def _key(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _convert(hint: Any, value: Any, path: str) -> Any:
    """Converts a value of TOML to the type of a field."""
    if is_dataclass(hint):
        return _build_section(hint, value, path)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if value is None:
            return None
        (inner,) = (each for each in arguments if each is not NoneType)
        return _convert(inner, value, path)
    if origin is Literal:
        if value not in arguments:
            raise ConfigError(f"{path} must be one of {', '.join(map(repr, arguments))}, not {value!r}")
        return value
    if origin is tuple and isinstance(value, list | tuple):
        if arguments[-1] is not Ellipsis and len(value) != len(arguments):
            raise ConfigError(f"{path} has {len(arguments)} values, not {len(value)}")
        return tuple(_convert(arguments[0], each, path) for each in value)
    if origin is not None and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return {str(name): _convert(arguments[1], each, f"{path}.{name}") for name, each in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(hint, type) or type(value) is not hint:
        name = getattr(hint, "__name__", str(hint)) if origin is None else "a list" if origin is tuple else "a table"
        raise ConfigError(f"{path} must be {name}, not {value!r}")
    return value
