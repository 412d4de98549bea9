# SPDX-License-Identifier: Apache-2.0
"""``headway serve`` as a user starts it, and ``headway load`` with requests whose replies are known."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.serving import Predictor, Request

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.served_dlrm import BEYOND_LOAD_S, START_S, load_command, stop_rank

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

#: CRC-32 of the right reply to each request, by version of the model.
Expected = Mapping[str, Sequence[int]]


@dataclass
class ServedRanks:
    """The ranks of one ``headway serve``.

    Attributes:
        process: of ``headway serve``.
        log: its output.
        addresses: of all ranks.
    """

    process: subprocess.Popen[bytes]
    log: Path
    addresses: list[str]

    def wait_for(self, text: str, count: int = 1) -> None:
        """Waits until the output has ``text`` so many times.

        Raises:
            BenchmarkError: it does not come in time.
        """
        ends = time.monotonic() + START_S
        while self.log.read_text().count(text) < count:
            if self.process.poll() is not None or time.monotonic() > ends:
                raise BenchmarkError(f"{text!r} did not come: {self.log.read_text()[-2000:]}")
            time.sleep(0.01)

    def pids(self) -> list[int]:
        """Processes by rank.

        Raises:
            BenchmarkError: a rank does not run.
        """
        found = {}
        main = self.process.pid
        for pid in map(int, Path(f"/proc/{main}/task/{main}/children").read_text().split()):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if "--rank" in words:
                found[int(words[words.index("--rank") + 1])] = pid
        if sorted(found) != list(range(len(self.addresses))):
            raise BenchmarkError(f"of {len(self.addresses)} ranks run {sorted(found)}")
        return [found[rank] for rank in sorted(found)]

    def cpu_seconds(self) -> list[float]:
        """Processor time of each rank so far."""
        times = []
        for pid in self.pids():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            times.append((int(fields[11]) + int(fields[12])) / _TICKS_PER_S)
        return times

    def memory_mib(self) -> list[float]:
        """Resident memory of each rank."""
        return [
            int(line.split()[1]) / 1024
            for pid in self.pids()
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if line.startswith("VmRSS:")
        ]


@contextlib.contextmanager
def headway_serve(package: Path, *words: str, ranks: int, port: int) -> Iterator[ServedRanks]:
    """Starts ``headway serve`` and yields its ranks, which serve.

    Args:
        package: to serve.
        words: more options of the command.
        ranks: number of processes.
        port: that of rank 0.
    Raises:
        BenchmarkError: the ranks do not start.
    """
    command = [sys.executable, "-m", "headway_launcher", "serve", str(package), "--ranks", str(ranks)]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        log = Path(folder) / "serve.log"
        output = stack.enter_context(log.open("wb"))
        process = subprocess.Popen(
            [*command, "--port", str(port), *words],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "HEADWAY_LOG": "info"},
        )
        stack.callback(stop_rank, process)
        stack.callback(process.send_signal, signal.SIGTERM)
        served = ServedRanks(process, log, [f"127.0.0.1:{port + rank}" for rank in range(ranks)])
        served.wait_for(" serves version ", ranks)
        yield served


def write_log(path: Path, requests: Sequence[Request]) -> None:
    """Writes requests in the format of ``headway load --log``."""
    with path.open("w") as file:
        for request in requests:
            features = {}
            for name, (ids, lengths) in request.features.items():
                parts = ids.split(lengths.tolist())
                features[name] = [part.tolist() for part in parts]
            dense = {name: values.tolist() for name, values in request.dense.items()}
            line: dict[str, Any] = {"features": features, "dense": dense}
            if request.items is not None:
                line["items"] = request.items.tolist()
            file.write(json.dumps(line) + "\n")


def expected_replies(package: Path, requests: Sequence[Request]) -> dict[str, list[int]]:
    """CRC-32 of the outputs of each request by ``Predictor``, in the largest bucket, by the version of the package."""
    predictor = Predictor(package)
    bucket = max(part.bucket for part in predictor.manifest.parts)
    found = []
    for request in requests:
        crc = 0
        for output in predictor.predict(request, bucket=bucket).values():
            crc = zlib.crc32(output.numpy().tobytes(), crc)
        found.append(crc)
    return {predictor.manifest.version: found}


@dataclass(frozen=True, kw_only=True)
class LoadRun:
    """Results of a run of ``headway load``.

    Attributes:
        result: its line of JSON.
        num_right: replies that have the bits of their version.
        num_wrong: other replies.
    """

    result: dict[str, Any]
    num_right: int
    num_wrong: int

    @property
    def answered_per_s(self) -> float:
        return float(self.result["answered_per_s"])

    @property
    def statuses(self) -> Counter[str]:
        return Counter(self.result["statuses"])


class Load:
    """A running ``headway load``.

    Args:
        package: that is served.
        addresses: that take the requests in turn.
        words: more options.
        log: file of requests, by ``write_log()``.
        expected: their replies.
        seconds: time of the measurement.
        cores: cores of the load generator, as for taskset; empty: all.
    """

    def __init__(
        self,
        package: Path,
        addresses: Sequence[str],
        *words: str,
        log: Path,
        expected: Expected,
        seconds: int,
        cores: str = "",
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._expected = expected
        self._limit_s = seconds + BEYOND_LOAD_S
        self._files = Path(self._folder.name) / "result.json", Path(self._folder.name) / "replies.jsonl"
        command = load_command(package, addresses, cores)
        command += ["--log", str(log), "--seconds", str(seconds), "--json", str(self._files[0])]
        command += ["--replies", str(self._files[1]), *words]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def stop(self) -> LoadRun:
        """Ends the load early. See ``finish()``."""
        self.process.send_signal(signal.SIGTERM)
        self._limit_s = BEYOND_LOAD_S
        return self.finish()

    def finish(self) -> LoadRun:
        """Waits for the end.

        Raises:
            BenchmarkError: it fails, or does not end in time.
        """
        try:
            errors = self.process.communicate(timeout=self._limit_s)[1]
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise BenchmarkError(f"headway load did not end within {self._limit_s} s") from None
        if self.process.returncode != 0:
            raise BenchmarkError(errors.strip() or f"headway load ended with {self.process.returncode}")
        result = json.loads(self._files[0].read_text())
        num_right = num_wrong = 0
        for line in self._files[1].read_text().splitlines():
            reply = json.loads(line)
            right = self._expected[reply["version"]][reply["request"]] == reply["crc32"]
            num_right += reply["count"] if right else 0
            num_wrong += 0 if right else reply["count"]
        self._folder.cleanup()
        return LoadRun(result=result, num_right=num_right, num_wrong=num_wrong)
