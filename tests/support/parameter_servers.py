# SPDX-License-Identifier: Apache-2.0
"""Parameter servers of tests: processes of ``headway-ps`` on this host."""

from __future__ import annotations

import contextlib
import os
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
    environ = {**os.environ, "HEADWAY_GROUP_SECRET": SECRET}
    command = [str(program_path("headway-ps")), "--address", "127.0.0.1:0", "--job", job, *options]
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
            server.terminate()
            server.wait(timeout=30)
        if before is None:
            del os.environ["HEADWAY_GROUP_SECRET"]
        else:
            os.environ["HEADWAY_GROUP_SECRET"] = before
