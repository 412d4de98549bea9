# SPDX-License-Identifier: Apache-2.0
"""MLPerf's LoadGen as a client of ranks that serve the DLRM; ``run_loadgen()`` runs it in a process of its own.

LoadGen decides when which request is sent, and takes the times. This program answers its calls: it sends messages that
were made beforehand over gRPC, in turn to each rank, and reports the end of each.

Server: LoadGen issues one request at a time, at times of a Poisson process. Its latency counts from when a request was
due, as that of ``headway load`` does. Offline: LoadGen issues all requests at once. This program keeps a number of them
in flight, as a rank refuses requests beyond a limit.

Source: Reddi et al., "MLPerf Inference Benchmark"; DLRM-v2's limits are in LoadGen's own ``mlperf.conf``.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from benchmarks.harness.dlrm_client import INFER_METHOD, make_message, message_types
from benchmarks.harness.dlrm_requests import IdLaw, RowLaw, draw_requests
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.served_dlrm import first_line

Scenario = Literal["Server", "Offline"]
_MODEL = "dlrm-v2"
_BEYOND_RUN_S = 120
_ROOT = Path(__file__).resolve().parents[2]
_NS_PER_MS = 1e6
_SUMMARY_NAMES = {
    "Completed samples per second": "answered_per_s",
    "Samples per second": "answered_per_s",
    "Scheduled samples per second": "offered_per_s",
    "Mean latency (ns)": "mean_ms",
    "50.00 percentile latency (ns)": "p50_ms",
    "90.00 percentile latency (ns)": "p90_ms",
    "99.00 percentile latency (ns)": "p99_ms",
    "99.90 percentile latency (ns)": "p999_ms",
}


@dataclass(frozen=True, kw_only=True)
class LoadGenSettings:
    """One run of LoadGen.

    Attributes:
        addresses: those of all ranks, which take turns.
        rate: requests a second; Offline: the expected rate, which decides the number of requests.
        seconds: least duration.
        in_flight: requests that are sent and not answered at most (Offline).
        timeout_ms: deadline of a request.
        rows: sizes of requests, each as likely as the others.
        num_ids: ids of a feature are below it.
        table_rows: rows of each table. Only the number of tables matters, unless ``is_modulo``.
        is_modulo: ids are taken modulo the rows of their table.
        num_dense: dense inputs of a row.
        distinct: different requests.
        seed: decides requests and times.
    """

    scenario: Scenario
    addresses: list[str]
    rate: float
    seconds: int
    in_flight: int
    timeout_ms: int
    rows: list[int]
    num_ids: int
    table_rows: list[int]
    is_modulo: bool
    num_dense: int
    distinct: int = 1000
    seed: int = 1


def expect_loadgen() -> None:
    """
    Raises:
        BenchmarkError: LoadGen is not installed.
    """
    if find_spec("mlperf_loadgen") is None:
        raise BenchmarkError("MLPerf's LoadGen is not installed: pip install mlcommons-loadgen")
    message_types()


def run_loadgen(
    settings: LoadGenSettings, *, cores: str = "", meanwhile: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Runs LoadGen once, and returns its results, with the names of those of ``headway load``, and its version.

    Args:
        settings: of the run.
        cores: cores of the process, as for taskset; empty: all.
        meanwhile: called when LoadGen begins to send.
    Raises:
        BenchmarkError: it failed, or took too long.
    """
    command = ["taskset", "-c", cores] if cores else []
    command += [sys.executable, "-m", "benchmarks.serving_peers.loadgen_client", json.dumps(asdict(settings))]
    limit_s = 3 * settings.seconds + _BEYOND_RUN_S
    with tempfile.TemporaryDirectory() as folder:
        results, log = Path(folder) / "results.json", Path(folder) / "log"
        with log.open("w") as errors:
            process = subprocess.Popen(
                [*command, str(results)], stdout=subprocess.PIPE, stderr=errors, text=True, cwd=_ROOT
            )
        try:
            if first_line(process, time.monotonic() + _BEYOND_RUN_S):
                meanwhile()
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise BenchmarkError(f"LoadGen did not end within {limit_s} s") from None
        finally:
            process.kill()
            process.wait()
        if process.returncode != 0:
            raise BenchmarkError(f"LoadGen ended with {process.returncode}: {log.read_text().strip()[-300:]}")
        found: dict[str, Any] = json.loads(results.read_text())
        return found | {"version": version("mlcommons-loadgen")}


def parse_summary(text: str) -> dict[str, Any]:
    """Reads LoadGen's summary: rates a second, latencies in ms, and ``is_valid``, LoadGen's verdict.

    Raises:
        ValueError: a rate or the verdict is missing.
    """
    found: dict[str, Any] = {}
    for line in text.splitlines():
        name, colon, value = line.rpartition(":")
        key = _SUMMARY_NAMES.get(name.strip())
        if colon and key is not None:
            found[key] = float(value) / (_NS_PER_MS if key.endswith("_ms") else 1)
    verdict = re.search(r"^Result is : (VALID|INVALID)$", text, re.MULTILINE)
    if verdict is None or "answered_per_s" not in found:
        raise ValueError(f"not a summary of LoadGen: {text[:200]!r}")
    return found | {"is_valid": verdict[1] == "VALID"}


class Sender:
    """Sends messages, and reports their ends to LoadGen."""

    def __init__(self, settings: LoadGenSettings) -> None:
        import grpc  # type: ignore[import-untyped, unused-ignore]

        self._messages, self._rows = make_messages(settings)
        self._timeout_s = settings.timeout_ms / 1e3
        # Messages are bytes, and answers are not parsed.
        self._channels = [grpc.insecure_channel(address) for address in settings.addresses]
        self._calls = [channel.unary_unary(INFER_METHOD) for channel in self._channels]
        self._lock = threading.Lock()
        self._left: deque[Any] = deque()  #: Samples that are not sent yet.
        self._room = settings.in_flight if settings.scenario == "Offline" else sys.maxsize
        self._num_sent = 0
        self.statuses: Counter[str] = Counter()
        self.answered_rows = 0

    def warm_up(self, seconds: float) -> None:
        """Sends one request after the other to each rank."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for call in self._calls:
                call(self._messages[self._num_sent % len(self._messages)], timeout=10)
                self._num_sent += 1

    def issue(self, samples: Sequence[Any]) -> None:
        """Called by LoadGen with the samples of a query. Returns at once."""
        with self._lock:
            self._left.extend(samples)
        self._send()

    def _send(self) -> None:
        while True:
            with self._lock:
                if not self._left or self._room == 0:
                    return
                sample = self._left.popleft()
                self._room -= 1
                call = self._calls[self._num_sent % len(self._calls)]
                self._num_sent += 1
            sent = call.future(self._messages[sample.index], timeout=self._timeout_s)
            sent.add_done_callback(lambda done, sample=sample: self._end(done, sample))

    def _end(self, done: Any, sample: Any) -> None:
        import mlperf_loadgen  # type: ignore[import-not-found, unused-ignore]

        mlperf_loadgen.QuerySamplesComplete([mlperf_loadgen.QuerySampleResponse(sample.id, 0, 0)])
        status = done.code().name
        with self._lock:
            self.statuses[status] += 1
            self.answered_rows += self._rows[sample.index] if status == "OK" else 0
            self._room += 1
        self._send()


def make_messages(settings: LoadGenSettings) -> tuple[list[bytes], list[int]]:
    """The messages of the different requests, and their numbers of rows."""
    requests = draw_requests(
        settings.distinct,
        rows=RowLaw(tuple(settings.rows)),
        ids=IdLaw(settings.num_ids),
        num_tables=len(settings.table_rows),
        num_dense=settings.num_dense,
        seed=settings.seed,
        table_rows=settings.table_rows if settings.is_modulo else None,
    )
    types = message_types()
    return [make_message(each, types).SerializeToString() for each in requests], [each.num_rows for each in requests]


def drive(settings: LoadGenSettings) -> dict[str, Any]:
    """Runs LoadGen in this process."""
    import mlperf_loadgen  # type: ignore[import-not-found, unused-ignore]

    with tempfile.TemporaryDirectory() as folder:
        user_conf = Path(folder) / "user.conf"
        user_conf.write_text(f"*.{settings.scenario}.target_qps = {settings.rate}\n")
        test = mlperf_loadgen.TestSettings()
        test.scenario = getattr(mlperf_loadgen.TestScenario, settings.scenario)
        test.mode = mlperf_loadgen.TestMode.PerformanceOnly
        test.FromConfig(str(user_conf), _MODEL, settings.scenario)  # It also reads LoadGen's own limits.
        test.min_duration_ms = 1000 * settings.seconds
        test.min_query_count = 1
        test.performance_sample_count_override = settings.distinct
        test.schedule_rng_seed = test.sample_index_rng_seed = test.qsl_rng_seed = settings.seed
        log = mlperf_loadgen.LogSettings()
        log.log_output.outdir = folder
        log.log_output.copy_summary_to_stdout = False
        log.enable_trace = False
        sender = Sender(settings)
        sender.warm_up(1)
        system = mlperf_loadgen.ConstructSUT(sender.issue, lambda: None)
        library = mlperf_loadgen.ConstructQSL(settings.distinct, settings.distinct, lambda _: None, lambda _: None)
        print("begins", flush=True)
        began = time.monotonic()
        mlperf_loadgen.StartTestWithLogSettings(system, library, test, log)
        seconds = time.monotonic() - began
        mlperf_loadgen.DestroyQSL(library)
        mlperf_loadgen.DestroySUT(system)
        found = parse_summary((Path(folder) / "mlperf_log_summary.txt").read_text())
    samples = sum(sender.statuses.values())
    return found | {
        "statuses": dict(sender.statuses),
        "samples": samples,
        "seconds": seconds,
        "answered_rows_per_s": sender.answered_rows / max(1, samples) * found["answered_per_s"],
        "limit_ms": test.server_target_latency_ns / _NS_PER_MS,
    }


def main(argv: Sequence[str]) -> None:
    """Runs the command line: the settings as JSON, and a file for the results. Prints a line when LoadGen begins."""
    parser = argparse.ArgumentParser(prog="loadgen_client", description=__doc__)
    parser.add_argument("settings", help="fields of LoadGenSettings, as JSON")
    parser.add_argument("results", type=Path, help="gets the results, as JSON")
    options = parser.parse_args(argv)
    options.results.write_text(json.dumps(drive(LoadGenSettings(**json.loads(options.settings)))))


if __name__ == "__main__":
    main(sys.argv[1:])
