# SPDX-License-Identifier: Apache-2.0
"""Command-line options, and the systems that they select."""

from __future__ import annotations

import argparse
from pathlib import Path

from headway.cli.one_line_parser import OneLineParser

from dlrm_examples.streaming_ctr.comparison import compared_systems
from dlrm_examples.streaming_ctr.experiment import Restart, Servers, System
from dlrm_examples.streaming_ctr.tables import TableLimits
from dlrm_examples.support.command_line import at_least, program_name
from dlrm_examples.support.data.log import Log

_MODULE = "dlrm_examples.streaming_ctr"
_OF_DYNAMIC = ("ranks", "restart_at", "restart_ranks", "max_rows", "eviction", "min_count", "hot_count", "mode",
               "staleness", "servers", "exact_order", "compress", "combine", "sync_rows")  # fmt: skip
"""Options that only dynamic tables have."""
_OF_SERVERS = ("staleness", "servers", "exact_order", "compress", "combine", "sync_rows")
"""Options of modes with parameter servers."""


def systems_of(options: argparse.Namespace, log: Log, *, started_ranks: int | None) -> list[System]:
    """Systems to train, in the order of the report.

    Args:
        options: parsed options of ``make_parser()``.
        log: training data.
        started_ranks: number of ranks started by a launcher such as torchrun; None: the command may start ranks itself.
    Raises:
        ValueError: options contradict each other.
    """
    given = [name for name in _OF_DYNAMIC if getattr(options, name) is not None]
    kinds = list(dict.fromkeys(options.tables or ["dynamic"]))
    if options.compare:
        _expect(not given and not options.tables, "--compare chooses tables, ranks and limits itself")
        _expect(started_ranks is None, "--compare starts ranks itself: leave torchrun out")
        return compared_systems(table_sizes={table: len(ids) for table, ids in log.table_ids().items()})
    _expect("dynamic" in kinds or not given, f"{_spelled(given)} needs --tables dynamic")
    _expect(
        (options.restart_at is None) == (options.restart_ranks is None), "--restart-at and --restart-ranks go together"
    )
    modes = list(dict.fromkeys(options.mode or ["local"]))
    of_servers = [name for name in _OF_SERVERS if getattr(options, name) is not None]
    _expect(modes != ["local"] or not of_servers, f"{_spelled(of_servers)} needs --mode sync, hybrid or async")
    _expect(modes == ["hybrid"] or "none" not in (options.combine or ()), "--combine none needs --mode hybrid alone")
    _expect("hybrid" in modes or options.sync_rows is None, "--sync-rows needs --mode hybrid")
    _expect(options.max_rows is None or options.sync_rows is None, "--sync-rows contradicts --max-rows")
    _expect("async" not in modes or not options.exact_order, "--exact-order contradicts --mode async")
    _expect(modes == ["local"] or options.restart_at is None, "--restart-at needs --mode local")
    if started_ranks is not None:
        _expect(kinds == ["dynamic"], "static tables are of one rank: leave torchrun out")
        _expect(options.restart_at is None, "--restart-at starts ranks itself: leave torchrun out")
        _expect(options.ranks in (None, started_ranks), f"--ranks {options.ranks}, but {started_ranks} were started")
    systems = []
    for kind in kinds:
        if kind == "static":
            systems.append(System(kind="static"))
        else:
            sizes = {table: len(ids) for table, ids in log.table_ids().items()} if options.sync_rows else None
            systems += [
                _dynamic_system(
                    options,
                    mode,
                    given,
                    started_ranks,
                    compresses=word == "on",
                    combine=combine,
                    sync_rows=sync_rows,
                    table_sizes=sizes if sync_rows else None,
                )
                for mode in modes
                for word in dict.fromkeys(options.compress or ["off"])
                for combine in dict.fromkeys(options.combine or ["sum"])
                for sync_rows in dict.fromkeys((options.sync_rows or [0]) if mode == "hybrid" else [0])
            ]
    return systems


def _dynamic_system(
    options: argparse.Namespace,
    mode: str,
    given: list[str],
    started_ranks: int | None,
    *,
    compresses: bool,
    combine: str,
    sync_rows: int,
    table_sizes: dict[str, int] | None,
) -> System:
    servers = None
    if mode != "local":
        servers = Servers(
            mode="sync" if mode == "sync" else "hybrid" if mode == "hybrid" else "async",
            staleness=0 if mode == "sync" else 4 if options.staleness is None else options.staleness,
            count=2 if options.servers is None else options.servers,
            is_exact=bool(options.exact_order),
            compresses=compresses,
            combine="sum" if combine == "sum" else "none",
            sync_rows=sync_rows,
        )
    chosen = {name: getattr(options, name) for name in given}
    limits = {name: chosen[name] for name in ("max_rows", "eviction", "min_count", "hot_count") if name in chosen}
    return System(
        kind="dynamic",
        limits=TableLimits(table_sizes=table_sizes, **limits),
        num_ranks=started_ranks or chosen.get("ranks", 1),
        restart=Restart(at=options.restart_at, num_ranks=options.restart_ranks) if "restart_at" in chosen else None,
        servers=servers,
    )


def _spelled(names: list[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Creates the parser of the command."""
    parser = OneLineParser(prog=program_name(_MODULE), description=description)
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="PATH",
        help="a directory of KuaiRand, MovieLens' ratings.csv, or a file or directory in Criteo's format; .gz, too",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="gets one JSON line a run")
    _add_training(parser)
    _add_systems(parser)
    return parser


def _add_training(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("training")
    group.add_argument("--seeds", type=at_least(1), default=1, help="runs of each system (default: %(default)s)")
    group.add_argument("--epochs", type=at_least(1), default=1, help="passes (default: %(default)s)")
    group.add_argument(
        "--train-examples",
        type=at_least(1),
        metavar="N",
        help="train on the first N (default: all but the last day of KuaiRand, or the last fifth of other logs)",
    )
    group.add_argument(
        "--history",
        type=at_least(1),
        default=50,
        metavar="N",
        help="longest list of recent items; Criteo's logs have none (default: %(default)s)",
    )
    group.add_argument("--dim", type=at_least(1), default=16, help="columns of an embedding (default: %(default)s)")
    group.add_argument(
        "--batch-size",
        type=at_least(1),
        default=256,
        metavar="N",
        help="examples of a step, all ranks together (default: %(default)s)",
    )
    group.add_argument("--table-lr", type=float, default=0.05, metavar="RATE", help="(default: %(default)s)")
    group.add_argument("--dense-lr", type=float, default=0.002, metavar="RATE", help="(default: %(default)s)")


def _add_systems(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("tables")
    group.add_argument(
        "--compare",
        action="store_true",
        help="static tables, and dynamic ones: without limits, restarted from 2 ranks on 3, with room for 60%% and "
        "80%% of the ids, both together, and in bfloat16 below 8 look-ups",
    )
    group.add_argument(
        "--tables",
        nargs="+",
        choices=("static", "dynamic"),
        help="static: a row for every id of the log from the start, on one rank; dynamic: headway.embedding, with all "
        "options that follow (default: dynamic)",
    )
    group.add_argument(
        "--ranks",
        type=at_least(1),
        metavar="N",
        help="processes that share batches and tables (default: 1; under torchrun, those that it started)",
    )
    group.add_argument(
        "--mode",
        nargs="+",
        choices=("local", "sync", "hybrid", "async"),
        help="where rows are: on the ranks (local), or on parameter servers, with lookups that wait for all updates "
        "(sync) or may miss some (hybrid), or with the dense model and ranks that do not wait for each other (async); "
        "each mode is trained (default: local)",
    )
    group.add_argument(
        "--staleness", type=at_least(0), metavar="K", help="steps whose updates lookups may miss (default: 4)"
    )
    group.add_argument("--servers", type=at_least(1), metavar="N", help="parameter servers (default: 2)")
    group.add_argument(
        "--exact-order",
        action="store_true",
        default=None,
        help="every lookup misses the updates of the last --staleness steps, and no others",
    )
    group.add_argument(
        "--compress",
        nargs="+",
        choices=("off", "on"),
        help="compress messages with ids, embeddings and gradients; each choice is trained (default: off)",
    )
    group.add_argument(
        "--combine",
        nargs="+",
        choices=("sum", "none"),
        help="add the gradients of all ranks for a row before its update, or update it by each; each choice is trained "
        "(default: sum)",
    )
    group.add_argument(
        "--sync-rows",
        nargs="+",
        type=at_least(0),
        metavar="N",
        help="with --mode hybrid, tables of up to N ids are in step on the ranks; each N is trained (default: 0, none)",
    )
    group.add_argument(
        "--restart-at",
        type=float,
        metavar="SHARE",
        help="after this share of the training all ranks save and end, and --restart-ranks others load and go on",
    )
    group.add_argument("--restart-ranks", type=at_least(1), metavar="M", help="ranks after --restart-at")
    group.add_argument(
        "--max-rows",
        type=at_least(1),
        metavar="ROWS",
        help="of all tables together, and a tenth more on several ranks (default: no limit)",
    )
    group.add_argument(
        "--eviction",
        choices=("lru", "lfu"),
        help="which rows make room under --max-rows: those looked up longest ago or most rarely (default: none, and "
        "new ids get no row)",
    )
    group.add_argument(
        "--min-count", type=at_least(1), metavar="N", help="look-ups after which an id gets a row (default: 1)"
    )
    group.add_argument(
        "--hot-count", type=at_least(0), metavar="N", help="rows of fewer look-ups are in bfloat16 (default: 0)"
    )
    group.add_argument(
        "--timeout",
        type=at_least(1),
        default=1800,
        metavar="S",
        help="for the ranks of all seeds of a system, up to a restart or the end (default: %(default)s s)",
    )
