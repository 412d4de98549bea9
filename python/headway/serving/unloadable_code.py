# SPDX-License-Identifier: Apache-2.0
"""``compiler_settings()``: makes Inductor compile libraries that can be unloaded.

GCC marks static variables of templates and inline functions as unique in a process. The loader never unloads a library
with such a mark, so each new version of a model would stay in memory with its weights. ``-fno-gnu-unique`` leaves the
mark out. Inductor takes no flags, but the name of a compiler, so a script of two lines becomes the compiler.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

_FLAG = "-fno-gnu-unique"


def compiler_settings() -> dict[str, Any]:
    """Returns settings for ``inductor_configs``; none if the compiler has no such flag, as Clang needs none."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    compiler = get_cpp_compiler()
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
