# SPDX-License-Identifier: Apache-2.0
"""The instruction set of this machine, to which compiled parts are bound: AOTInductor compiles for the machine it is
on."""

from __future__ import annotations

import platform
import re
from pathlib import Path

#: Extensions of x86-64 that compilers use; Linux lists many other flags beside them.
_X86 = re.compile(r"(sse|ssse3|avx|fma|f16c|bmi|adx|abm|amx|popcnt|movbe|v?aes|v?pclmulqdq|sha_ni|gfni|rdrand|rdseed)")


def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Returns the architecture, and the extensions of the first processor, as Linux names them: x86_64, adx, aes..."""
    machine = platform.machine()
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE)
    flags = found[1].split() if found else []
    return [machine, *sorted(flag for flag in flags if machine != "x86_64" or _X86.match(flag))]


def missing_cpu_features(wanted: list[str]) -> list[str]:
    """Returns those of ``wanted`` that this machine lacks."""
    return sorted(set(wanted) - set(cpu_features()))
