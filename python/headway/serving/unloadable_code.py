# SPDX-License-Identifier: Apache-2.0
"""``compiler_settings()``: makes Inductor compile libraries that can be loaded and unloaded.

GCC marks static variables of templates and inline functions as unique in a process. The loader never unloads a library
with such a mark, so each new version of a model would stay in memory with its weights. ``-fno-gnu-unique`` leaves the
mark out. Inductor takes no flags, but the name of a compiler, so a script of two lines becomes the compiler.

A compiler that links the C++ library statically, as wrappers of compilers may do, builds libraries that crash when they
are loaded: PyTorch has another copy of that library. It is refused before it compiles for minutes.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from headway.serving.package import PackageError

_FLAG = "-fno-gnu-unique"


def compiler_settings() -> dict[str, Any]:
    """Returns settings for ``inductor_configs``; none if the compiler has no such flag, as Clang needs none.

    Raises:
        PackageError: the compiler links the C++ library statically.
    """
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    compiler = get_cpp_compiler()
    _expect_shared_library(compiler)
    check = [*shlex.split(compiler), _FLAG, "-x", "c++", "-fsyntax-only", "/dev/null"]
    if subprocess.run(check, capture_output=True, timeout=60).returncode != 0:
        return {}
    folder = Path(cache_dir()) / "headway"  # The path is part of the keys by which Inductor finds compiled code again.
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as script:
        script.write(f'#!/bin/sh\nexec {compiler} {_FLAG} "$@"\n')
    os.chmod(script.name, 0o755)
    os.replace(script.name, folder / "g++")
    return {"cpp.cxx": (None, str(folder / "g++"))}


def _expect_shared_library(compiler: str) -> None:
    """Links a trial with the C++ library. A compiler that cannot do it gets its say from Inductor, with the reason."""
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder) / "trial.so"
        link = [*shlex.split(compiler), "-shared", "-fPIC", "-x", "c++", "-", "-o", str(trial)]
        source = b"#include <locale>\nbool is_classic() { return std::locale() == std::locale::classic(); }\n"
        is_linked = subprocess.run(link, input=source, capture_output=True, timeout=60).returncode == 0
        # The name of a shared library that is needed stands in the string table.
        if is_linked and not any(name in trial.read_bytes() for name in (b"libstdc++.so", b"libc++.so")):
            raise PackageError(
                f"the compiler {compiler} links the C++ library statically, so compiled models would crash when they "
                "are loaded: set CXX to a compiler that links libstdc++.so, such as /usr/bin/g++"
            )
