# SPDX-License-Identifier: Apache-2.0
"""Compares ``torch.distributed.all_to_all_single`` on GPUs over Headway and NCCL, in turns in the same processes.

Systems:
    headway, nccl         ordinary tensors.
    headway_empty         the output is memory of ``headway.empty()``, into which peers write directly.
    headway_slots         slot tensors (``headway.slots``): the receive buffer is the output, without a local copy.
    nccl_copy_engines     NCCL on symmetric memory: copy engines move the bytes instead of multiprocessors.

With split ``skew1.5`` rank 0 receives 1.5 times the mean over ranks. The host waits for ``each`` call, or only for the
``last`` of several calls. ``host_s`` is the host's time per call.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.plots import Panel, split_panels
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from benchmarks.harness.torch_exchanges import add_exchange_options, measure_exchanges
from dlrm_examples.support.text_table import format_bytes, format_ratio, format_table, format_time

DESCRIPTION = "all_to_all_single of CUDA tensors against NCCL"

_HEADWAY = "headway"
_NCCL = "nccl"
#: Systems that exist only between GPUs of one host. NCCL's copy engines need even splits, and ``--against none`` leaves
#: them out.
_OF_ONE_HOST = ("headway_empty", "headway_slots", "nccl_copy_engines")
#: Transports between hosts, by their names in ``Options(transport=)``.
TRANSPORTS = ("tcp", "shm")


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("cuda_all_to_all", DESCRIPTION, ranks=(2,), sizes="64,4K,64K,1M,16M,128M,512M",
                         against=_NCCL, rounds=5)  # fmt: skip
    add_exchange_options(parser, splits=("even", "zipf", "skew1.5"))
    parser.add_argument("--hosts", type=whole_number(1), default=1, metavar="N",
                        help="let the ranks of this host act as if they were on so many "
                             "(default: %(default)s)")  # fmt: skip
    parser.add_argument("--transport", choices=TRANSPORTS,
                        help="between these hosts: sockets, or shared memory for the messages of both systems "
                             f"(default: {TRANSPORTS[0]})")  # fmt: skip
    options = parser.parse_args(argv)
    if options.hosts == 1 and options.transport is not None:
        parser.error("--transport is between hosts: give --hosts too")
    return measure_and_report(
        "cuda_all_to_all", parser, options, measure=measure, format_points=format_points, panels=_panels
    )


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures all points, combined over rounds."""
    systems = [_HEADWAY, *_OF_ONE_HOST] if options.hosts == 1 else [_HEADWAY]
    if options.against == "none":
        systems = [each for each in systems if not each.startswith(_NCCL)]
    return measure_exchanges(
        "benchmarks.torch_ranks.cuda_all_to_all_rank",
        options,
        systems=systems,
        reference=_NCCL,
        hosts=options.hosts,
        transport=options.transport or TRANSPORTS[0],
    )


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each number of ranks, split, size and way of waiting."""
    others = {point.key: point for point in points if point.system == _NCCL}
    rows = []
    for point in points:
        if point.system != _NCCL:
            other = others.get(point.key)
            rows.append(
                (
                    point.system,
                    _describe(point),
                    format_bytes(point.params["bytes_per_rank"]),
                    format_time(point.median_s),
                    format_time(other.median_s if other else None),
                    format_ratio(point.ratio, point.extra.get("ratio_low"), point.extra.get("ratio_high")),
                    format_time(point.extra["host_s"]),
                )
            )
    return format_table(("", "", "per rank", "time", "nccl", "faster (rounds)", "host's part"), rows)


def _describe(point: Point) -> str:
    # Result files keep an older name: "wire" is the transport.
    hosts = "" if point.params["hosts"] == 1 else f"{point.params['hosts']} hosts over {point.params['wire']}, "
    return "{ranks} ranks, {}{split}, waits for {wait}".format(hosts, **point.params)


def _panels(points: Sequence[Point]) -> list[Panel]:
    chosen = [point for point in points if point.params["wait"] == "last"]
    return split_panels(chosen, "ranks", "split", title="CUDA, {ranks} ranks, {split}", x="bytes_per_rank")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
