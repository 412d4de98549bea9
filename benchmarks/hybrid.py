# SPDX-License-Identifier: Apache-2.0
"""Steps of hybrid training beside synchronous steps, over a network with a delay and a rate.

One host has the parameter servers, another one the dense workers. Hosts are network namespaces
(``harness/emulated_network.py``). Without ``--delay-ms`` and ``--rate-mb`` all is on the loopback of this host.
Systems: ``sync`` waits for the updates of all steps before, and ``hybrid_T`` lets lookups miss those of T steps.
``async_T`` has the dense model on the servers, too. ``dense_alone`` has no tables: its embeddings are drawn. A dense
worker sleeps ``--compute-ms`` in each step, which stands for the compute of a device.

The ratio is the speed over ``sync``, and ``of_async`` that over ``async_T``. No hybrid step can be shorter than
``bound_s``: the longer of the dense step alone and the bytes of a step over the rate, in the direction that has more.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from headway.cli.built_programs import program_path

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.emulated_network import Conditions, EmulatedNetwork, NotPermittedError, emulated_network
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from dlrm_examples.support.text_table import format_ratio, format_table, format_time

DESCRIPTION = "steps of hybrid training beside synchronous ones, over a network with a delay and a rate"

SYNC, DENSE_ALONE, HYBRID, ASYNC = "sync", "dense_alone", "hybrid", "async"
_SERVER_HOST, _WORKER_HOST = 0, 1
_FRAME_BYTES = 60_000
_START_S = 60.0
_PARAMS = ("workers", "servers", "staleness", "delay_ms", "rate_mb", "compute_ms", "batch", "features", "dim", "ids")


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("hybrid", DESCRIPTION, ranks=(1,), rounds=5)
    for name, default, text in (
        ("--servers", 1, "parameter servers"),
        ("--batch", 1024, "samples of a dense worker and step"),
        ("--features", 8, "features of one id"),
        ("--dim", 64, "floats of an embedding"),
        ("--ids", 10_000_000, "ids of a feature, with a popularity by Zipf's law of exponent 1.2"),
        ("--steps", 40, "steps of a round"),
        ("--time-limit", 300, "seconds of a system"),
    ):
        parser.add_argument(name, type=whole_number(1), default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument("--staleness", type=whole_number(1), nargs="+", default=[4], help="steps (default: 4)")
    for name, text in (
        ("--compute-ms", "that a dense worker sleeps in a step"),
        ("--delay-ms", "delay of each direction"),
        ("--rate-mb", "MB a second that a host sends or receives; 0: no limit"),
    ):
        parser.add_argument(name, type=float, default=0.0, help=f"{text} (default: %(default)s)")
    return measure_and_report("hybrid", parser, parser.parse_args(argv), measure=measure, format_points=format_points)


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures a point for each number of dense workers (``--ranks``) and system.

    Raises:
        BenchmarkError: the network cannot be made, or a role failed.
    """
    points: list[Point] = []
    for num_workers in options.ranks:
        systems = {DENSE_ALONE: 0, SYNC: 0}
        for each in options.staleness:
            systems |= {f"{HYBRID}_{each}": each, f"{ASYNC}_{each}": each}
        of_workers = [_measure_system(options, num_workers, *each) for each in systems.items()]
        sync_s, dense_s = of_workers[1].median_s or 0.0, of_workers[0].median_s or 0.0
        async_s = {point.params["staleness"]: point.median_s or 0.0 for point in of_workers if _is(point, ASYNC)}
        for point in of_workers:
            step_s = point.median_s or 1.0
            bytes_s = point.extra["step_bytes"] / (options.rate_mb * 1e6) if options.rate_mb else 0.0
            more = {}
            if _is(point, HYBRID):
                more = {"bound_s": max(dense_s, bytes_s), "of_async": async_s[point.params["staleness"]] / step_s}
            ratio = None if point.system in (SYNC, DENSE_ALONE) else sync_s / step_s
            points.append(replace(point, ratio=ratio, extra={**point.extra, **more}))
    return points


def _is(point: Point, mode: str) -> bool:
    return point.system.startswith(f"{mode}_")


def _measure_system(options: argparse.Namespace, num_workers: int, system: str, staleness: int) -> Point:
    with _network(options) as network, tempfile.TemporaryDirectory() as folder:
        host = network.addresses[_SERVER_HOST][0] if network else "127.0.0.1"
        environ = {**os.environ, "HEADWAY_GROUP_SECRET": secrets.token_hex(16), "GLOO_SOCKET_IFNAME": "lo",
                   "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[1]), *sys.path])}  # fmt: skip
        with _servers(options, network, host, environ) as addresses:
            config = Path(folder) / "hybrid.toml"
            mode = "sync" if staleness == 0 else system.split("_")[0]
            listed = ", ".join(f'"{address}"' for address in addresses)
            config.write_text(f'mode = "{mode}"\nstaleness = {staleness}\n\n[servers]\naddresses = [{listed}]\n')
            settings = {
                "system": system, "config": str(config), "timeout_s": options.time_limit,
                **{name: getattr(options, name) for name in ("batch", "features", "dim", "ids", "compute_ms", "steps",
                                                             "rounds")},
            }  # fmt: skip
            found = _run_workers(settings, num_workers, network, environ, options.time_limit)
    steps_s = sorted(each / options.steps for each in found["rounds_s"])
    params = {name: getattr(options, name, None) for name in _PARAMS} | {"workers": num_workers, "staleness": staleness}
    return Point(
        name="hybrid", params=params, system=system, median_s=statistics.median(steps_s), p5_s=steps_s[0],
        p95_s=steps_s[-1], samples=len(steps_s),
        rate=num_workers * options.batch / statistics.median(steps_s), unit="samples/s",
        extra={"step_bytes": num_workers * found["keys"] * options.dim * 4, "steps": options.steps},
    )  # fmt: skip


@contextlib.contextmanager
def _network(options: argparse.Namespace) -> Iterator[EmulatedNetwork | None]:
    if not options.delay_ms and not options.rate_mb:
        yield None
        return
    conditions = Conditions(delay_ms=options.delay_ms, rate=options.rate_mb * 1e6 or None)
    try:
        with emulated_network(2, conditions, frame_bytes=_FRAME_BYTES) as network:
            yield network
    except NotPermittedError as error:
        raise BenchmarkError(f"--delay-ms and --rate-mb need network namespaces: {error}") from None


def _on(network: EmulatedNetwork | None, host: int, command: list[str]) -> list[str]:
    return network.command_in(host, command) if network else command


@contextlib.contextmanager
def _servers(
    options: argparse.Namespace, network: EmulatedNetwork | None, host: str, environ: dict[str, str]
) -> Iterator[list[str]]:
    command = [str(program_path("headway-ps")), "--address", f"{host}:0"]
    servers: list[subprocess.Popen[str]] = []
    try:
        addresses = []
        for _ in range(options.servers):
            server = subprocess.Popen(
                _on(network, _SERVER_HOST, command), stdout=subprocess.PIPE, text=True, env=environ
            )
            servers.append(server)
            assert server.stdout is not None
            line = server.stdout.readline()
            if not line.startswith("listening at "):
                raise BenchmarkError(f"a parameter server did not start: {line.strip()}")
            addresses.append(line.removeprefix("listening at ").strip())
            # A pipe that nobody reads would block the server one day.
            threading.Thread(target=server.stdout.read, daemon=True).start()
        yield addresses
    finally:
        for server in servers:
            server.terminate()
            server.wait(timeout=_START_S)


def _run_workers(
    settings: dict[str, object],
    num_workers: int,
    network: EmulatedNetwork | None,
    environ: dict[str, str],
    time_limit_s: float,
) -> dict[str, object]:
    """Runs the dense workers to their end; returns what rank 0 printed."""
    command = [sys.executable, "-m", "benchmarks.torch_ranks.hybrid_rank", json.dumps(settings)]
    port = str(20_000 + secrets.randbelow(20_000))
    processes = [
        subprocess.Popen(
            _on(network, _WORKER_HOST, command), stdout=subprocess.PIPE, text=True,
            env={**environ, "RANK": str(rank), "WORLD_SIZE": str(num_workers), "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": port},
        )
        for rank in range(num_workers)
    ]  # fmt: skip
    ends = time.monotonic() + time_limit_s
    try:
        outputs = [process.communicate(timeout=max(ends - time.monotonic(), 0.1))[0] for process in processes]
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"the dense workers did not end within {time_limit_s:.0f} s") from None
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for rank, process in enumerate(processes):
        if process.returncode != 0:
            raise BenchmarkError(f"dense worker {rank} failed with status {process.returncode}")
    found: dict[str, object] = json.loads(outputs[0].splitlines()[-1])
    return found


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each number of dense workers and system."""
    rows = []
    for point in points:
        bound_s = point.extra.get("bound_s")
        rows.append(
            (
                str(point.params["workers"]),
                point.system,
                format_time(point.median_s),
                f"{(point.rate or 0):.0f}",
                format_ratio(point.ratio, None, None),
                format_ratio(point.extra.get("of_async"), None, None),
                f"{(point.median_s or 0) / bound_s:.2f}" if bound_s else "",
            )
        )
    return format_table(("workers", "system", "a step", "samples/s", "of sync", "of async", "over its bound"), rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
