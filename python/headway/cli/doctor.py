# SPDX-License-Identifier: Apache-2.0
"""``headway doctor``: reports the features of this host, which of them Headway will use and why, and fixes."""

from __future__ import annotations

import dataclasses
import enum
import errno
import importlib.metadata
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway import _environment
from headway import _supported_versions as supported
from headway.cli import _host
from headway.cli.built_programs import program_path
from headway.cli.one_line_parser import OneLineParser

#: The limit of open files must suffice for at least this many ranks if no launcher tells their number.
LEAST_RANKS = 64
#: Locked memory that RDMA needs for the receive buffers of a small group, in bytes.
NEEDED_LOCKED_BYTES = 64 << 20


class Level(enum.Enum):
    """Severity of a finding."""

    OK = "ok"
    NOTE = "note"  #: works, but could be better
    PROBLEM = "problem"  #: something would fail


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fact about the host. ``fix`` tells how to improve it, if it is not OK.

    ``fails`` names what fails until then, of a part that a host need not have.
    """

    name: str
    level: Level = Level.OK
    value: str
    fix: str | None = None
    fails: str | None = None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The transport or method that Headway will use for one purpose, and the reason."""

    purpose: str
    uses: str
    because: str


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All findings, and the choices that follow from them."""

    findings: list[Finding]
    choices: list[Choice]

    @property
    def is_ok(self) -> bool:
        return all(finding.level is not Level.PROBLEM for finding in self.findings)

    def as_json(self) -> str:
        return json.dumps({"ok": self.is_ok, **dataclasses.asdict(self)}, indent=2, default=lambda level: level.value)


def diagnose() -> Diagnosis:
    """Examines this host. Takes a few seconds, because it imports torch in a child process."""
    shared_memory = find_shared_memory()
    direct_reads = find_direct_reads()
    working_ports = _host.working_rdma_ports()
    rdma = find_rdma(working_ports)
    loopback = [find_loopback(socket.AF_INET, "127.0.0.1"), find_loopback(socket.AF_INET6, "::1")]
    software = find_software()
    findings = [
        find_cores(),
        find_memory(),
        shared_memory,
        direct_reads,
        find_huge_pages(),
        *loopback,
        rdma,
        find_gpu_memory_over_rdma(),
        find_open_files(os.environ),
        find_variables(os.environ),
        *software,
    ]
    return Diagnosis(findings=findings, choices=choose(shared_memory, direct_reads, rdma_works=bool(working_ports)))


def choose(shared_memory: Finding, direct_reads: Finding, *, rdma_works: bool) -> list[Choice]:
    """Derives from the findings which transport or method Headway will use for each purpose."""
    if shared_memory.level is Level.PROBLEM:
        same_host = Choice(
            purpose="peers on this host",
            uses="nothing unless HEADWAY_TRANSPORT=tcp",
            because="shm needs memory files, which do not work here",
        )
    else:
        same_host = Choice(
            purpose="peers on this host", uses="shm", because="memory files work: data lands without a system call"
        )
    # A slot is the part of a receive buffer that takes one message.
    if shared_memory.level is Level.OK and direct_reads.level is Level.OK:
        large = Choice(
            purpose="messages above a slot",
            uses="pull (process_vm_readv)",
            because="a rank may read its siblings' memory: one copy instead of two",
        )
    else:
        large = Choice(
            purpose="messages above a slot", uses="fragments", because="a rank may not read its siblings' memory"
        )
    if rdma_works:
        other_hosts = Choice(
            purpose="peers on other hosts",
            uses="verbs (RDMA), tcp to hosts without a device that reaches this one",
            because="a port is up and libibverbs is there; HEADWAY_TRANSPORT=tcp does without",
        )
    else:
        other_hosts = Choice(
            purpose="peers on other hosts", uses="tcp", because="works everywhere; RDMA needs a device that is up"
        )
    return [
        same_host,
        large,
        other_hosts,
        Choice(purpose="reductions", uses="Gloo (CPU)", because="Headway moves data and leaves arithmetic to it"),
    ]


def find_cores() -> Finding:
    limits = _host.cpu_limits()
    value = f"{limits.allowed} of {limits.online} usable"
    if limits.quota is not None:
        value += f", the cgroup grants the time of {limits.quota:g}"
    if limits.usable < 2:
        fix = "ranks will take turns on one core; give the container at least as many cores as ranks"
        return Finding(name="cores", level=Level.NOTE, value=value, fix=fix)
    return Finding(name="cores", value=value)


def find_memory() -> Finding:
    free, limit = _host.memory_info_bytes("MemAvailable"), _host.memory_limit_bytes()
    value = "unknown" if free is None else f"{free / 2**30:.1f} GiB free"
    if limit is not None:
        value += f", the cgroup's limit is {limit / 2**30:.1f} GiB"
    least = min(amount for amount in (free, limit, 1 << 62) if amount is not None)
    if least < 4 << 30:  # The demo is `headway demo`: DLRM inference.
        return Finding(name="memory", level=Level.NOTE, value=value, fix="the demo on 4 processes wants about 4 GiB")
    return Finding(name="memory", value=value)


def find_shared_memory() -> Finding:
    error = _host.memfd_error()
    if error is None:
        return Finding(name="shared memory", value="memory files work (the size of /dev/shm does not matter)")
    return Finding(
        name="shared memory",
        level=Level.PROBLEM,
        value=f"no memory files: {error}",
        fix="allow memfd_create in the container's seccomp profile, or set HEADWAY_TRANSPORT=tcp on all ranks",
    )


def find_direct_reads() -> Finding:
    """Tries cross-memory attach (CMA) between two sibling processes."""
    name = "direct reads (CMA)"
    scope = _host.read_text(Path("/proc/sys/kernel/yama/ptrace_scope"))
    yama = "no Yama" if scope is None else f"Yama ptrace_scope {scope}"
    answer = _host.run_probe("_cma_probe.py")
    if "error" in answer:
        return Finding(name=name, level=Level.NOTE, value=f"could not be tried: {answer['error']}")
    if answer["plain"] == 0:
        return Finding(name=name, value=f"process_vm_readv between siblings works ({yama})")
    if answer["with_ptracer"] == 0:
        return Finding(name=name, value=f"process_vm_readv works after PR_SET_PTRACER ({yama})")
    code = answer["with_ptracer"]
    return Finding(
        name=name,
        level=Level.NOTE,
        value=f"process_vm_readv: {errno.errorcode.get(code, str(code))} ({yama}): large messages are copied twice",
        fix=_direct_reads_fix(code, scope),
    )


def _direct_reads_fix(code: int, scope: str | None) -> str:
    if code == errno.ENOSYS:
        return "the kernel or a seccomp filter lacks process_vm_readv: allow it in the container's profile"
    if scope in ("2", "3"):
        return "as root: sysctl kernel.yama.ptrace_scope=1 (3 needs a reboot)"
    return "in a container: start it with --cap-add=SYS_PTRACE, and all ranks as one user"


def find_huge_pages() -> Finding:
    folder = Path("/sys/kernel/mm/transparent_hugepage")
    anonymous = _host.selected_word(folder / "enabled") or "not available"
    shared = _host.selected_word(folder / "shmem_enabled") or "not available"
    reserved = _host.memory_info_bytes("HugePages_Free") or 0
    value = f"transparent: {anonymous}, in shared memory: {shared}; reserved and free: {reserved}"
    if shared in ("always", "within_size", "advise"):
        return Finding(name="huge pages", value=value)
    return Finding(
        name="huge pages",
        level=Level.NOTE,
        value=value,
        fix="for messages of many MB, as root: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
    )


def find_loopback(family: socket.AddressFamily, address: str) -> Finding:
    version = "IPv4" if family == socket.AF_INET else "IPv6"
    error = _host.listen_error(family, address)
    if error is None:
        return Finding(name=f"tcp over {version}", value=f"listens and connects on {address}")
    if family == socket.AF_INET6:
        return Finding(name=f"tcp over {version}", level=Level.NOTE, value=f"not here: {error}")
    return Finding(
        name=f"tcp over {version}",
        level=Level.PROBLEM,
        value=f"cannot connect to {address}: {error}",
        fix="ranks find each other over tcp: bring the loopback interface up (ip link set lo up)",
    )


def find_rdma(working_ports: list[str]) -> Finding:
    """Reports the RDMA ports: whether one is up, libibverbs is installed, and enough memory may be locked.

    Args:
        working_ports: active ports (``device:port``), empty without libibverbs.
    """
    ports = _host.rdma_ports()
    if not ports:
        return Finding(name="RDMA", value="no device")
    value = ", ".join(f"{name}: {state}" for name, state in ports.items())
    if not any("ACTIVE" in state for state in ports.values()):
        fix = "bring a port up to use RDMA between hosts (rdma link, ibv_devinfo)"
        return Finding(name="RDMA", level=Level.NOTE, value=value, fix=fix)
    if not working_ports:
        fix = "install libibverbs (libibverbs1, rdma-core) to use RDMA between hosts"
        return Finding(name="RDMA", level=Level.NOTE, value=f"{value}; no libibverbs", fix=fix)
    limit = _host.locked_memory_bytes()
    if limit is not None and limit < NEEDED_LOCKED_BYTES:
        value += f"; {limit // 1024} KiB may be locked"
        fix = (
            "raise the limit of locked memory (ulimit -l unlimited): RDMA registers every receive buffer; "
            "or HEADWAY_TRANSPORT=tcp"
        )
        return Finding(name="RDMA", level=Level.PROBLEM, value=value, fix=fix)
    return Finding(name="RDMA", value=value)


def find_gpu_memory_over_rdma() -> Finding:
    """Reports whether driver and libibverbs could register GPU memory for RDMA. It registers nothing."""
    name = "GPU memory over RDMA"
    answer = _host.run_probe("_dma_buf_probe.py")
    devices = answer.get("devices", [])
    if not devices:
        return Finding(name=name, value=str(answer.get("error") or answer.get("problem") or "no GPU"))
    exports = f"{sum(devices)} of {len(devices)} GPUs export dma-buf"
    registers = _host.registers_dma_buf()
    lacks = "no libibverbs" if registers is None else "libibverbs lacks ibv_reg_dmabuf_mr"
    value = f"{exports}; {'libibverbs has ibv_reg_dmabuf_mr' if registers else lacks}"
    if not all(devices):
        fix = "dma-buf needs NVIDIA's open kernel modules, CUDA 11.7 and Linux 5.12, or later ones"
        return Finding(name=name, level=Level.NOTE, value=value, fix=fix)
    if not registers:
        fix = "install libibverbs 34 or later (libibverbs1, rdma-core)"
        return Finding(name=name, level=Level.NOTE, value=value, fix=fix)
    return Finding(name=name, value=f"{value} (not used by groups yet)")


def files_of_ranks(num_ranks: int) -> int:
    """Upper bound of the open files that a rank needs, with all ranks on one host: as open_files_of_ranks() of C++."""
    return 64 + 4 * num_ranks


def expected_ranks(environ: Mapping[str, str], num_cores: int) -> int:
    """Number of ranks whose open files must suffice: all ranks of the job, on all hosts, if WORLD_SIZE is set.

    Otherwise it is LOCAL_WORLD_SIZE, else one rank per core and at least LEAST_RANKS.
    """
    told = environ.get("WORLD_SIZE") or environ.get("LOCAL_WORLD_SIZE") or ""
    return int(told) if told.isdecimal() else max(LEAST_RANKS, num_cores)


def find_open_files(environ: Mapping[str, str]) -> Finding:
    """Checks whether a rank may open enough files for its peers. Each further group needs about as many again."""
    soft, hard = _host.open_file_limits()
    num_ranks = expected_ranks(environ, int(_host.cpu_limits().usable))
    needed = files_of_ranks(num_ranks)
    limits = f"{_limit_text(soft)} (hard limit {_limit_text(hard)})"
    value = f"{limits}; a group of {num_ranks} ranks needs about {needed}"
    if _is_enough(soft, needed):
        return Finding(name="open files", value=value)
    fix = f"ulimit -n {needed * 2}"
    if not _is_enough(hard, needed * 2):
        fix = f"as root, raise the hard limit to {needed * 2} (nofile in /etc/security/limits.conf, LimitNOFILE=)"
    return Finding(name="open files", level=Level.PROBLEM, value=value, fix=fix)


def _is_enough(limit: int, needed: int) -> bool:
    return limit < 0 or limit >= needed


def _limit_text(limit: int) -> str:
    return "unlimited" if limit < 0 else str(limit)


def find_variables(environ: Mapping[str, str]) -> Finding:
    """Lists the HEADWAY_ settings in the environment, and HEADWAY_ names that Headway ignores."""
    name = "variables"
    read = [known for known in _environment.KNOWN_VARIABLES if known in environ]
    value = f"{', '.join(read)} set" if read else "none set"
    ignored = _environment.unknown_variables(environ)
    if not ignored:
        return Finding(name=name, value=value)
    fix = "headway --help lists the variables that exist"
    return Finding(name=name, level=Level.NOTE, value=f"{value}; ignored: {', '.join(ignored)}", fix=fix)


def find_software() -> list[Finding]:
    """Reports versions and GPUs, and whether ``import headway``, its tables and operators work."""
    facts = _host.run_probe("_torch_probe.py")
    findings = [_find_python()]
    error = facts.get("error") or facts.get("torch_error")
    if error is not None:
        fix = f"run `make build` in the checkout, or: pip install '{supported.TORCH_REQUIREMENT}'"
        return [*findings, Finding(name="torch", level=Level.PROBLEM, value=str(error), fix=fix)]
    findings.append(_find_torch(str(facts["torch"]), bool(facts["distributed"])))
    findings += [_find_package(name, str(facts["torch"])) for name in ("torchrec", "fbgemm_gpu-cpu")]
    findings.append(_find_gpus(facts["gpus"], facts.get("gpu_error")))
    findings.append(_find_headway(facts.get("headway_error")))
    if "headway_error" not in facts:
        findings.append(_find_operators(facts.get("operators_error")))
    findings.append(_find_server())
    return findings


def _find_python() -> Finding:
    return Finding(name="Python", value=f"{'.'.join(map(str, sys.version_info[:3]))} in {sys.prefix}")


def _find_torch(version: str, has_distributed: bool) -> Finding:
    if not has_distributed:
        fix = "install a build of torch with distributed support, such as the one on PyPI"
        return Finding(name="torch", level=Level.PROBLEM, value=f"{version} without torch.distributed", fix=fix)
    try:
        supported.check_torch(version)
    except ImportError:
        fix = f"pip install '{supported.TORCH_REQUIREMENT}', then build headway again"
        value = f"{version}, supported are {supported.SUPPORTED_TORCH}"
        return Finding(name="torch", level=Level.PROBLEM, value=value, fix=fix)
    return Finding(name="torch", value=version)


def _find_package(name: str, torch_version: str) -> Finding:
    """Checks that TorchRec or FBGEMM, which are optional, is the release that was made for the installed torch."""
    label = name.replace("_", "-")
    wanted = supported.TORCHREC_BY_TORCH.get(supported.release_of(torch_version))
    series = None if wanted is None else f"{wanted[0]}.{wanted[1]}"
    fix = None if series is None else f"for TorchRec models: pip install --no-deps '{label}=={series}.*'"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        if series is None:
            return Finding(name=label, value=f"not installed; there is none for torch {torch_version}")
        return Finding(name=label, level=Level.NOTE, value="not installed", fix=fix)
    if series is None:
        newest = "{}.{}".format(*max(supported.TORCHREC_BY_TORCH))
        value = f"{version}, but there is none for torch {torch_version}: the newest torch with one is {newest}"
        return Finding(name=label, level=Level.NOTE, value=value)
    if supported.release_of(version) != wanted:
        value = f"{version}, but torch {torch_version} goes with {series}"
        return Finding(name=label, level=Level.NOTE, value=value, fix=fix)
    return Finding(name=label, value=version)


def _find_gpus(gpus: list[dict[str, object]], error: object) -> Finding:
    if error is not None:
        fix = "check the driver: nvidia-smi"
        return Finding(name="GPUs", level=Level.PROBLEM, value=str(error), fix=fix)
    if not gpus:
        return Finding(name="GPUs", value="none that torch can use; Headway does not need one")
    names = [f"{number}: {gpu['name']}, peers {gpu['peers']}" for number, gpu in enumerate(gpus)]
    return Finding(name="GPUs", value=f"{'; '.join(names)}")


def _find_headway(error: object) -> Finding:
    if error is None:
        return Finding(name="import headway", value="works; the backend is registered")
    fix = "build the extension: `make build` in the checkout, or pip install . again after a change of torch"
    return Finding(name="import headway", level=Level.PROBLEM, value=str(error), fix=fix)


def _find_operators(error: object) -> Finding:
    name = "tables and operators"
    if error is None:
        return Finding(name=name, value="are built")
    fix = "for training, tables and HSTU: `make build` in the checkout; `make demo` builds less"
    is_missing = "ModuleNotFoundError" in str(error) or "is not built" in str(error)
    value = "not built" if is_missing else str(error)
    return Finding(name=name, level=Level.NOTE, value=value, fix=fix, fails="headway train, tables and HSTU")


def _find_server() -> Finding:
    if program_path("headway_serve").exists():
        return Finding(name="headway serve", value="is built")
    packages = "libgrpc++-dev libprotobuf-dev protobuf-compiler-grpc nlohmann-json3-dev"
    fix = f"to serve models: apt install {packages}, then build again"
    return Finding(
        name="headway serve",
        level=Level.NOTE,
        value="is not built, as gRPC was not found",
        fix=fix,
        fails="headway serve",
    )


_MARKS = {Level.OK: "ok     ", Level.NOTE: "note   ", Level.PROBLEM: "PROBLEM"}


def format_report(diagnosis: Diagnosis) -> str:
    """Formats the findings with their fixes, the choices with their reasons, and the number of problems."""
    lines = ["this host"]
    width = max(len(finding.name) for finding in diagnosis.findings)
    for finding in diagnosis.findings:
        lines.append(f"  {_MARKS[finding.level]} {finding.name:<{width}}  {finding.value}")
        if finding.fix is not None:
            lines.append(f"          {'':<{width}}  fix: {finding.fix}")
    lines += ["", "what Headway will use"]
    for choice in diagnosis.choices:
        lines.append(f"  {choice.purpose}: {choice.uses}")
        lines.append(f"      because {choice.because}")
    return "\n".join([*lines, "", _conclusion(diagnosis.findings)])


def _conclusion(findings: Sequence[Finding]) -> str:
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    if problems:
        return f"{problems} problem{'s' * (problems != 1)} to fix"
    failing = [finding.fails for finding in findings if finding.fails is not None]
    return f"not available until it is built: {'; '.join(failing)}" if failing else "nothing here would fail"


def main(arguments: list[str], *, diagnose_host: Callable[[], Diagnosis] = diagnose) -> int:
    """Prints the diagnosis. Returns 1 if there is a problem, else 0."""
    parser = OneLineParser(
        prog="headway doctor",
        description="Says what this host offers, what Headway will use of it and why, and what to fix. "
        "The exit status is 1 when something would fail.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object for programs")
    as_json = parser.parse_args(arguments).json
    diagnosis = diagnose_host()
    print(diagnosis.as_json() if as_json else format_report(diagnosis), flush=True)
    return 0 if diagnosis.is_ok else 1
