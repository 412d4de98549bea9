# SPDX-License-Identifier: Apache-2.0
"""Log records of the C++ library reach Python's ``logging``, and nothing is lost if a handler fails."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from datetime import timedelta

import pytest
import torch.distributed as dist
from headway.comm import _extension, _logging
from rank_processes import make_group, run_ranks

LIMIT = timedelta(seconds=30)
#: A program with one group of one rank, which ends without leaving it.
PROGRAM = """
import logging, sys, tempfile, torch.distributed as dist, headway
{setup}
dist.init_process_group("headway", init_method=f"file://{{tempfile.mkdtemp()}}/store", rank=0, world_size=1)
"""


class Records(logging.Handler):
    """Keeps all records that a logger passes on, to be checked."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def run_program(setup: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "HEADWAY_LOG"} | variables
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(setup=setup)], capture_output=True, text=True, env=environ, timeout=120
    )


def log_a_connection(rank: int, level: int) -> list[tuple[str, str, int, str]]:
    assert _extension.flush_log(LIMIT)  # Records of the default group.
    handler = Records()
    logger = logging.getLogger("headway")
    logger.addHandler(handler)
    logger.setLevel(level)
    group = make_group("headway", max_lag=0)
    dist.barrier(group)
    assert _extension.flush_log(LIMIT)
    return [(each.name, each.levelname, each.__dict__["rank"], each.getMessage()) for each in handler.records]


def test_the_transport_of_each_peer_is_logged_with_the_rank() -> None:
    for rank, records in enumerate(run_ranks(log_a_connection, 2, logging.INFO)):
        (record,) = [each for each in records if each[0] == "headway.group"]
        assert record[1:3] == ("INFO", rank)
        assert record[3].startswith(f"rank {rank}: connected group ")
        assert " of 2 ranks: shm" in record[3] and record[3].endswith(f" to {1 - rank}")
        assert "DEBUG" not in {each[1] for each in records}


def test_the_level_of_the_logger_decides() -> None:
    assert run_ranks(log_a_connection, 2, logging.WARNING) == [[], []]
    (records, _) = run_ranks(log_a_connection, 2, logging.DEBUG)
    assert ("headway.bootstrap", "DEBUG", 0) in {each[:3] for each in records}


def fail_while_a_handler_fails(rank: int) -> str:
    """Connects a group. Returns what the library wrote to stderr."""

    def fail(level: int, subsystem: str, rank: int, message: str) -> None:
        raise LookupError("no such handler")

    reader, writer = os.pipe()
    os.dup2(writer, 2)
    _logging.install_once()  # The first group would replace the function.
    _extension.set_log_function(fail)
    make_group("headway", max_lag=0)
    assert _extension.flush_log(LIMIT)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.close(writer)
    with os.fdopen(reader) as text:
        return text.read()


def test_a_record_goes_to_stderr_if_the_function_fails() -> None:
    texts = run_ranks(fail_while_a_handler_fails, 1)
    assert "headway.group info: rank 0: connected group " in texts[0]
    assert "LookupError: no such handler" in texts[0]


def test_the_library_does_not_wait_for_a_handler() -> None:
    (has_connected,) = run_ranks(connect_while_a_handler_blocks, 1)
    assert has_connected


def connect_while_a_handler_blocks(rank: int) -> bool:
    released = threading.Event()
    _logging.install_once()  # The first group would replace the function.
    _extension.set_log_function(lambda level, subsystem, rank, message: released.wait(60) and None)
    make_group("headway", max_lag=0)  # Logs its connection, and returns although the handler does not.
    is_waiting = not _extension.flush_log(timedelta(milliseconds=50))
    released.set()
    return is_waiting and _extension.flush_log(LIMIT)


def test_the_variable_prints_records_without_a_change_of_the_program() -> None:
    ended = run_program(HEADWAY_LOG="info")
    assert ended.returncode == 0, ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if "connected group" in line]
    assert " headway.group INFO: rank 0: connected group " in line


def test_without_the_variable_a_program_prints_nothing_of_a_connection() -> None:
    ended = run_program()
    assert ended.returncode == 0 and "connected group" not in ended.stderr


def test_records_of_the_last_moment_are_delivered_at_exit() -> None:
    setup = "logging.basicConfig(level=logging.INFO, stream=sys.stdout)"
    ended = run_program(setup)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("INFO:headway.group:rank 0: connected group ") == 1


def test_a_wrong_level_is_an_error_of_the_first_group() -> None:
    ended = run_program(HEADWAY_LOG="loud")
    assert ended.returncode == 1
    assert "ValueError: HEADWAY_LOG must be debug, info or warning, not 'loud'" in ended.stderr


@pytest.mark.parametrize(("rank", "text"), [(3, "rank 3: 100% done"), (-1, "100% done")])
def test_a_record_without_a_group_names_no_rank(rank: int, text: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="headway.device"):
        _logging._pass_on(logging.INFO, "device", rank, "100% done")
    assert [each.getMessage() for each in caplog.records] == [text]
