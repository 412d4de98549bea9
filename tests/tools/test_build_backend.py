# SPDX-License-Identifier: Apache-2.0
"""The build backend finds the torch of the environment that pip installs into, and refuses unsupported ones."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import headway_build
import packaging
import pathspec
import pytest
import scikit_build_core

ROOT = Path(__file__).resolve().parents[2]

#: pip starts a build with such a file: packages of the environment that it installs into cannot be imported.
HIDE_PACKAGES = "import sys\nsys.path[:] = [each for each in sys.path if 'site-packages' not in each]\n"
#: Program that prints the result of a hook of the build backend (PEP 517).
CALL = "import headway_build; print(headway_build.{hook})"
REQUIREMENTS = "get_requires_for_build_wheel()"


def install_torch(site: Path, version: str) -> Path:
    """Writes the files by which an installed torch is found into a folder of packages; returns that of torch."""
    metadata = site / f"torch-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n", encoding="utf-8")
    (site / "torch").mkdir()
    (site / "torch/version.py").write_text(f"__version__ = {version!r}\n", encoding="utf-8")
    return site / "torch"


class Environment:
    """A virtual environment, and a Python in it that sees what pip shows to a build."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder, with_pip=False, symlinks=True)
        self.site = next((folder / "lib").glob("python*/site-packages"))
        self.build = folder.with_name(f"{folder.name}-build")
        self.build.mkdir()
        (self.build / "sitecustomize.py").write_text(HIDE_PACKAGES, encoding="utf-8")
        for package in (packaging, pathspec, scikit_build_core):
            assert package.__file__ is not None
            (self.build / package.__name__).symlink_to(Path(package.__file__).parent)

    def call(self, hook: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
        environment["PYTHONPATH"] = os.pathsep.join([str(self.build), str(ROOT / "tools/build_backend")])
        return subprocess.run(
            [str(self.folder / "bin/python"), "-c", CALL.format(hook=hook)],
            cwd=ROOT,
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def torch_requirements(self, **variables: str) -> list[str]:
        finished = self.call(REQUIREMENTS, **variables)
        assert finished.returncode == 0, finished.stderr
        return [each for each in ast.literal_eval(finished.stdout) if each.startswith("torch")]


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "env")


def test_the_newest_torch_is_required_where_there_is_none(environment: Environment) -> None:
    assert environment.torch_requirements() == ["torch>=2.11,<2.16"]


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cu130", "2.15.3"])
def test_a_supported_torch_that_pip_hides_is_used(environment: Environment, version: str) -> None:
    root = install_torch(environment.site, version)
    assert environment.torch_requirements() == []
    finished = environment.call("_with_torch({'cmake.define.X': 'ON'})")
    assert ast.literal_eval(finished.stdout) == {
        "cmake.define.HEADWAY_TORCH_ROOT": str(root),
        "cmake.define.X": "ON",
    }


@pytest.mark.parametrize("version", ["2.10.1", "2.16.0", "1.13.1", "3.0"])
@pytest.mark.parametrize("hook", [REQUIREMENTS, "get_requires_for_build_editable()", "build_wheel('unused')"])
def test_another_torch_is_refused_in_one_line(environment: Environment, version: str, hook: str) -> None:
    root = install_torch(environment.site, version)
    finished = environment.call(hook)
    assert finished.returncode == 1
    assert finished.stderr == (
        f"headway: torch {version} is installed in {root}, and headway supports torch>=2.11,<2.16\n"
    )


def test_without_isolation_a_missing_torch_is_named_in_one_line(environment: Environment) -> None:
    finished = environment.call("build_wheel('unused')")
    assert finished.returncode == 1
    (line,) = finished.stderr.splitlines()
    assert "no torch is installed" in line
    assert "pip install 'torch>=2.11,<2.16'" in line


def test_tools_other_than_pip_use_the_environment_that_is_active(environment: Environment, tmp_path: Path) -> None:
    active = Environment(tmp_path / "active")
    install_torch(active.site, "2.14.0")
    assert environment.torch_requirements(VIRTUAL_ENV=str(active.folder)) == []
    # pip installs into the environment of its own Python, whichever is active.
    under_pip = environment.torch_requirements(VIRTUAL_ENV=str(active.folder), PIP_BUILD_TRACKER="a folder")
    assert under_pip == ["torch>=2.11,<2.16"]


def test_a_torch_of_the_base_is_used_only_by_an_environment_that_borrows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "base"))
    install_torch(Path(headway_build._packages(sys.base_prefix, "purelib")), "2.12.0")
    settings = tmp_path / "env/pyvenv.cfg"
    settings.parent.mkdir()
    found = {}
    for borrows in ("false", "true"):
        settings.write_text(f"home = /usr/bin\ninclude-system-site-packages = {borrows}\n", encoding="utf-8")
        torch = headway_build.find_torch(headway_build.target_folders({}))
        found[borrows] = torch.version if torch else None
    assert found == {"false": None, "true": "2.12.0"}


def test_the_torch_that_python_imports_comes_first() -> None:
    import torch

    found = headway_build.torch_to_build_with()
    assert found is not None
    assert torch.__file__ is not None
    assert found.root.samefile(Path(torch.__file__).parent)


def test_a_source_distribution_has_the_backend_that_it_needs(environment: Environment, tmp_path: Path) -> None:
    finished = environment.call(f"build_sdist({str(tmp_path)!r})")
    assert finished.returncode == 0, finished.stderr
    (path,) = tmp_path.glob("headway-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "tools/build_backend/headway_build.py", "cmake/HeadwayTorch.cmake"} <= names
    assert not [name for name in names if name.startswith(("build/", "build-", "out/", ".venv/"))]


def test_cmake_reads_the_folder_that_the_backend_names() -> None:
    cmake = (ROOT / "cmake/HeadwayTorch.cmake").read_text(encoding="utf-8")
    assert re.search(r"^set\(HEADWAY_TORCH_ROOT .* CACHE PATH", cmake, re.MULTILINE)
    assert headway_build._ROOT_SETTING == "cmake.define.HEADWAY_TORCH_ROOT"
