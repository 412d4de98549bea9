# SPDX-License-Identifier: Apache-2.0
"""The build backend of pyproject.toml: scikit-build-core's, with the torch of the environment that pip installs into.

A wheel works with one torch only, that of its build. pip builds in an environment of its own, and hides the packages of
the environment that it installs into. If ``build-system.requires`` named torch, pip would download it again, perhaps in
another version. So this backend looks for torch in the folders of the target environment, and requires torch only if
none is there. CMake gets the folder of that torch as HEADWAY_TORCH_ROOT (``cmake/HeadwayTorch.cmake``).

Example: pip of an environment with torch 2.13 calls ``get_requires_for_build_wheel()``, which does not name torch, then
``build_wheel()``, which builds against 2.13. Without torch, the first call names ``torch>=2.11,<2.16``, and the second
finds the torch that pip has then put into the build environment. That is the newest one, which pip will also install
into the target environment.

The supported versions are those of ``project.dependencies``. Another torch ends the build with one line.
Source of the interface: PEP 517 and PEP 660; in-tree backends are in PEP 517, section "In-tree build backends".
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import site
import sys
import sysconfig
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scikit_build_core import build as _scikit
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = Mapping[str, "list[str] | str"]

_SOURCE = Path(__file__).resolve().parents[2]
_ROOT_SETTING = "cmake.define.HEADWAY_TORCH_ROOT"


@dataclass(frozen=True, kw_only=True)
class Torch:
    """A torch that is installed."""

    version: str
    root: Path  #: folder of the package


@dataclass(frozen=True, kw_only=True)
class Range:
    """Supported versions of torch: from ``oldest``, below ``end``, each major and minor number."""

    oldest: tuple[int, int]
    end: tuple[int, int]

    @property
    def requirement(self) -> str:
        return "torch>={}.{},<{}.{}".format(*self.oldest, *self.end)

    def __contains__(self, version: str) -> bool:
        match = re.match(r"(\d+)\.(\d+)", version)
        return match is not None and self.oldest <= (int(match[1]), int(match[2])) < self.end


def supported_range() -> Range:
    """Reads the range from ``project.dependencies``."""
    project = tomllib.loads((_SOURCE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (line,) = [each for each in project["dependencies"] if each.startswith("torch>=")]
    oldest, end = ((int(major), int(minor)) for major, minor in re.findall(r"(\d+)\.(\d+)", line))
    return Range(oldest=oldest, end=end)


def target_folders(environ: Mapping[str, str]) -> list[str]:
    """Package folders of the environment that the wheel is for, whether on ``sys.path`` or hidden from it.

    pip runs this program with the Python of that environment. `python -m build` runs it with that of a new environment
    without torch, and VIRTUAL_ENV names the user's if one is active. uv sets VIRTUAL_ENV to its new environment: the
    user's cannot be found.
    """
    bases = [sys.prefix]
    if "PIP_BUILD_TRACKER" not in environ and environ.get("VIRTUAL_ENV"):
        bases.append(environ["VIRTUAL_ENV"])
    folders = [_packages(base, kind) for base in bases for kind in ("purelib", "platlib")]
    if sys.prefix != sys.base_prefix and _borrows_from_base(Path(sys.prefix)):
        folders += [_packages(sys.base_prefix, kind) for kind in ("purelib", "platlib")]
        folders += site.getsitepackages([sys.base_prefix])
    elif sys.prefix == sys.base_prefix:
        folders += [*site.getsitepackages(), site.getusersitepackages()]
    return list(dict.fromkeys(folders))


def _packages(base: str, kind: str) -> str:
    # The scheme of a virtual environment, which Debian's patched Pythons also use below their prefix if given one.
    scheme = "venv" if base != sys.base_prefix else sysconfig.get_default_scheme()
    return sysconfig.get_path(kind, scheme, vars={"base": base, "platbase": base})


def _borrows_from_base(environment: Path) -> bool:
    """Was this virtual environment made with ``--system-site-packages``?"""
    try:
        text = (environment / "pyvenv.cfg").read_text(encoding="utf-8")
    except OSError:
        return False
    return re.search(r"^include-system-site-packages\s*=\s*true\s*$", text, re.MULTILINE | re.IGNORECASE) is not None


def find_torch(folders: list[str]) -> Torch | None:
    """The first torch in ``folders``, or None."""
    for distribution in importlib.metadata.distributions(name="torch", path=folders):
        root = Path(str(distribution.locate_file("torch")))
        if (root / "version.py").exists():
            return Torch(version=distribution.version, root=root)
    return None


def torch_to_build_with() -> Torch | None:
    """The torch that this Python imports, else that of the target environment; None if there is none.

    Raises:
        SystemExit: its version is not supported.
    """
    torch = find_torch(sys.path) or find_torch(target_folders(os.environ))
    supported = supported_range()
    if torch is not None and torch.version not in supported:
        wanted = f"headway supports {supported.requirement}"
        sys.exit(f"headway: torch {torch.version} is installed in {torch.root}, and {wanted}")
    return torch


def get_requires_for_build_wheel(config_settings: Settings | None = None) -> list[str]:
    torch = _torch_requirement()  # First: another torch must end the build with one line, before any other message.
    return [*_scikit.get_requires_for_build_wheel(_as_dict(config_settings)), *torch]


def get_requires_for_build_editable(config_settings: Settings | None = None) -> list[str]:
    torch = _torch_requirement()  # First: another torch must end the build with one line, before any other message.
    return [*_scikit.get_requires_for_build_editable(_as_dict(config_settings)), *torch]


def build_wheel(
    wheel_directory: str, config_settings: Settings | None = None, metadata_directory: str | None = None
) -> str:
    return _scikit.build_wheel(wheel_directory, _with_torch(config_settings), metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings | None = None, metadata_directory: str | None = None
) -> str:
    return _scikit.build_editable(wheel_directory, _with_torch(config_settings), metadata_directory)


def _torch_requirement() -> list[str]:
    return [] if torch_to_build_with() else [supported_range().requirement]


def _with_torch(settings: Settings | None) -> dict[str, list[str] | str]:
    """Adds the folder of torch, unless the user names one. Without it CMake would keep the folder of the last build."""
    torch = torch_to_build_with()
    if torch is None:
        wanted = supported_range().requirement
        sys.exit(f"headway: no torch is installed. Without build isolation, first: pip install '{wanted}'")
    return {_ROOT_SETTING: str(torch.root), **_as_dict(settings)}


def _as_dict(settings: Settings | None) -> dict[str, list[str] | str]:
    return dict(settings or {})
