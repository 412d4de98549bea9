# SPDX-License-Identifier: Apache-2.0
"""Output and exit status of the ``headway`` command, run in a process of its own as users run it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from headway._environment import KNOWN_VARIABLES, check_environment, unknown_variables
from headway.cli.main import find_benchmarks

ROOT = Path(__file__).resolve().parents[2]


def headway(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
    environment["PYTHONPATH"] = str(ROOT / "python")
    return subprocess.run(
        [sys.executable, str(ROOT / "python/headway_launcher.py"), *arguments],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "headway: which command?"),
        (["dokter"], "headway: unknown command 'dokter': there are doctor, demo, train, hybrid, export, serve, "),
        (["--fast"], "headway: unrecognized arguments: --fast"),
        (["doctor", "--xml"], "headway doctor: unrecognized arguments: --xml"),
        (["version", "now"], "headway version: unrecognized arguments: now"),
        (["bench"], "headway bench: which benchmark?"),
        (["bench", "no_such"], "headway bench: unknown benchmark 'no_such': there are "),
    ],
)
def test_a_wrong_argument_gives_one_clear_line(arguments: list[str], message: str) -> None:
    finished = headway(*arguments)
    assert finished.returncode == 2
    assert finished.stdout == ""
    (line,) = finished.stderr.splitlines()
    assert line.startswith(message)


@pytest.mark.parametrize("command", ["doctor", "version", "demo", "bench"])
def test_a_misspelt_variable_gives_one_clear_line(command: str) -> None:
    finished = headway(command, HEADWAY_GROUP_SECRT="x")
    assert finished.returncode == 2
    (line,) = finished.stderr.splitlines()
    assert "unknown environment variable HEADWAY_GROUP_SECRT: did you mean HEADWAY_GROUP_SECRET?" in line


def test_a_group_is_refused_if_a_variable_is_misspelt() -> None:
    create = "import headway; headway.init(rank=0, world_size=1, init_method='tcp://127.0.0.1:0')"
    finished = subprocess.run(
        [sys.executable, "-c", create],
        env={**os.environ, "PYTHONPATH": str(ROOT / "python"), "HEADWAY_TRANSPOT": "tcp"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert finished.returncode != 0
    assert (
        "unknown environment variable HEADWAY_TRANSPOT: did you mean HEADWAY_TRANSPORT?"
        in finished.stderr.splitlines()[-1]
    )


@pytest.mark.parametrize("arguments", [["--help"], ["doctor", "--help"], ["bench", "--help"], ["demo", "--help"]])
def test_help_says_what_the_command_is_for(arguments: list[str]) -> None:
    finished = headway(*arguments)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith("usage: headway")
    assert len(finished.stdout.splitlines()) > 4


def test_help_names_every_variable() -> None:
    text = headway("--help").stdout
    assert [name for name in KNOWN_VARIABLES if name not in text] == []


def test_a_closed_pipe_is_no_traceback() -> None:
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "python/headway_launcher.py"), "bench", "--list"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    process.wait(timeout=60)
    assert "Traceback" not in errors


def test_version_is_that_of_the_project() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    match = re.search(r'^version = "(.*)"$', project, re.MULTILINE)
    assert match is not None
    assert headway("version").stdout == f"headway {match.group(1)}\n"
    assert f"project(headway VERSION {match.group(1)} " in (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")


def test_doctor_reports_as_text_and_as_json_and_its_status_agrees() -> None:
    finished = headway("doctor", "--json")
    report = json.loads(finished.stdout)
    problems = [finding for finding in report["findings"] if finding["level"] == "problem"]
    assert report["ok"] == (not problems)
    assert finished.returncode == (1 if problems else 0)
    names = {finding["name"] for finding in report["findings"]}
    assert {"cores", "memory", "shared memory", "direct reads (CMA)", "RDMA", "GPUs", "torch"} <= names
    assert {choice["purpose"] for choice in report["choices"]} >= {"peers on this host", "peers on other hosts"}
    assert all(finding["fix"] for finding in problems)


def test_benchmarks_are_listed_without_importing_them(tmp_path: Path) -> None:
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "fast.py").write_text('DESCRIPTION: str = "how fast"\nraise RuntimeError\n', encoding="utf-8")
    (folder / "_parts.py").write_text("X = 1\n", encoding="utf-8")  # A module that benchmarks share.
    assert find_benchmarks(tmp_path) == {"fast": "how fast"}


def test_a_known_variable_and_others_programs_variables_pass() -> None:
    assert unknown_variables({"HEADWAY_GROUP_SECRET": "s", "PATH": "/bin", "MY_HEADWAY_X": "1"}) == []
    check_environment({"HEADWAY_GROUP_SECRET": "s"})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("HEADWAY_TRANSPOT", "HEADWAY_TRANSPORT"),
        ("HEADWAY_TRANPSORT", "HEADWAY_TRANSPORT"),
        ("HEADWAY_Transport", "HEADWAY_TRANSPORT"),
        ("HEADWAY_HOSTID", "HEADWAY_HOST_ID"),
        ("HEADWAY_SLOT_BYTE", "HEADWAY_SLOT_BYTES"),
        ("HEADWAY_FLIGHT_RECODER", "HEADWAY_FLIGHT_RECORDER"),
        ("HEADWAY_GROUP_SECRT", "HEADWAY_GROUP_SECRET"),
        ("HEADWAY_GROUP_SECRET_FLIE", "HEADWAY_GROUP_SECRET_FILE"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_name_that_was_meant(name: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"unknown environment variable {name}: did you mean {meant}\?$"):
        check_environment({name: "1"})


def service_variables(service: str) -> dict[str, str]:
    """Variables that Kubernetes sets in pods for a Service with one named and one unnamed port."""
    name, url = service.upper().replace("-", "_"), "tcp://10.96.12.7:29500"
    values = {"SERVICE_HOST": "10.96.12.7", "SERVICE_PORT": "29500", "SERVICE_PORT_HTTP": "29500", "PORT": url}
    values |= {"PORT_29500_TCP": url, "PORT_29500_TCP_PROTO": "tcp", "PORT_29500_TCP_PORT": "29500"}
    values |= {"PORT_29500_TCP_ADDR": "10.96.12.7", "PORT_53_UDP": url}
    return {f"{name}_{ending}": value for ending, value in values.items()}


@pytest.mark.parametrize(
    "service", ["headway", "headway-trainer", "headway-engine", "headway-host", "headway-slot-byte"]
)
def test_the_variables_of_a_kubernetes_service_pass(service: str) -> None:
    assert unknown_variables(service_variables(service)) == []
    check_environment(service_variables(service))


def test_groups_can_be_created_beside_a_service_of_the_name_headway(tmp_path: Path) -> None:
    create = f"import headway; headway.init(rank=0, world_size=1, init_method='file://{tmp_path}/store')"
    finished = subprocess.run(
        [sys.executable, "-c", create],
        env={**os.environ, "PYTHONPATH": str(ROOT / "python"), **service_variables("headway")},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("name", ["HEADWAY_9", "HEADWAY_", "HEADWAY_MAX_LAG", "HEADWAY_HOME", "HEADWAY_SECRETS_DIR"])
def test_a_variable_that_resembles_none_passes(name: str) -> None:
    assert unknown_variables({name: "1"}) == [name]
    check_environment({name: "1"})


def test_every_variable_that_the_sources_read_is_known_and_every_known_one_is_read() -> None:
    in_python = re.compile(r"""["'](HEADWAY_[A-Z_]+)["']""")
    in_cpp = re.compile(r"""getenv\("(HEADWAY_[A-Z_]+)"\)""")
    read = set()
    for folder in ("libcomm", "c10d_backend", "python", "dlrm_examples", "benchmarks"):
        for path in (ROOT / folder).rglob("*.*"):
            if path.name != "_environment.py" and path.suffix in (".py", ".pyi", ".cpp", ".hpp"):
                pattern = in_python if path.suffix.startswith(".py") else in_cpp
                read.update(pattern.findall(path.read_text(encoding="utf-8")))
    assert read == set(KNOWN_VARIABLES)
