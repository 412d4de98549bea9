# SPDX-License-Identifier: Apache-2.0
"""Training steps of a model over id sequences on GPUs: dynamic tables against TorchRec's managed collisions.

Both are TorchRec models, sharded over ranks with one GPU each, under NCCL. ``headway.torchrec`` has a dynamic table (a
hash table that inserts an id at its first lookup), with and without a limit on its rows. TorchRec has a static table
with as many rows behind ``MCHManagedCollisionModule``, which gives one row to each id while rows last; it runs with and
without TorchRec's deduplication. Each rank draws lists of its own. All systems get the same ids, and their dense layers
start with the same weights. Every step brings new ids, so limited tables evict rows and managed collisions reassign
them. Only time is compared, namely that of the slowest rank, because the systems keep rows for different ids.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.gpus import expect_gpu_each
from benchmarks.harness.plots import Panel, split_panels
from benchmarks.harness.points import Point, parse_point
from benchmarks.harness.report import measure_and_report
from benchmarks.harness.sequence_models import HEADWAY, PEERS, TORCHREC, UNLIMITED
from benchmarks.harness.torch_ranks import run_torch_ranks
from dlrm_examples.support.text_table import format_bytes, format_ratio, format_table, format_time

DESCRIPTION = "training steps over sequences of unknown ids on GPUs, against TorchRec's managed collisions"

_SYSTEMS = (HEADWAY, UNLIMITED, *PEERS)  #: UNLIMITED is Headway without a limit on rows. PEERS are TorchRec's.
_TABLE_BYTES = 4 << 30  #: Upper limit for the bytes of a limited table. It may leave the table fewer rows than --slots.
#: Limit for the elements of all embeddings of a step: other libraries' kernels may count in 32 bits.
_MAX_VALUES = (1 << 31) - 1
_WAIT_S = 60  #: Seconds that a rank waits for another one. No step takes nearly as long.
_SETTINGS = ("device", "length", "warm_up", "ids", "exponent", "optimizer", "eviction_interval", "rounds")


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("cuda_sequence_model", DESCRIPTION, ranks=(1,), against=TORCHREC, rounds=12)
    for name, default, text in (
        ("--base-dim", 32, "values of a vector, times each of --factors"),
        ("--batch", 8192, "lists of a rank and step, or fewer, of less than 2^31 values, on several ranks 2^30"),
        ("--length", 128, "ids of a list; TorchRec gives a list to one thread in some kernels"),
        ("--warm-up", 12, "steps before those that are timed; tables with a limit should be full then"),
        ("--ids", 50_000_000, "that may come"),
        ("--slots", 2_000_000, f"rows of tables with a limit, of all ranks, or fewer, of {format_bytes(_TABLE_BYTES)}"),
        ("--eviction-interval", 1, "batches after which managed collisions choose their ids anew"),
        ("--time-limit", 300, "seconds of a run, of one number of ranks and dimension"),
    ):
        parser.add_argument(name, type=whole_number(1), default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument(
        "--factors", type=whole_number(1), nargs="+", default=[1, 8, 64], metavar="N",
        help="of the dimension (default: 1 8 64)",
    )  # fmt: skip
    parser.add_argument("--exponent", type=float, default=1.05, help="of ids' popularity (default: %(default)s)")
    parser.add_argument("--optimizer", choices=("row_wise_adagrad", "adam"), default="row_wise_adagrad",
                        help="of tables (default: %(default)s)")  # fmt: skip
    parser.add_argument("--systems", choices=_SYSTEMS, nargs="+", default=list(_SYSTEMS), help="(default: all)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try it out")
    return measure_and_report(
        "cuda_sequence_model", parser, parser.parse_args(argv), measure=measure, format_points=format_points,
        panels=_panels,
    )  # fmt: skip


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures a point for each number of ranks, dimension and system. A system that fails is reported and left out.

    Raises:
        BenchmarkError: there are fewer GPUs than ranks, or nothing could be measured.
    """
    if options.device == "cuda":
        expect_gpu_each(options.ranks)
    points = []
    for num_ranks, factor in itertools.product(options.ranks, options.factors):
        dim = options.base_dim * factor
        try:
            points += _measure_run(options, num_ranks, dim)
        except BenchmarkError as error:
            print(f"{num_ranks} ranks, dim {dim}, are left out: {error}", file=sys.stderr, flush=True)
    if not points:
        raise BenchmarkError("no system could be measured")
    return points


def _measure_run(options: argparse.Namespace, num_ranks: int, dim: int) -> list[Point]:
    settings = {name: getattr(options, name) for name in _SETTINGS} | {
        "systems": [name for name in options.systems if name not in PEERS or options.against != "none"],
        "dim": dim,
        "factor": dim // options.base_dim,
        "batch": _num_lists(options, dim, num_ranks),
        "slots": min(options.slots, _TABLE_BYTES // (4 * dim)),
        "timeout_s": _WAIT_S,
    }
    lines = run_torch_ranks(
        "benchmarks.torch_ranks.cuda_sequence_model_rank", settings, num_ranks=num_ranks,
        time_limit_s=options.time_limit,
    ).splitlines()  # fmt: skip
    for line in lines:
        if not line.startswith("{"):
            print(line, file=sys.stderr, flush=True)  # Other lines name the systems that are left out.
    return [parse_point(line) for line in lines if line.startswith("{")]


def _num_lists(options: argparse.Namespace, dim: int, num_ranks: int) -> int:
    """Lists per rank and step: as asked for, or fewer, so that other kernels can count the elements in 32 bits."""
    # An owner looks up the ids of all ranks. With the most popular ids it may get nearly twice its share, hence the
    # half.
    most = _MAX_VALUES if num_ranks == 1 else _MAX_VALUES // 2
    return int(min(options.batch, most // (dim * options.length)))


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each dimension and system.

    ``a step`` is device time, ``by the clock`` the host's time until the device is done.
    """
    rows = []
    for point in points:
        low, high = point.extra.get("ratio_low"), point.extra.get("ratio_high")
        rows.append(
            (
                "{ranks} ranks, dim {dim}, {slots} slots".format(**point.params),
                point.system,
                format_time(point.median_s),
                format_time(point.extra["wall_s"]),
                format_time(point.extra["host_s"]),
                f"{(point.rate or 0) / 1e6:.1f}",
                format_ratio(point.ratio, low, high),
            )
        )
    return format_table(("", "system", "a step", "by the clock", "enqueued in", "million ids/s", "faster (95%)"), rows)


def _panels(points: Sequence[Point]) -> list[Panel]:
    title = "a training step, {ranks} ranks"
    return split_panels(points, "ranks", title=title, x="dim", x_label="values of a vector")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
