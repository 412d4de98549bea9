# SPDX-License-Identifier: Apache-2.0
"""Roles of a hybrid training in the benchmark ``hybrid``: servers, an embedding worker and trainers on hosts.

A host is a namespace of an emulated network, or this machine if there is no network.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.cli.built_programs import program_path

from benchmarks.harness.emulated_network import EmulatedNetwork
from benchmarks.harness.errors import BenchmarkError

_ROOT = Path(__file__).resolve().parents[2]
_STOP_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """The hosts of roles.

    Attributes:
        network: None: all on this machine.
        of_servers: host of each parameter server.
        of_trainers: host of each trainer.
    """

    network: EmulatedNetwork | None
    of_servers: tuple[int, ...]
    of_trainers: tuple[int, ...]

    def command_on(self, host: int, command: list[str]) -> list[str]:
        """Returns the command line that runs ``command`` on a host."""
        return self.network.command_in(host, command) if self.network else command

    def address(self, host: int) -> str:
        """Returns the IPv4 address of a host."""
        return self.network.addresses[host][0] if self.network else "127.0.0.1"

    def interface(self, host: int) -> str:
        """Returns the network interface by which trainers reach each other: the loopback if they share a host."""
        return f"hw{host}" if self.network and len(set(self.of_trainers)) > 1 else "lo"


def role_environment() -> dict[str, str]:
    """Returns the environment of roles, with a new secret of the job."""
    return {
        **os.environ,
        "HEADWAY_GROUP_SECRET": secrets.token_hex(16),
        "PYTHONPATH": os.pathsep.join([str(_ROOT), *sys.path]),
    }


@contextlib.contextmanager
def parameter_servers(hosts: Hosts, environ: Mapping[str, str]) -> Iterator[list[str]]:
    """Starts the servers; yields their addresses, and ends them.

    Raises:
        BenchmarkError: one does not start.
    """
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                _program(
                    hosts.command_on(host, [str(program_path("headway-ps")), "--address", f"{hosts.address(host)}:0"]),
                    environ,
                )
            )
            for host in hosts.of_servers
        ]


@contextlib.contextmanager
def embedding_worker(servers: Sequence[str], environ: Mapping[str, str]) -> Iterator[str]:
    """Starts an embedding worker on this machine; yields its address, and ends it.

    Raises:
        BenchmarkError: it does not start.
    """
    command = [
        str(program_path("headway-embedding-worker")),
        "--address",
        "127.0.0.1:0",
        "--servers",
        ",".join(servers),
    ]
    with _program(command, environ) as address:
        yield address


@contextlib.contextmanager
def _program(command: list[str], environ: Mapping[str, str]) -> Iterator[str]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(environ))
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("listening at "):
            raise BenchmarkError(f"'{' '.join(command)}' did not start: {line.strip()}")
        # A pipe that nobody reads would block the program one day.
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield line.removeprefix("listening at ").strip()
    finally:
        process.terminate()
        process.wait(timeout=_STOP_S)


def run_trainers(
    module: str, settings: Mapping[str, Any], hosts: Hosts, environ: Mapping[str, str], time_limit_s: float
) -> dict[str, Any]:
    """Runs a process of ``module`` for each trainer to its end; returns what rank 0 printed.

    Raises:
        BenchmarkError: a trainer failed, or did not end in time.
    """
    command = [sys.executable, "-m", module, json.dumps(settings)]
    first = hosts.of_trainers[0]
    master = hosts.address(first) if len(set(hosts.of_trainers)) > 1 else "127.0.0.1"
    port = str(20_000 + secrets.randbelow(10_000))
    processes = [
        subprocess.Popen(
            hosts.command_on(host, command), stdout=subprocess.PIPE, text=True,
            env={**environ, "RANK": str(rank), "WORLD_SIZE": str(len(hosts.of_trainers)), "MASTER_ADDR": master,
                 "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": hosts.interface(host)},
        )
        for rank, host in enumerate(hosts.of_trainers)
    ]  # fmt: skip
    ends = time.monotonic() + time_limit_s
    try:
        outputs = [process.communicate(timeout=max(ends - time.monotonic(), 0.1))[0] for process in processes]
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"the trainers did not end within {time_limit_s:.0f} s") from None
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for rank, process in enumerate(processes):
        if process.returncode != 0:
            raise BenchmarkError(f"trainer {rank} failed with status {process.returncode}")
    found: dict[str, Any] = json.loads(outputs[0].splitlines()[-1])
    return found
