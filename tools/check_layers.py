# SPDX-License-Identifier: Apache-2.0
"""Checks that includes and imports respect the layers of docs/architecture.md.

Between parts: every #include of C++ and every import of Python names only parts that its own may use.
Within a part: its folders stand on levels, and no #include points to the same or a higher level.
Each violation is printed as ``file:line: reason``; the exit status is then 1.
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
    "mpi.h": "mpi", "nlohmann": "json",
    "gtest": "gtest", "gmock": "gtest",
}  # fmt: skip

#: Include prefix of each part's public headers.
_PUBLIC_PREFIXES = {
    "headway/base": "base",
    "headway/comm": "libcomm",
    "headway/kernels": "kernels",
    "headway/embedding": "embedding",
    "headway/c10d": "c10d_backend",
    "headway/hybrid": "hybrid",
    "headway/serving": "serving",
}


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Allowed dependencies of a part, which is a top-level folder of the tree.

    It may always use itself, the operating system, and the standard libraries of C++ and Python.
    """

    folder: str
    includes: frozenset[str] = field(
        default_factory=frozenset
    )  #: parts of the project (public headers) and other libraries
    may_import: frozenset[str] | None = (
        frozenset()
    )  #: packages of the project that its Python code may import; None: all
    torch_folder: str | None = None  #: the only folder of this part that may include torch; None: as `includes` says


LAYERS = [
    Layer(folder="base"),
    Layer(folder="libcomm", includes=frozenset({"base"})),
    Layer(folder="kernels", includes=frozenset({"base"}), torch_folder="kernels/torch"),
    Layer(folder="embedding", includes=frozenset({"base", "libcomm", "kernels"}), torch_folder="embedding/torch"),
    Layer(folder="c10d_backend", includes=frozenset({"base", "libcomm", "torch"})),
    Layer(
        folder="hybrid",
        includes=frozenset({"base", "libcomm", "kernels", "embedding"}),
        torch_folder="hybrid/torch",
    ),
    Layer(
        folder="serving",
        includes=frozenset({"base", "libcomm", "kernels", "embedding", "json"}),
        torch_folder="serving/torch",
    ),
    Layer(folder="python"),
    Layer(folder="dlrm_examples", may_import=frozenset({"headway"})),
    Layer(
        folder="examples",
        includes=frozenset({"base", "libcomm", "kernels", "embedding", "torch"}),
        may_import=frozenset({"headway"}),
    ),
    Layer(
        folder="benchmarks",
        includes=frozenset({"base", "libcomm", "kernels", "embedding", "c10d_backend", "hybrid", "torch", "mpi"}),
        may_import=frozenset({"headway", "dlrm_examples"}),
    ),
    Layer(
        folder="tests",
        includes=frozenset(
            {"base", "libcomm", "kernels", "embedding", "c10d_backend", "hybrid", "serving", "torch", "mpi"}
            | {"gtest", "json"}
        ),
        may_import=None,
    ),
]

#: Source root of a part -> its folders by level, lowest first. A folder may include itself and the levels below, so
#: there are no cycles. It stands for its subfolders, except those that are listed themselves; "." is the root itself.
_FOLDER_LEVELS: dict[str, tuple[tuple[str, ...], ...]] = {
    "libcomm/src": (
        ("system",),
        ("bootstrap", "observe"),
        ("channel", "transport"),
        ("device/peer_copy", "transport/checked", "transport/composite", "transport/inproc", "transport/shm",
         "transport/tcp", "transport/verbs"),
        ("device",),
        ("group",),
    ),
    "kernels/src": (
        (".",),
        ("cuda", "rows"),
        ("balance", "codec", "hstu", "jagged", "layer"),
        ("hstu/cpu", "hstu/cuda/tile", "jagged/cpu", "jagged/cuda"),
        ("hstu/cuda/sm80", "hstu/cuda/sm90", "layer/cpu", "layer/cuda"),
        ("hstu/cuda",),
    ),
    "embedding/src": (
        (".",),
        ("cpu/runtime", "cuda/runtime"),
        ("cuda/batch", "cuda/state"),
        ("cpu/index", "cuda/index", "cpu/rows", "cuda/rows"),
        ("cpu/deduplication", "cuda/deduplication"),
        ("cpu/table", "cuda/table"),
        ("cuda",),
        ("checkpoint", "exchange"),
    ),
    "hybrid/src": (("messages", "requests"), ("server", "worker")),
    "c10d_backend": (
        (".",), ("runtime",), ("tensors",), ("group",), ("work",), ("reduction",), ("backend",), ("python",),
    ),
}  # fmt: skip

#: (file, included file) -> reason why this include may point upward for now. Both are paths from the root of the tree.
_UPWARD_INCLUDES: dict[tuple[str, str], str] = {}

#: Folder of each Python package of the project. Other packages are third-party.
_PYTHON_PACKAGES = {"headway": "python", "headway_launcher": "python", "dlrm_examples": "dlrm_examples",
                    "benchmarks": "benchmarks", "tests": "tests", "tools": "tools"}  # fmt: skip


def check_tree(root: Path) -> list[str]:
    """Lists all violations under ``root`` as ``file:line: reason``."""
    between_parts = [violation for layer in LAYERS for violation in _check_layer(root, layer)]
    within_parts = [violation for source_root in _FOLDER_LEVELS for violation in _check_folders(root, source_root)]
    return between_parts + within_parts


def _check_layer(root: Path, layer: Layer) -> Iterator[str]:
    for path in sorted((root / layer.folder).rglob("*")):
        if not path.is_file():
            continue
        if path.suffix in CPP_ENDINGS:
            yield from _check_cpp(root, layer, path)
        elif path.suffix == ".py":
            yield from _check_python(root, layer, path)


def _check_cpp(root: Path, layer: Layer, path: Path) -> Iterator[str]:
    file = path.relative_to(root)
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        match = _INCLUDE.match(line)
        if match:
            reason = _refuse_include(root, layer, path, match.group(2), quoted=match.group(1) == '"')
            if reason:
                yield f"{file}:{number}: {reason}"


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


def _check_folders(root: Path, source_root: str) -> Iterator[str]:
    """Yields the includes of one part that point to the same or a higher level, and the files of unknown folders."""
    base = root / source_root
    levels = {folder: level for level, folders in enumerate(_FOLDER_LEVELS[source_root]) for folder in folders}
    for path in _cpp_files(base):
        file = path.relative_to(root)
        folder = _folder_of(path.relative_to(base), levels)
        if folder is None:
            yield f"{file}:1: its folder has no level in _FOLDER_LEVELS"
            continue
        for number, included in _own_includes(base, path):
            other = _folder_of(included, levels)
            is_known = (str(file), f"{source_root}/{included}") in _UPWARD_INCLUDES
            if other is not None and other != folder and levels[other] >= levels[folder] and not is_known:
                direction = "upward" if levels[other] > levels[folder] else "sideways"
                yield f"{file}:{number}: {direction} include of {included}: {folder} may not include {other}"


def _cpp_files(base: Path) -> list[Path]:
    return sorted(path for path in base.rglob("*") if path.suffix in CPP_ENDINGS and path.is_file())


def _folder_of(file: Path, levels: dict[str, int]) -> str | None:
    """Returns the innermost folder of ``file`` that has a level; "." has no subfolders."""
    folders = [str(folder) for folder in file.parents[:-1]] or ["."]
    return next((folder for folder in folders if folder in levels), None)


def _own_includes(base: Path, path: Path) -> Iterator[tuple[int, Path]]:
    """Yields line and target, relative to ``base``, of every quoted include of a file below ``base``."""
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        match = _INCLUDE.match(line)
        if match is None or match.group(1) != '"':
            continue
        for folder in (path.parent, base):
            target = (folder / match.group(2)).resolve()
            if target.is_file() and _is_in(target, base):
                yield number, target.relative_to(base.resolve())
                break


def _is_in(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _check_python(root: Path, layer: Layer, path: Path) -> Iterator[str]:
    if layer.may_import is None:
        return
    file = path.relative_to(root)
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(file))
    for number, module in _imports(tree):
        package = module.split(".")[0]
        owner = _PYTHON_PACKAGES.get(package)
        if owner is None or owner == layer.folder:
            continue
        if package not in layer.may_import:
            yield f"{file}:{number}: {layer.folder} may not import {package} ({module})"
        elif any(part.startswith("_") and not part.startswith("__") for part in module.split(".")):
            yield f"{file}:{number}: {layer.folder} may not import {module}, which is private to {package}"


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
