# SPDX-License-Identifier: Apache-2.0
"""The commands ``headway serve``, which starts the ranks that serve a package, and ``headway load``.

Idea: the program ``headway_serve`` (``serving/front/``) is one rank. On one host this command starts all of them,
passes signals on, and starts a rank again that was lost. Under torchrun, mpirun or Slurm it becomes one rank.
``ServingRanks`` has the processes.
"""

from __future__ import annotations

import os
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from headway.cli.built_programs import has_program, program_path
from headway.cli.one_line_parser import OneLineParser
from headway.cli.serving_ranks import ServingRanks
from headway.comm.launchers import adopt_launcher_environment

#: Options of the program that this command passes on, with the word for their value and their help.
_PASSED_ON = {
    "--name": ("NAME", "of the model in requests (default: model)"),
    "--max-rows": ("N", "most items of a batch (default: 512)"),
    "--batch-delay": ("US", "longest wait of a request for others of its batch, in microseconds (default: 1000)"),
    "--max-in-flight": ("N", "batches of a rank between their keys and their replies (default: 3)"),
    "--fetch": ("KIND", "how rows come from other ranks: pairwise (default), or ring: all-to-alls with bounded lag"),
    "--max-lag": ("K", "with --fetch ring: batches that a rank may be ahead of the slowest one (default: 2)"),
    "--max-queued-rows": ("N", "items of a rank that may wait; more are refused (default: 65536)"),
    "--max-ids": ("N", "most ids of a feature in a request (default: 262144)"),
    "--model-threads": ("N", "threads of matrix products and attention of a rank (default: 1)"),
    "--tls-certificate": ("FILE", "encrypts connections; in PEM format, as the files of the next options"),
    "--tls-key": ("FILE", "key of the certificate"),
    "--tls-client-ca": ("FILE", "clients need a certificate that one of these has signed"),
    "--trace": ("FILE", "gets the last batches for Perfetto, as FILE.rankR, at the end and on SIGUSR1"),
    "--timeout": ("MS", "time limit of requests without a deadline (default: 10000)"),
    "--key-delay": ("US", "for benchmarks: mean of a random time before the keys of a batch are known"),
}


def load(argv: Sequence[str]) -> int:
    """Becomes the load generator. Returns the exit status if there is none."""
    if not has_program("load", "headway_load"):
        return 1
    os.execv(program_path("headway_load"), ["headway_load", *argv])


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = OneLineParser(prog="headway serve", description="serves a package of headway export over gRPC")
    parser.add_argument("package", type=Path, help="folder that `headway export` has written")
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="processes of this host (default: 1)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8001, help="of rank 0; rank r has the port + r (default: 8001)")
    parser.add_argument(
        "--metrics-port", type=int, metavar="PORT", help="of rank 0 for Prometheus; rank r has the port + r"
    )
    parser.add_argument(
        "--cuda-devices",
        type=int,
        default=1,
        metavar="N",
        help="devices of this host for packages for CUDA; rank r uses device r modulo N (default: 1)",
    )
    parser.add_argument(
        "--drain-to-reload",
        action="store_true",
        help="restart all ranks for a new version, for hosts without memory for two (default: load it beside the old)",
    )
    parser.add_argument("--store", type=Path, help="empty folder that the ranks of all hosts share")
    for option, (metavar, text) in _PASSED_ON.items():
        parser.add_argument(option, metavar=metavar, help=text)
    options = parser.parse_args(argv)
    if options.ranks < 1:
        parser.error(f"--ranks must be from 1, not {options.ranks}")
    if not 0 <= options.port <= 65535 - options.ranks:
        parser.error(f"--port must be a port, not {options.port}")
    if options.cuda_devices < 1:
        parser.error(f"--cuda-devices must be from 1, not {options.cuda_devices}")
    if not has_program("serve", "headway_serve"):
        return 1
    passed_on = []
    for option in _PASSED_ON:
        value = getattr(options, option[2:].replace("-", "_"))
        if value is not None:
            passed_on += [option, value]
    environ = dict(os.environ)
    adopt_launcher_environment(environ)
    if "RANK" in environ and "WORLD_SIZE" in environ:
        if options.store is None and environ["WORLD_SIZE"] != "1":
            parser.error("--store is needed for ranks that another program starts")
        if options.drain_to_reload:
            parser.error("--drain-to-reload needs ranks that headway serve starts itself")
        _become_rank(options, passed_on, environ)
    with tempfile.TemporaryDirectory(prefix="headway_serve_") as folder:

        def command_of(rank: int, package: Path) -> list[str]:
            return _command(options, package, passed_on, rank, options.ranks, folder)

        return ServingRanks(options.ranks, command_of, options.package, drains=options.drain_to_reload).run()


def _command(
    options: Namespace, package: Path, passed_on: Sequence[str], rank: int, size: int, store: str
) -> list[str]:
    port = options.port + rank if options.port else 0
    return [
        str(program_path("headway_serve")),
        *("--package", str(package)),
        *("--rank", str(rank), "--size", str(size)),
        *("--store", str(options.store or store)),
        *("--address", f"{options.host}:{port}"),
        *("--cuda-device", str(rank % options.cuda_devices)),
        *(() if options.metrics_port is None else ("--metrics", f"{options.host}:{options.metrics_port + rank}")),
        *passed_on,
    ]


def _become_rank(options: Namespace, passed_on: Sequence[str], environ: Mapping[str, str]) -> None:
    command = _command(options, options.package, passed_on, int(environ["RANK"]), int(environ["WORLD_SIZE"]), "")
    os.execv(command[0], command)
