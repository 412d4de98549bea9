# SPDX-License-Identifier: Apache-2.0
"""Facts about this host, read from the kernel. Uses only the standard library; a missing fact is None, not an error."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import mmap
import os
import resource
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CGROUP = Path("/sys/fs/cgroup")
_PROBE_LIMIT_S = 120.0
_CAP_IPC_LOCK = 14  #: number of the capability in ``linux/capability.h``


@dataclass(frozen=True, kw_only=True)
class CpuLimits:
    """Logical processors that this process may use."""

    online: int  #: logical processors of the host
    allowed: int  #: logical processors in this process's affinity mask
    quota: float | None  #: CPU time limit of the cgroup, in cores; None: no limit

    @property
    def usable(self) -> float:
        """Cores worth of CPU time: the affinity mask, or the quota if that is less."""
        return min(self.allowed, self.quota or math.inf)


def read_text(path: Path) -> str | None:
    """The file's text without surrounding white space; None if the file cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def cgroup_folders(controller: str) -> list[Path]:
    """Folders that may hold this process's limits, nearest first: of cgroup 2, and of ``controller`` in cgroup 1."""
    folders: list[Path] = []
    for line in (read_text(Path("/proc/self/cgroup")) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base = _CGROUP
        elif controller in controllers.split(","):
            base = _CGROUP / controller
        else:
            continue
        nearest = base / path.lstrip("/")
        folders += [folder for folder in (nearest, *nearest.parents) if folder.is_relative_to(base)]
    # In a container the path is that of the host and may not exist; the mount point then is the container's cgroup.
    return [folder for folder in dict.fromkeys([*folders, _CGROUP / controller, _CGROUP]) if folder.is_dir()]


def cpu_limits() -> CpuLimits:
    quotas = [quota for folder in cgroup_folders("cpu") if (quota := _cpu_quota(folder)) is not None]
    return CpuLimits(online=os.cpu_count() or 1, allowed=len(os.sched_getaffinity(0)), quota=min(quotas, default=None))


def _cpu_quota(folder: Path) -> float | None:
    text = read_text(folder / "cpu.max")
    if text is None:
        text = f"{read_text(folder / 'cpu.cfs_quota_us')} {read_text(folder / 'cpu.cfs_period_us')}"
    try:
        quota, period = (int(part) for part in text.split())
    except ValueError:
        return None  # "max", or no such file
    return quota / period if quota > 0 and period > 0 else None


def memory_limit_bytes() -> int | None:
    """Smallest memory limit of this process's cgroups; None: no limit."""
    limits = []
    for folder in cgroup_folders("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = read_text(folder / name)
            # cgroup 1 expresses "no limit" as a number near 2^63
            if text is not None and text.isdigit() and int(text) < 1 << 60:
                limits.append(int(text))
    return min(limits, default=None)


def memory_info_bytes(name: str) -> int | None:
    """An entry of /proc/meminfo such as "MemAvailable"; None if missing. An entry without a unit is a count."""
    for line in (read_text(Path("/proc/meminfo")) or "").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            number, *unit = value.split()
            return int(number) * (1024 if unit == ["kB"] else 1)
    return None


def memfd_error() -> str | None:
    """Creates, maps and writes an anonymous memory file (memfd). Returns None on success, else the error."""
    try:
        descriptor = os.memfd_create("headway-doctor", os.MFD_CLOEXEC)
    except (AttributeError, OSError) as error:
        return str(error)
    try:
        os.ftruncate(descriptor, 1 << 20)
        with mmap.mmap(descriptor, 1 << 20) as view:
            view[:4] = b"test"
        return None if os.pread(descriptor, 4, 0) == b"test" else "what was written did not come back"
    except OSError as error:
        return str(error)
    finally:
        os.close(descriptor)


def listen_error(family: socket.AddressFamily, address: str) -> str | None:
    """Listens on a loopback address and connects to it. Returns None on success, else the error."""
    try:
        with (
            socket.create_server((address, 0), family=family) as server,
            socket.create_connection(server.getsockname()[:2], timeout=5),
        ):
            return None
    except OSError as error:
        return str(error)


def open_file_limits() -> tuple[int, int]:
    """Soft and hard limit of open files."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def selected_word(path: Path) -> str | None:
    """The word in brackets of a kernel setting such as ``always [madvise] never``."""
    text = read_text(path)
    if text is None or "[" not in text:
        return text
    return text[text.index("[") + 1 : text.index("]")]


def rdma_ports() -> dict[str, str]:
    """Maps each RDMA port (``device:port``) to its state as the kernel writes it, such as "4: ACTIVE"."""
    ports = sorted(Path("/sys/class/infiniband").glob("*/ports/*"))
    return {f"{port.parents[1].name}:{port.name}": read_text(port / "state") or "unknown" for port in ports}


def working_rdma_ports() -> list[str]:
    """Active RDMA ports as ``device:port``; empty without libibverbs."""
    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError:
        return []
    return [name for name, state in rdma_ports().items() if "ACTIVE" in state]


def registers_dma_buf() -> bool | None:
    """Whether libibverbs can register a dma-buf; None without libibverbs."""
    try:
        return hasattr(ctypes.CDLL("libibverbs.so.1"), "ibv_reg_dmabuf_mr")
    except OSError:
        return None


def locked_memory_bytes() -> int | None:
    """Limit of locked memory (RLIMIT_MEMLOCK), which RDMA registration needs; None: no limit.

    The kernel does not limit processes with the capability CAP_IPC_LOCK. Root has it on a host, but not in a container
    of Docker's defaults.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if limit == resource.RLIM_INFINITY or _has_capability(_CAP_IPC_LOCK) else limit


def _has_capability(number: int) -> bool:
    """Whether the process has a capability (``linux/capability.h``) in effect."""
    status = read_text(Path("/proc/self/status")) or ""
    effective = [line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")]
    return bool(effective) and bool(int(effective[0], 16) >> number & 1)


def run_probe(script_name: str) -> dict[str, Any]:
    """Runs a probe script of this folder in a child process, so that a crash cannot harm the caller.

    Returns:
        the JSON object that the probe printed, or {"error": one line}.
    """
    script = Path(__file__).with_name(script_name)
    try:
        finished = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_PROBE_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {_PROBE_LIMIT_S:.0f} s"}
    with contextlib.suppress(IndexError, json.JSONDecodeError):
        answer: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
        return answer
    last = finished.stderr.strip().splitlines()[-1:] or ["no output"]
    return {"error": f"exit status {finished.returncode}: {last[0]}"}
