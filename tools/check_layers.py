"""Checks that includes and imports respect the layers of docs/architecture.md.

C++: every #include of the parts below. Python: every import statement. Each violation is printed as
``file:line: reason``; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]

CPP_ENDINGS = {".hpp", ".cpp", ".h", ".cc", ".cu", ".cuh"}
_INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')

#: First path component of an include -> its library. Other includes belong to the operating system or C++.
_FOREIGN_INCLUDES = {
    "torch": "torch", "ATen": "torch", "c10": "torch", "pybind11": "torch", "Python.h": "torch", "caffe2": "torch",
    "mpi.h": "mpi",
    "gtest": "gtest", "gmock": "gtest",
}  # fmt: skip

#: Include prefix of each part's public headers.
_PUBLIC_PREFIXES = {"headway/comm": "libcomm", "headway/kernels": "kernels", "headway/embedding": "embedding",
                    "headway/c10d": "c10d_backend"}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Allowed dependencies of a folder, besides itself, the operating system, and the libraries of C++ and Python."""

    folder: str
    includes: frozenset[str] = field(
        default_factory=frozenset
    )  #: parts of the project (public headers) and other libraries
    may_import: frozenset[str] | None = (
        frozenset()
    )  #: packages of the project that its Python code may import; None: all
    torch_folder: str | None = None  #: the only folder of this layer that may include torch; None: no folder


LAYERS = [
    Layer(folder="libcomm", includes=frozenset()),
    Layer(folder="kernels", torch_folder="kernels/torch"),
    Layer(folder="embedding", includes=frozenset({"libcomm", "kernels"}), torch_folder="embedding/torch"),
    Layer(folder="c10d_backend", includes=frozenset({"libcomm", "torch"})),
    Layer(folder="python"),
    Layer(folder="dlrm_examples", may_import=frozenset({"headway"})),
    Layer(folder="examples", includes=frozenset({"libcomm"}), may_import=frozenset({"headway"})),
    Layer(
        folder="benchmarks",
        includes=frozenset({"libcomm", "kernels", "embedding", "c10d_backend", "torch", "mpi"}),
        may_import=frozenset({"headway", "dlrm_examples"}),
    ),
    Layer(
        folder="tests",
        includes=frozenset({"libcomm", "kernels", "embedding", "c10d_backend", "torch", "mpi", "gtest"}),
        may_import=None,
    ),
]

#: Folder of each Python package of the project. Other packages are third-party.
_PYTHON_PACKAGES = {"headway": "python", "headway_launcher": "python", "dlrm_examples": "dlrm_examples",
                    "benchmarks": "benchmarks", "tests": "tests", "tools": "tools"}  # fmt: skip


def check_tree(root: Path) -> list[str]:
    """Lists all violations under ``root`` as ``file:line: reason``."""
    return [violation for layer in LAYERS for violation in _check_layer(root, layer)]


def _check_layer(root: Path, layer: Layer) -> Iterator[str]:
    for path in sorted((root / layer.folder).rglob("*")):
        if not path.is_file():
            continue
        if path.suffix in CPP_ENDINGS:
            yield from _check_cpp(root, layer, path)
        elif path.suffix == ".py":
            yield from _check_python(root, layer, path)


def _check_cpp(root: Path, layer: Layer, path: Path) -> Iterator[str]:
    place = path.relative_to(root)
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        match = _INCLUDE.match(line)
        if match:
            reason = _refuse_include(root, layer, path, match.group(2), quoted=match.group(1) == '"')
            if reason:
                yield f"{place}:{number}: {reason}"


def _refuse_include(root: Path, layer: Layer, path: Path, target: str, *, quoted: bool) -> str | None:
    """Returns the reason why ``layer`` may not include ``target``; None if it may."""
    owner = _foreign_owner(target)
    if owner == "torch" and layer.torch_folder is not None and _is_in(path, root / layer.torch_folder):
        return None
    if owner is not None:
        return None if owner in layer.includes else f"{layer.folder} may not include {owner} ({target})"
    public_owner = next((part for prefix, part in _PUBLIC_PREFIXES.items() if target.startswith(f"{prefix}/")), None)
    if public_owner is not None:
        allowed = public_owner == layer.folder or public_owner in layer.includes
        return None if allowed else f"{layer.folder} may not include {public_owner} ({target})"
    return _refuse_private_include(root, layer, path, target) if quoted else None


def _foreign_owner(target: str) -> str | None:
    return _FOREIGN_INCLUDES.get(PurePosixPath(target).parts[0])


def _refuse_private_include(root: Path, layer: Layer, path: Path, target: str) -> str | None:
    """Checks a quoted include: it may name files of its own layer only. Tests may include any source."""
    if layer.folder == "tests":
        return None
    for base in (path.parent, root):
        candidate = (base / target).resolve()
        if candidate.is_file() and not _is_in(candidate, root / layer.folder):
            return f"{layer.folder} may not reach into {candidate.relative_to(root.resolve())}"
    return None


def _is_in(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _check_python(root: Path, layer: Layer, path: Path) -> Iterator[str]:
    if layer.may_import is None:
        return
    place = path.relative_to(root)
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(place))
    for number, module in _imports(tree):
        package = module.split(".")[0]
        owner = _PYTHON_PACKAGES.get(package)
        if owner is None or owner == layer.folder:
            continue
        if package not in layer.may_import:
            yield f"{place}:{number}: {layer.folder} may not import {package} ({module})"
        elif any(part.startswith("_") and not part.startswith("__") for part in module.split(".")):
            yield f"{place}:{number}: {layer.folder} may not import {module}, which is private to {package}"


def _imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields line and dotted name of every absolute import; names imported from a module may be modules too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="check_layers", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="tree to check (default: this checkout)")
    root = parser.parse_args(arguments).root.resolve()
    violations = check_tree(root)
    for violation in violations:
        print(violation)
    print(f"layers: {len(violations)} violations" if violations else "layers: ok")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
