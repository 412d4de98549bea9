# SPDX-License-Identifier: Apache-2.0
"""Keys and bytes that each parameter server handles, with one feature group whose features have far more lookups.

Everything is counted: nothing is timed and no server is started. Ids are drawn by Zipf's law, and each batch goes
through the deduplication and routing functions that an embedding worker uses. A key costs a server 16 bytes of the
request, and two rows of floats: the embedding and its gradient.

Systems, by where a key's row is:

``buckets``: at the owner of its virtual bucket, as in Headway. A group of features spreads over all servers.
``buckets_no_dedup``: the same, but each lookup is a key of its own. A hash spreads ids, and not one hot id.
``by_table``: a table is on one server, as in table-wise sharding of TorchRec.
``by_group``: a feature group is on one server, as in the first design that the Persia paper describes (section 4.2.3).

``by_table`` and ``by_group`` know the load of each table beforehand: the largest one goes first, to the server that has
the least bytes. That is how TorchRec's greedy partitioner orders estimates. Both remove duplicates, too.

Example: 2 servers, 1,000 keys of group A and 10 of group B. ``by_group`` gives 1,000 and 10: the maximum is 1.98 of the
mean. ``buckets`` gives about 505 each.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from headway.embedding.keys import Deduplicator, Keys, ThreadPool, from_unique, route, table_id_of

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from dlrm_examples.support.data.zipf import draw_zipf
from dlrm_examples.support.text_table import format_table

DESCRIPTION = "load of parameter servers with one hot feature group, counted; times nothing"

BUCKETS, BUCKETS_NO_DEDUP, BY_TABLE, BY_GROUP = SYSTEMS = ("buckets", "buckets_no_dedup", "by_table", "by_group")
KEY_BYTES = 16  # Bytes of a key in a lookup: id, table and count of its duplicates.


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A feature with a table of its own.

    Attributes:
        group: index of its feature group.
        dim: floats of a row.
        lookups: ids of a sample.
    """

    name: str
    group: int
    dim: int
    lookups: int


@dataclass(frozen=True, kw_only=True)
class Load:
    """Keys and bytes of each server, (batches, servers) int64."""

    keys: torch.Tensor
    bytes: torch.Tensor

    def over(self, of_servers: torch.Tensor) -> tuple[float, float]:
        """Returns the maximum over the mean: of the sums over all batches, and of the worst batch."""
        in_all, in_batch = of_servers.sum(0).double(), of_servers.double()
        worst = (in_batch.max(1).values / in_batch.mean(1)).max()
        return float(in_all.max() / in_all.mean()), float(worst)


def make_features(*, groups: int, features: int, dims: Sequence[int], hot: int) -> list[Feature]:
    """Makes ``features`` features in each group, with ``dims`` in turn. Those of group 0 have ``hot`` ids a sample."""
    return [
        Feature(
            name=f"group_{group}_{index}", group=group, dim=dims[index % len(dims)], lookups=hot if not group else 1
        )
        for group in range(groups)
        for index in range(features)
    ]


def draw_batch(
    random: np.random.Generator, features: Sequence[Feature], *, samples: int, num_ids: int, exponent: float
) -> dict[str, torch.Tensor]:
    """Draws the ids of a batch, (samples * lookups,) int64 for each feature."""
    return {
        each.name: torch.from_numpy(
            draw_zipf(random, num_values=num_ids, exponent=exponent, size=samples * each.lookups)
        )
        for each in features
    }


def count_load(
    batches: Sequence[Mapping[str, torch.Tensor]], features: Sequence[Feature], *, num_servers: int, system: str
) -> Load:
    """Counts the load of servers.

    Args:
        batches: ids of each feature.
        system: one of ``SYSTEMS``.
    Raises:
        ValueError: ``system`` is none of them.
    """
    if system not in SYSTEMS:
        raise ValueError(f"system must be one of {', '.join(SYSTEMS)}, not {system!r}")
    deduplicator = Deduplicator(ThreadPool(1))
    # Keys of each server, (batches, features, servers). By table or group they are in column 0 at first.
    keys_BFS = torch.zeros((len(batches), len(features), num_servers), dtype=torch.int64)
    for number, batch in enumerate(batches):
        for index, feature in enumerate(features):
            looked_up = Keys(batch[feature.name], table=table_id_of(feature.name))
            unique = from_unique(looked_up) if system == BUCKETS_NO_DEDUP else deduplicator.deduplicate(looked_up)
            if system in (BUCKETS, BUCKETS_NO_DEDUP):
                keys_BFS[number, index] = route(unique.keys, num_servers)[1]
            else:
                keys_BFS[number, index, 0] = len(unique)
    key_bytes_F = torch.tensor([KEY_BYTES + 2 * 4 * feature.dim for feature in features])
    if system in (BY_TABLE, BY_GROUP):
        units = [feature.group if system == BY_GROUP else index for index, feature in enumerate(features)]
        bytes_F = (keys_BFS[:, :, 0].sum(0) * key_bytes_F).tolist()
        server_of = place(units, bytes_F, num_servers=num_servers)
        placed = torch.zeros_like(keys_BFS)
        for index, unit in enumerate(units):
            placed[:, index, server_of[unit]] = keys_BFS[:, index, 0]
        keys_BFS = placed
    return Load(keys=keys_BFS.sum(1), bytes=(keys_BFS * key_bytes_F[None, :, None]).sum(1))


def place(units: Sequence[int], loads: Sequence[int], *, num_servers: int) -> dict[int, int]:
    """Places units on servers: the largest first, each where the least load is.

    Args:
        units: unit of each feature; features of one unit stay together.
        loads: load of each feature.
    Returns:
        the server of each unit.
    """
    load_of: dict[int, int] = dict.fromkeys(units, 0)
    for unit, load in zip(units, loads, strict=True):
        load_of[unit] += load
    of_servers = [0] * num_servers
    server_of = {}
    for unit in sorted(load_of, key=lambda each: -load_of[each]):
        server_of[unit] = of_servers.index(min(of_servers))
        of_servers[server_of[unit]] += load_of[unit]
    return server_of


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("server_load", DESCRIPTION, ranks=(8,), epilog="--ranks is the number of parameter servers.")
    for name, default, text in (
        ("--groups", 16, "feature groups"),
        ("--features", 4, "features of a group, each with a table"),
        ("--hot", 100, "ids of a sample in a feature of the first group; others have one"),
        ("--batch", 1024, "samples of a batch"),
        ("--batches", 50, "batches"),
        ("--ids", 10_000_000, "ids of a feature"),
        ("--seed", 1, "of the ids"),
    ):
        parser.add_argument(name, type=whole_number(1), default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument("--exponent", type=float, default=1.2, help="of the popularity of ids (default: %(default)s)")
    parser.add_argument(
        "--dim", type=whole_number(1), nargs="+", default=[16, 64], help="floats of a row, in turn (default: 16 64)"
    )
    return measure_and_report(
        "server_load", parser, parser.parse_args(argv), measure=measure, format_points=format_points
    )


def measure(options: argparse.Namespace) -> list[Point]:
    """Counts a point for each number of servers and system.

    Raises:
        BenchmarkError: ids cannot be drawn with this exponent.
    """
    if not options.exponent > 0 or options.exponent == 1:
        raise BenchmarkError(f"--exponent must be above 0 and not 1, and is {options.exponent:g}")
    features = make_features(groups=options.groups, features=options.features, dims=options.dim, hot=options.hot)
    random = np.random.default_rng(options.seed)
    batches = [
        draw_batch(random, features, samples=options.batch, num_ids=options.ids, exponent=options.exponent)
        for _ in range(options.batches)
    ]
    names = ("groups", "features", "hot", "batch", "batches", "ids", "exponent", "dim", "seed")
    points = []
    for num_servers in options.ranks:
        params = {"servers": num_servers, **{name: getattr(options, name) for name in names}}
        for system in SYSTEMS:
            load = count_load(batches, features, num_servers=num_servers, system=system)
            (keys, keys_of_worst), (size, size_of_worst) = load.over(load.keys), load.over(load.bytes)
            points.append(
                Point(
                    name="server_load", params=params, system=system, median_s=None, p5_s=None, p95_s=None,
                    samples=len(batches), rate=size, unit="bytes of the busiest server over the mean",
                    extra={"keys_max_over_mean": keys, "bytes_max_over_mean": size,
                           "worst_batch_keys_max_over_mean": keys_of_worst,
                           "worst_batch_bytes_max_over_mean": size_of_worst,
                           "keys": load.keys.sum(0).tolist(), "bytes": load.bytes.sum(0).tolist()},
                )
            )  # fmt: skip
    return points


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each number of servers and system."""
    columns = (
        "keys_max_over_mean",
        "bytes_max_over_mean",
        "worst_batch_keys_max_over_mean",
        "worst_batch_bytes_max_over_mean",
    )
    rows = [
        (
            str(point.params["servers"]),
            point.system,
            f"{sum(point.extra['keys']) / point.samples:,.0f}",
            *(f"{point.extra[name]:.3f}" for name in columns),
        )
        for point in points
    ]
    return format_table(
        ("servers", "system", "keys of a batch", "keys: max / mean", "bytes", "worst batch: keys", "bytes"), rows
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
