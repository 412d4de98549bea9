# SPDX-License-Identifier: Apache-2.0
"""The findings, choices and exit status of ``headway doctor`` on hosts that lack a feature.

A finding is a fact about the host with a level: OK, NOTE (slower) or PROBLEM (something would fail). A choice is the
way in which Headway would reach some peers there.
"""

import errno
import importlib.metadata
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from headway.cli import _host, doctor
from headway.cli.doctor import Diagnosis, Finding, Level, choose

ROOT = Path(__file__).resolve().parents[2]


def finding(level: Level = Level.OK) -> Finding:
    return Finding(name="sample", level=level, value="as told", fix=None if level is Level.OK else "do this")


@pytest.mark.parametrize(("level", "status"), [(Level.OK, 0), (Level.NOTE, 0), (Level.PROBLEM, 1)])
def test_the_exit_status_is_one_where_something_would_fail(
    level: Level, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    sick = Diagnosis(findings=[finding(), finding(level)], choices=choose(finding(), finding(), rdma_works=False))
    assert doctor.main([], diagnose_host=lambda: sick) == status
    printed = capsys.readouterr().out
    assert ("fix: do this" in printed) == (level is not Level.OK)
    assert ("1 problem to fix" in printed) == (level is Level.PROBLEM)


# A slot is the receive buffer of a block. A larger one is pulled (the receiver reads the sender's memory by
# process_vm_readv) or sent in fragments.
def uses(purpose: str, shared_memory: Level, direct_reads: Level, *, rdma_works: bool = False) -> str:
    choices = choose(finding(shared_memory), finding(direct_reads), rdma_works=rdma_works)
    return next(choice.uses for choice in choices if choice.purpose == purpose)


def test_large_messages_are_pulled_only_where_siblings_may_be_read() -> None:
    assert uses("messages above a slot", Level.OK, Level.OK).startswith("pull")
    assert uses("messages above a slot", Level.OK, Level.NOTE) == "fragments"


def test_other_hosts_are_reached_by_rdma_only_where_it_works() -> None:
    assert uses("peers on other hosts", Level.OK, Level.OK, rdma_works=True).startswith("verbs")
    assert uses("peers on other hosts", Level.OK, Level.OK) == "tcp"


@pytest.mark.parametrize(("effective", "is_limited"), [("0000003fffffffff", False), ("00000000a80425fb", True)])
def test_locked_memory_is_limited_without_the_capability(
    monkeypatch: pytest.MonkeyPatch, effective: str, is_limited: bool
) -> None:
    # The second set of capabilities is that of root in a container of Docker's defaults. It lacks CAP_IPC_LOCK.
    monkeypatch.setattr(_host, "read_text", lambda path: f"Name:\tpython\nCapEff:\t{effective}\n")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (65536, 65536))
    assert _host.locked_memory_bytes() == (65536 if is_limited else None)


@pytest.mark.parametrize(
    ("ports", "working", "locked_bytes", "level", "text"),
    [
        ({}, [], None, Level.OK, "no device"),
        ({"mlx5_0:1": "1: DOWN"}, [], None, Level.NOTE, "mlx5_0:1: 1: DOWN"),
        ({"mlx5_0:1": "4: ACTIVE"}, [], None, Level.NOTE, "no libibverbs"),
        ({"mlx5_0:1": "4: ACTIVE"}, ["mlx5_0:1"], None, Level.OK, "mlx5_0:1: 4: ACTIVE"),
        ({"mlx5_0:1": "4: ACTIVE"}, ["mlx5_0:1"], 65536, Level.PROBLEM, "64 KiB may be locked"),
    ],
)
def test_rdma_is_judged_by_ports_library_and_locked_memory(
    monkeypatch: pytest.MonkeyPatch,
    ports: dict[str, str],
    working: list[str],
    locked_bytes: int | None,
    level: Level,
    text: str,
) -> None:
    monkeypatch.setattr(_host, "rdma_ports", lambda: ports)
    monkeypatch.setattr(_host, "locked_memory_bytes", lambda: locked_bytes)
    found = doctor.find_rdma(working)
    assert found.level is level
    assert text in found.value
    assert (found.fix is None) == (level is Level.OK)


@pytest.mark.parametrize(
    ("answer", "registers", "level", "text"),
    [
        ({"devices": [], "problem": "no CUDA driver"}, None, Level.OK, "no CUDA driver"),
        ({"devices": []}, True, Level.OK, "no GPU"),
        ({"error": "exit status -11: crashed"}, True, Level.OK, "crashed"),
        ({"devices": [True, True]}, True, Level.OK, "2 of 2 GPUs export dma-buf; libibverbs has ibv_reg_dmabuf_mr"),
        ({"devices": [True, False]}, True, Level.NOTE, "1 of 2 GPUs"),
        ({"devices": [True]}, False, Level.NOTE, "libibverbs lacks"),
        ({"devices": [True]}, None, Level.NOTE, "no libibverbs"),
    ],
)
def test_gpu_memory_over_rdma_needs_gpus_that_export_and_a_library_that_registers(
    monkeypatch: pytest.MonkeyPatch, answer: dict[str, object], registers: bool | None, level: Level, text: str
) -> None:
    monkeypatch.setattr(_host, "run_probe", lambda name: answer)
    monkeypatch.setattr(_host, "registers_dma_buf", lambda: registers)
    found = doctor.find_gpu_memory_over_rdma()
    assert found.level is level
    assert text in found.value
    assert (found.fix is None) == (level is Level.OK)


def test_a_host_without_a_cuda_driver_says_so() -> None:
    if any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this host has a GPU")
    found = doctor.find_gpu_memory_over_rdma()
    assert found.level is Level.OK
    assert "CUDA" in found.value


@pytest.mark.parametrize(
    ("plain", "with_ptracer", "level", "text"),
    [
        (0, 0, Level.OK, "between siblings works"),
        (errno.EPERM, 0, Level.OK, "after PR_SET_PTRACER"),
        (errno.EPERM, errno.EPERM, Level.NOTE, "EPERM"),
        (errno.ENOSYS, errno.ENOSYS, Level.NOTE, "ENOSYS"),
    ],
)
def test_direct_reads_are_judged_by_what_the_attempts_gave(
    monkeypatch: pytest.MonkeyPatch, plain: int, with_ptracer: int, level: Level, text: str
) -> None:
    monkeypatch.setattr(_host, "run_probe", lambda name: {"plain": plain, "with_ptracer": with_ptracer})
    found = doctor.find_direct_reads()
    assert found.level is level
    assert text in found.value
    assert (found.fix is None) == (level is Level.OK)


def test_a_host_without_memory_files_has_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, flags: int) -> int:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "memfd_create", refuse)
    found = doctor.find_shared_memory()
    assert found.level is Level.PROBLEM
    assert "Operation not permitted" in found.value


def test_variables_that_mean_nothing_are_noted() -> None:
    found = doctor.find_variables(
        {"HEADWAY_TRANSPORT": "shm", "HEADWAY_MAX_LAG": "1", "HEADWAY_PORT": "tcp://10.0.0.1:80"}
    )
    assert found.level is Level.NOTE
    assert found.value == "HEADWAY_TRANSPORT set; ignored: HEADWAY_MAX_LAG"
    assert doctor.find_variables({"PATH": "/bin"}) == Finding(name="variables", value="none set")


# ``limits``: soft and hard limit of open files; -1: unlimited. A rank needs 64 files and 4 per rank of the group.
@pytest.mark.parametrize(
    ("limits", "environ", "level", "text"),
    [
        ((64, 4096), {}, Level.PROBLEM, "64 (hard limit 4096); a group of 64 ranks needs about 320"),
        ((256, 4096), {}, Level.PROBLEM, "a group of 64 ranks needs about 320"),
        ((1024, 4096), {}, Level.OK, "a group of 64 ranks needs about 320"),
        ((1024, -1), {"WORLD_SIZE": "256"}, Level.PROBLEM, "a group of 256 ranks needs about 1088"),
        ((256, 4096), {"WORLD_SIZE": "8"}, Level.OK, "a group of 8 ranks needs about 96"),
        ((256, 4096), {"LOCAL_WORLD_SIZE": "8"}, Level.OK, "a group of 8 ranks needs about 96"),
        ((-1, -1), {"WORLD_SIZE": "many"}, Level.OK, "unlimited (hard limit unlimited); a group of 64"),
    ],
)
def test_open_files_are_judged_by_what_the_ranks_need(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], environ: dict[str, str], level: Level, text: str
) -> None:
    monkeypatch.setattr(_host, "open_file_limits", lambda: limits)
    monkeypatch.setattr(_host, "cpu_limits", lambda: _host.CpuLimits(online=8, allowed=8, quota=None))
    found = doctor.find_open_files(environ)
    assert found.level is level
    assert text in found.value
    assert (found.fix is None) == (level is Level.OK)


def test_a_hard_limit_that_is_too_low_is_for_root_to_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_host, "open_file_limits", lambda: (256, 512))
    assert doctor.find_open_files({"WORLD_SIZE": "64"}).fix == (
        "as root, raise the hard limit to 640 (nofile in /etc/security/limits.conf, LimitNOFILE=)"
    )
    monkeypatch.setattr(_host, "open_file_limits", lambda: (256, 1024))
    assert doctor.find_open_files({"WORLD_SIZE": "64"}).fix == "ulimit -n 640"


def test_the_doctor_and_the_transport_agree_on_the_files_of_ranks() -> None:
    header = (ROOT / "base/include/headway/base/open_files.hpp").read_text(encoding="utf-8")
    match = re.search(r"return (\d+) \+ (\d+) \* static_cast<std::size_t>\(num_ranks\)", header)
    assert match is not None
    per_process, per_rank = map(int, match.groups())
    assert [doctor.files_of_ranks(ranks) for ranks in (0, 1, 256)] == [
        per_process + per_rank * ranks for ranks in (0, 1, 256)
    ]


@pytest.mark.parametrize(
    ("facts", "name", "text"),
    [
        ({"torch_error": "ModuleNotFoundError: No module named 'torch'"}, "torch", "No module named"),
        ({"torch": "2.8.0", "distributed": True, "gpus": []}, "torch", "2.8.0, supported are 2.11 to 2.15"),
        ({"torch": "2.16.0", "distributed": True, "gpus": []}, "torch", "2.16.0, supported are 2.11 to 2.15"),
        ({"torch": "2.11.0", "distributed": False, "gpus": []}, "torch", "without torch.distributed"),
        (
            {"torch": "2.11.0", "distributed": True, "gpus": [], "gpu_error": "RuntimeError: CUDA error: unknown"},
            "GPUs",
            "CUDA error: unknown",
        ),
        (
            {"torch": "2.11.0", "distributed": True, "gpus": [], "headway_error": "ImportError: no _C"},
            "import headway",
            "no _C",
        ),
        ({"error": "exit status -11: crashed"}, "torch", "crashed"),
    ],
)
def test_software_that_cannot_work_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, object], name: str, text: str
) -> None:
    monkeypatch.setattr(_host, "run_probe", lambda script: facts)
    problems = [found for found in doctor.find_software() if found.level is Level.PROBLEM]
    (problem,) = problems
    assert problem.name == name
    assert text in problem.value
    assert problem.fix


def test_operators_that_are_not_built_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"torch": "2.11.0", "distributed": True, "gpus": [], "operators_error": "ImportError: is not built"}
    monkeypatch.setattr(_host, "run_probe", lambda script: facts)
    (found,) = (each for each in doctor.find_software() if each.name == "tables and operators")
    assert found.level is Level.NOTE and found.value == "not built" and "make build" in str(found.fix)
    facts["operators_error"] = "ImportError: headway's operator library cannot be loaded: undefined symbol"
    (found,) = (each for each in doctor.find_software() if each.name == "tables and operators")
    assert "undefined symbol" in found.value


def test_the_conclusion_names_what_fails_without_a_problem() -> None:
    plain = [Finding(name="a", value="b"), Finding(name="c", level=Level.NOTE, value="d", fix="e")]
    missing = Finding(name="tables", level=Level.NOTE, value="not built", fix="make build", fails="headway train")
    problem = Finding(name="torch", level=Level.PROBLEM, value="none", fix="install it")

    def conclusion(*findings: Finding) -> str:
        return doctor.format_report(doctor.Diagnosis(findings=list(findings), choices=[])).splitlines()[-1]

    assert conclusion(*plain) == "nothing here would fail"
    assert conclusion(*plain, missing) == "not available until it is built: headway train"
    assert conclusion(*plain, missing, problem) == "1 problem to fix"


@pytest.mark.parametrize(
    ("torch", "torchrec", "level", "text"),
    [
        ("2.11.0", "1.6.1", Level.OK, "1.6.1"),
        ("2.14.0+cu130", "1.9.2", Level.OK, "1.9.2"),
        ("2.11.0", "1.9.2", Level.NOTE, "1.9.2, but torch 2.11.0 goes with 1.6"),
        (
            "2.15.0",
            "1.9.2",
            Level.NOTE,
            "1.9.2, but there is none for torch 2.15.0: the newest torch with one is 2.14",
        ),
        ("2.13.0", None, Level.NOTE, "not installed"),
        ("2.15.0", None, Level.OK, "not installed; there is none for torch 2.15.0"),
    ],
)
def test_torchrec_must_be_the_one_made_for_this_torch(
    monkeypatch: pytest.MonkeyPatch, torch: str, torchrec: str | None, level: Level, text: str
) -> None:
    def version(name: str) -> str:
        if torchrec is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return torchrec

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(_host, "run_probe", lambda script: {"torch": torch, "distributed": True, "gpus": []})
    found = next(found for found in doctor.find_software() if found.name == "torchrec")
    assert (found.level, found.value) == (level, text)


def test_the_cgroups_limits_are_read_from_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, files in {
        "two": {"cpu.max": "150000 100000", "memory.max": "max"},
        "one": {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000", "memory.limit_in_bytes": "1073741824"},
        "none": {"cpu.max": "max 100000", "memory.limit_in_bytes": "9223372036854771712"},
    }.items():
        (tmp_path / folder).mkdir()
        for name, text in files.items():
            (tmp_path / folder / name).write_text(f"{text}\n", encoding="utf-8")
    monkeypatch.setattr(_host, "cgroup_folders", lambda controller: [tmp_path / "two", tmp_path / "none"])
    assert _host.cpu_limits().quota == 1.5
    assert _host.memory_limit_bytes() is None
    monkeypatch.setattr(_host, "cgroup_folders", lambda controller: [tmp_path / "one"])
    assert _host.cpu_limits().quota == 0.5
    assert _host.memory_limit_bytes() == 1 << 30


def test_doctor_explains_a_checkout_whose_extension_is_not_built(tmp_path: Path) -> None:
    package = tmp_path / "headway"
    source = ROOT / "python/headway"
    for path in source.rglob("*.py"):
        copy = package / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (tmp_path / "headway_launcher.py").write_bytes((ROOT / "python/headway_launcher.py").read_bytes())
    finished = subprocess.run(
        [sys.executable, str(tmp_path / "headway_launcher.py"), "doctor"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert finished.returncode == 1
    assert "PROBLEM import headway" in finished.stdout
    assert "make build" in finished.stdout
    assert "Traceback" not in finished.stderr
