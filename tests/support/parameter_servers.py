# SPDX-License-Identifier: Apache-2.0
"""Parameter servers and embedding workers of tests: processes on this host."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator

from headway.cli.built_programs import program_path

SECRET = "secret of the tests"


class Addresses(list[str]):
    """Addresses of servers."""

    processes: list[subprocess.Popen[str]]

    def kill(self, index: int) -> None:
        """Kills a server as a crash of its host would."""
        self.processes[index].kill()
        self.processes[index].wait(timeout=30)


@contextlib.contextmanager
def parameter_servers(count: int, *options: str, job: str = "hybrid") -> Iterator[Addresses]:
    """Starts servers; yields their addresses, and ends them. Sets the secret in the environment meanwhile."""
    with _roles("headway-ps", count, "--job", job, *options) as addresses:
        yield addresses


@contextlib.contextmanager
def embedding_workers(count: int, servers: list[str], *options: str, job: str = "hybrid") -> Iterator[Addresses]:
    """The same for embedding workers of these servers."""
    with _roles("headway-embedding-worker", count, "--servers", ",".join(servers), "--job", job, *options) as addresses:
        yield addresses


@contextlib.contextmanager
def _roles(program: str, count: int, *options: str) -> Iterator[Addresses]:
    environ = {**os.environ, "HEADWAY_GROUP_SECRET": SECRET}
    command = [str(program_path(program)), "--address", "127.0.0.1:0", *options]
    before = os.environ.get("HEADWAY_GROUP_SECRET")
    os.environ["HEADWAY_GROUP_SECRET"] = SECRET
    servers: list[subprocess.Popen[str]] = []
    try:
        for _ in range(count):
            servers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ))
        addresses = Addresses()
        addresses.processes = servers
        for server in servers:
            assert server.stdout is not None
            addresses.append(server.stdout.readline().removeprefix("listening at ").strip())
        yield addresses
    finally:
        for server in servers:
            server.send_signal(signal.SIGINT)  # SIGTERM would wait for the batches of an embedding worker.
            server.wait(timeout=30)
        if before is None:
            del os.environ["HEADWAY_GROUP_SECRET"]
        else:
            os.environ["HEADWAY_GROUP_SECRET"] = before
