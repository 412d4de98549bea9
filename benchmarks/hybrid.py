# SPDX-License-Identifier: Apache-2.0
"""Steps of hybrid training beside synchronous steps, over a network with a delay and a rate, and beside peers.

One host has the parameter servers, another one the dense workers. Hosts are network namespaces
(``harness/emulated_network.py``). Without ``--delay-ms`` and ``--rate-mb`` all is on the loopback of this host.
Systems: ``sync`` waits for the updates of all steps before, and ``hybrid_T`` lets lookups miss those of T steps.
``async_T`` has the dense model on the servers, too; it is left out beside peers. ``dense_alone`` has no tables: its
embeddings are drawn. A dense worker sleeps ``--compute-ms`` in each step, which stands for the compute of a device.
``--hidden`` makes the dense model as large as one likes, for compute of processors.

With several ``--ranks`` the dense workers are more, and with ``--scale-servers`` servers as many. ``of_first`` is then
the rate over that of the first of these numbers.

The ratio is the speed over ``sync``, and ``of_async`` that over ``async_T``. No hybrid step can be shorter than
``bound_s``: the longer of the dense step alone and the bytes of a step over the rate, in the direction that has more.

``--torchrec`` adds TorchRec over Gloo with its sparse pipeline on the CPU (``hybrid_peers/torchrec_rank.py``), its
tables sharded by rows or placed whole. Then each host has one trainer of each system, and one of Headway's servers. So
both have the same hosts, half of the rows or more are elsewhere, and dense gradients cross the network.

``--persia-python`` adds Persia (``hybrid_peers/persia_job.py``), with at most T batches in flight (``persia_T``) and
without a limit (``persia``). Then both have one loader, one embedding worker, one server and one dense worker.

Systems take turns ``--turns`` times. Ratios are the medians of those within a turn.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.emulated_network import Conditions, EmulatedNetwork, NotPermittedError, emulated_network
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.hybrid_roles import Hosts, embedding_worker, parameter_servers, role_environment, run_trainers
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from benchmarks.hybrid_peers.persia_job import find_persia, run_persia
from dlrm_examples.support.text_table import format_bytes, format_ratio, format_table, format_time

DESCRIPTION = "steps of hybrid training beside synchronous ones, over a network with a delay and a rate"

SYNC, DENSE_ALONE, HYBRID, ASYNC = "sync", "dense_alone", "hybrid", "async"
_SERVER_HOST, _WORKER_HOST = 0, 1
_FRAME_BYTES = 60_000
_SHARDINGS = ("row_wise", "table_wise")
_SETTINGS = ("batch", "features", "dim", "ids", "compute_ms", "hidden", "steps", "rounds")
_PARAMS = ("delay_ms", "rate_mb", "compute_ms", "hidden", "batch", "features", "dim", "ids")


@dataclass(frozen=True, kw_only=True)
class System:
    """A system, and the steps whose updates its lookups may miss.

    Attributes:
        mode: of Headway's job.
        sharding: of TorchRec's tables; empty for other systems.
        is_persia: Persia; a staleness of 0 means no limit of its batches in flight.
    """

    name: str
    mode: str = SYNC
    staleness: int = 0
    sharding: str = ""
    is_persia: bool = False

    @property
    def is_hybrid(self) -> bool:
        """Is it Headway with a synchronous dense model, and lookups that miss updates?"""
        return not self.is_peer and self.mode == HYBRID

    @property
    def is_peer(self) -> bool:
        """Is it another library?"""
        return self.is_persia or bool(self.sharding)


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("hybrid", DESCRIPTION, ranks=(1,), rounds=5)
    for name, default, text in (
        ("--batch", 1024, "samples of a dense worker and step"),
        ("--features", 8, "features of one id"),
        ("--dim", 64, "floats of an embedding"),
        ("--ids", 10_000_000, "ids of a feature, with a popularity by Zipf's law of exponent 1.2"),
        ("--steps", 40, "steps of a round"),
        ("--turns", 1, "times that the systems take turns, each with all rounds"),
        ("--time-limit", 300, "seconds of a system"),
    ):
        parser.add_argument(name, type=whole_number(1), default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument(
        "--servers", type=whole_number(1), help="parameter servers (default: 1; with --torchrec --ranks)"
    )
    parser.add_argument("--scale-servers", action="store_true", help="as many parameter servers as dense workers")
    parser.add_argument(
        "--hidden", type=whole_number(1), nargs="+", default=[64], metavar="N", help="hidden widths (default: 64)"
    )
    parser.add_argument("--staleness", type=whole_number(1), nargs="+", default=[4], help="steps (default: 4)")
    for name, text in (
        ("--compute-ms", "that a dense worker sleeps in a step"),
        ("--delay-ms", "delay of each direction"),
        ("--rate-mb", "MB a second that a host sends or receives; 0: no limit"),
    ):
        parser.add_argument(name, type=float, default=0.0, help=f"{text} (default: %(default)s)")
    parser.add_argument("--torchrec", action="store_true", help="measure TorchRec, too, with a trainer on each host")
    parser.add_argument(
        "--persia-python",
        type=Path,
        metavar="PYTHON",
        help="measure Persia, too, with this interpreter (docs/hybrid.md)",
    )
    return measure_and_report("hybrid", parser, parser.parse_args(argv), measure=measure, format_points=format_points)


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures a point for each number of dense workers (``--ranks``) and system.

    Raises:
        BenchmarkError: options exclude each other, a peer is missing, the network cannot be made, or a role failed.
    """
    _expect_options(options)
    persia = find_persia(options.persia_python) if options.persia_python else None
    systems = [
        System(name=DENSE_ALONE),
        System(name=SYNC),
        *(System(name=f"{HYBRID}_{each}", mode=HYBRID, staleness=each) for each in options.staleness),
    ]
    if not options.torchrec and not persia:
        systems += [System(name=f"{ASYNC}_{each}", mode=ASYNC, staleness=each) for each in options.staleness]
    if options.torchrec:
        systems += [System(name=f"torchrec_{each}", sharding=each) for each in _SHARDINGS]
    if persia:
        systems += [System(name=f"persia_{each}", staleness=each, is_persia=True) for each in options.staleness]
        systems += [System(name="persia", is_persia=True)]
    points = []
    for num_workers in options.ranks:
        found: dict[str, list[dict[str, Any]]] = {system.name: [] for system in systems}
        for turn in range(options.turns):
            for system in systems if turn % 2 == 0 else reversed(systems):
                found[system.name].append(_run(options, num_workers, system, persia))
        points += _points(options, num_workers, systems, found)
    compare_with_first(points, num_systems=len(systems))
    return points


def compare_with_first(points: Sequence[Point], *, num_systems: int) -> None:
    """Adds the rate over that of the same system with the first number of workers, whose points come first."""
    first_rate = {point.system: point.rate for point in points[:num_systems]}
    for point in points[num_systems:]:
        point.extra["of_first"] = (point.rate or 0) / (first_rate[point.system] or 1)


def _expect_options(options: argparse.Namespace) -> None:
    if options.torchrec and options.persia_python:
        raise BenchmarkError("--torchrec and --persia-python place roles differently: measure one at a time")
    if options.scale_servers and options.servers is not None:
        raise BenchmarkError("--scale-servers chooses the number of servers: leave --servers out")
    if options.torchrec:
        if min(options.ranks) < 2:
            raise BenchmarkError("--torchrec shards tables over trainers: --ranks must be 2 or more")
        if options.servers is not None:
            raise BenchmarkError("--torchrec puts a server on each trainer's host: leave --servers out")
        if find_spec("torchrec") is None or find_spec("fbgemm_gpu") is None:
            raise BenchmarkError("--torchrec needs torchrec and fbgemm-gpu-cpu")
        needed = options.features * options.ids * options.dim * 4
        if needed > (available := _available_bytes()):
            raise BenchmarkError(
                f"--torchrec allocates all rows, {format_bytes(needed)}, and {format_bytes(available)} are available: "
                "take fewer --ids"
            )
    if options.persia_python and (
        options.ranks != [1] or options.servers not in (None, 1) or options.delay_ms or options.rate_mb
    ):
        raise BenchmarkError("--persia-python measures one of each role on this host: leave out --ranks, --servers, "
                             "--delay-ms and --rate-mb")  # fmt: skip


def _available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def _run(options: argparse.Namespace, num_workers: int, system: System, persia: Path | None) -> dict[str, Any]:
    """Runs all rounds of a system; returns their seconds (``rounds_s``) and the keys of a worker's batch."""
    settings = {
        "system": system.name, "staleness": system.staleness, "sharding": system.sharding,
        "timeout_s": options.time_limit, "loader": persia is not None,
        **{name: getattr(options, name) for name in _SETTINGS},
    }  # fmt: skip
    if system.is_persia:
        assert persia is not None
        return run_persia(options.persia_python, persia, settings, time_limit_s=options.time_limit)
    with (
        _hosts(options, num_workers) as hosts,
        tempfile.TemporaryDirectory() as folder,
        contextlib.ExitStack() as stack,
    ):
        environ = role_environment()
        if system.sharding:
            run = partial(run_trainers, "benchmarks.hybrid_peers.torchrec_rank")
            return run(settings, hosts, environ | {"PYTHONWARNINGS": "ignore"}, options.time_limit)
        servers = stack.enter_context(parameter_servers(hosts, environ))
        workers = [stack.enter_context(embedding_worker(servers, environ))] if settings["loader"] else []
        config = Path(folder) / "hybrid.toml"
        config.write_text(
            f'mode = "{system.mode}"\nstaleness = {system.staleness}\n'
            f"[servers]\naddresses = [{_listed(servers)}]\n[workers]\naddresses = [{_listed(workers)}]\n"
        )
        run = partial(run_trainers, "benchmarks.torch_ranks.hybrid_rank")
        return run(settings | {"config": str(config)}, hosts, environ, options.time_limit)


def _listed(addresses: Sequence[str]) -> str:
    return ", ".join(f'"{address}"' for address in addresses)


@contextlib.contextmanager
def _hosts(options: argparse.Namespace, num_workers: int) -> Iterator[Hosts]:
    if options.torchrec:
        each = tuple(range(num_workers))
        of_servers, of_trainers = each, each
    else:
        of_servers = (_SERVER_HOST,) * _num_servers(options, num_workers)
        of_trainers = (_WORKER_HOST,) * num_workers
    with _network(options, num_workers if options.torchrec else 2) as network:
        yield Hosts(network=network, of_servers=of_servers, of_trainers=of_trainers)


def _num_servers(options: argparse.Namespace, num_workers: int) -> int:
    return num_workers if options.torchrec or options.scale_servers else options.servers or 1


@contextlib.contextmanager
def _network(options: argparse.Namespace, num_hosts: int) -> Iterator[EmulatedNetwork | None]:
    if not options.delay_ms and not options.rate_mb:
        yield None
        return
    conditions = Conditions(delay_ms=options.delay_ms, rate=options.rate_mb * 1e6 or None)
    try:
        with emulated_network(num_hosts, conditions, frame_bytes=_FRAME_BYTES) as network:
            yield network
    except NotPermittedError as error:
        raise BenchmarkError(f"--delay-ms and --rate-mb need network namespaces: {error}") from None


def _points(
    options: argparse.Namespace,
    num_workers: int,
    systems: Sequence[System],
    found: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[Point]:
    """Makes the points of one number of workers. ``found``: what each turn of a system returned."""

    def step_s(name: str) -> list[float]:
        return [statistics.median(turn["rounds_s"]) / options.steps for turn in found[name]]

    def speed_over(name: str, other: str) -> float:
        """Median over turns of the speed of a system over that of another one."""
        return statistics.median(theirs / ours for theirs, ours in zip(step_s(other), step_s(name), strict=True))

    num_servers = _num_servers(options, num_workers)
    peers = [system.name for system in systems if system.is_peer]
    points = []
    for system in systems:
        steps_s = sorted(each / options.steps for turn in found[system.name] for each in turn["rounds_s"])
        step_bytes = num_workers * found[system.name][0]["keys"] * options.dim * 4
        extra = {"step_bytes": step_bytes, "steps": options.steps, "turns": options.turns}
        if system.is_hybrid:
            bytes_s = step_bytes / (options.rate_mb * 1e6) if options.rate_mb else 0.0
            extra["bound_s"] = max(statistics.median(step_s(DENSE_ALONE)), bytes_s)
            if (asynchronous := f"{ASYNC}_{system.staleness}") in found:
                extra["of_async"] = speed_over(system.name, asynchronous)
            extra |= {"over": {peer: speed_over(system.name, peer) for peer in peers}} if peers else {}
        if options.torchrec or options.persia_python:
            extra["layout"] = "a trainer and a server on each host" if options.torchrec else "one of each role"
        params = {
            "workers": num_workers, "servers": num_servers, "staleness": system.staleness,
            **{name: getattr(options, name) for name in _PARAMS},
        }  # fmt: skip
        points.append(
            Point(
                name="hybrid", params=params, system=system.name, median_s=statistics.median(steps_s), p5_s=steps_s[0],
                p95_s=steps_s[-1], samples=len(steps_s),
                rate=num_workers * options.batch / statistics.median(steps_s), unit="samples/s",
                ratio=None if system.name in (SYNC, DENSE_ALONE) else speed_over(system.name, SYNC), extra=extra,
            )
        )  # fmt: skip
    return points


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each number of dense workers and system."""
    peers = list(dict.fromkeys(peer for point in points for peer in point.extra.get("over", {})))
    rows = []
    for point in points:
        bound_s = point.extra.get("bound_s")
        over = point.extra.get("over", {})
        rows.append(
            (
                str(point.params["workers"]),
                point.system,
                format_time(point.median_s),
                f"{(point.rate or 0):.0f}",
                format_ratio(point.ratio, None, None),
                format_ratio(point.extra.get("of_async"), None, None),
                format_ratio(point.extra.get("of_first"), None, None),
                f"{(point.median_s or 0) / bound_s:.2f}" if bound_s else "",
                *(f"{over[peer]:.2f}" if peer in over else "" for peer in peers),
            )
        )
    titles = ("workers", "system", "a step", "samples/s", "of sync", "of async", "of first", "over its bound")
    return format_table((*titles, *(f"speed over {peer}" for peer in peers)), rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
