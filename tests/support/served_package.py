# SPDX-License-Identifier: Apache-2.0
"""Starts ``headway serve``, and asks its ranks through tritonclient."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import tritonclient.grpc as triton
from headway.serving import Request
from torch import Tensor

_WAIT_S = 60
_TYPES = {np.dtype("int64"): "INT64", np.dtype("int32"): "INT32", np.dtype("float32"): "FP32"}


@dataclass
class Server:
    """Ranks of ``headway serve``, and a client of each."""

    process: subprocess.Popen[str]
    log: Path
    port: int
    clients: list[triton.InferenceServerClient] = field(default_factory=list)

    def wait_for(self, text: str, count: int = 1) -> None:
        """Waits until the output has ``text`` so many times."""
        ends = time.monotonic() + _WAIT_S
        while self.log.read_text().count(text) < count:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < ends, f"{text!r} did not come: {self.log.read_text()}"
            time.sleep(0.02)

    def pid_of(self, rank: int) -> int:
        """Process of a rank."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in children:
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if words[words.index("--rank") + 1] == str(rank):
                return int(pid)
        raise AssertionError(f"rank {rank} does not run")

    def stop(self) -> int:
        """Ends the ranks. Returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_WAIT_S)


@contextlib.contextmanager
def serve(package: Path, folder: Path, *options: str, ranks: int = 1, has_metrics: bool = False) -> Iterator[Server]:
    """Serves a package, and ends the ranks afterwards.

    Args:
        package: of ``headway export``.
        folder: gets the output.
        options: further options of ``headway serve``.
        ranks: of this host.
        has_metrics: rank 0 has its metrics at the port behind those of the ranks.
    """
    port = _free_ports(2 * ranks)
    log = folder / "serve.log"
    command = [sys.executable, "-m", "headway_launcher", "serve", str(package), "--ranks", str(ranks)]
    if has_metrics:
        command += ["--metrics-port", str(port + ranks)]
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--port", str(port), *options], stdout=output, stderr=subprocess.STDOUT, text=True
        )
    server = Server(process, log, port)
    try:
        server.wait_for(" serves version ", ranks)
        server.clients = [triton.InferenceServerClient(f"127.0.0.1:{port + rank}") for rank in range(ranks)]
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def inputs_of(request: Request) -> list[triton.InferInput]:
    """The tensors of a request, as the protocol names them."""
    arrays: dict[str, np.ndarray] = {}
    if request.items is not None:
        arrays["items"] = request.items.numpy().astype(np.int32)
    for name, (ids, lengths) in request.features.items():
        arrays[f"{name}.ids"] = ids.numpy()
        arrays[f"{name}.lengths"] = lengths.numpy().astype(np.int32)
    for name, values in request.dense.items():
        arrays[name] = values.numpy()
    return [input_of(name, array) for name, array in arrays.items()]


def input_of(name: str, array: np.ndarray) -> triton.InferInput:
    tensor = triton.InferInput(name, list(array.shape), _TYPES[array.dtype])
    tensor.set_data_from_numpy(array)
    return tensor


def predict(client: triton.InferenceServerClient, request: Request, timeout_s: float = 20) -> Mapping[str, Tensor]:
    """The outputs of a served model."""
    reply = client.infer("model", inputs_of(request), client_timeout=timeout_s)
    names = [output.name for output in reply.get_response().outputs]
    return {name: torch.from_numpy(reply.as_numpy(name).copy()) for name in names}


def status_of(error: triton.InferenceServerException) -> str:
    """Name of the gRPC status of an error, such as INVALID_ARGUMENT."""
    found = re.search(r"StatusCode\.(\w+)", str(error.status()))
    return found[1] if found else str(error.status())


def _free_ports(count: int) -> int:
    """First of several ports that nobody listens at."""
    while True:
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
        if port + count > 65535:
            continue
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for each in range(port, port + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", each))
            return port
