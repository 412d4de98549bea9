# SPDX-License-Identifier: Apache-2.0
"""Tables on parameter servers: ``headway.hybrid`` behind the interface ``Tables``, and servers of this host."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from headway.cli.built_programs import program_path
from headway.embedding import LOCAL, TableConfig
from headway.hybrid import DenseOptimizer, HybridBatch, HybridConfig, HybridTables, ServerStatus

from dlrm_examples.streaming_ctr.dynamic_tables import feature_configs, table_configs
from dlrm_examples.streaming_ctr.experiment import Servers
from dlrm_examples.streaming_ctr.group import all_gather, rank_of
from dlrm_examples.streaming_ctr.tables import TableLimits, TableSettings, TableUse
from dlrm_examples.support.data.log import Feature, Jagged

_SECRET = "HEADWAY_GROUP_SECRET"


class ServedTables:
    """Dynamic tables on parameter servers, which the ranks of a group train within a staleness."""

    def __init__(
        self,
        features: Sequence[Feature],
        settings: TableSettings,
        servers: Servers,
        addresses: Sequence[str],
        *,
        limits: TableLimits,
        group: dist.ProcessGroup | None,
        dense: DenseOptimizer | None = None,
    ) -> None:
        """Connects with servers. Collective.

        Args:
            features: features that calls will look up.
            settings: settings of all tables.
            servers: mode, staleness and tables in step.
            addresses: of the servers.
            limits: limits of the tables, with ``table_sizes`` if some are in step.
            group: dense workers.
            dense: optimizer of the dense model, with mode ``async``.
        """
        values: dict[str, Any] = {"mode": servers.mode, "servers": {"addresses": list(addresses)}}
        if servers.mode == "hybrid":
            values |= {"staleness": servers.staleness, "combine": servers.combine, "sync_rows": servers.sync_rows}
        elif servers.mode == "async":
            values["staleness"] = servers.staleness
        if servers.is_exact:
            values["order"] = "exact"
        if servers.compresses:
            values["compression"] = {"ids": True, "values": True}
        self._group = group
        self._tables = HybridTables(
            HybridConfig.of(values),
            tables=[_limited(each, limits, servers.sync_rows) for each in table_configs(features, settings, limits)],
            features=feature_configs(features),
            dense=dense,
            process_group=LOCAL if group is None else group,
            seed=settings.seed,
        )

    @property
    def ahead(self) -> int:
        """See ``Tables``."""
        return self._tables.most_in_flight - 1

    def begin(self, features: Mapping[str, Jagged]) -> HybridBatch:
        """See ``Tables``."""
        return self._tables.begin(features)

    def __call__(self, features: Any) -> dict[str, torch.Tensor]:
        """See ``Tables``."""
        self._tables.train(torch.is_grad_enabled())
        return self._tables(features)

    def step(self) -> None:
        """See ``Tables``."""
        self._tables.optimizer.step()

    def finish(self) -> None:
        """See ``Tables``."""
        self._tables.finish()
        all_gather(None, self._group)  # No rank reads before all have sent their gradients.

    def use(self) -> TableUse:
        """See ``Tables``."""
        states = self._tables.status()
        of_ranks = TableUse(rows=sum(self._tables.small_rows().values()))
        return sum((_use_of(each) for each in states), of_ranks)


def _limited(table: TableConfig, limits: TableLimits, sync_rows: int) -> TableConfig:
    """Gives a table of up to ``sync_rows`` ids that limit, so that it is in step."""
    is_small = sync_rows > 0 and limits.table_sizes is not None and limits.table_sizes[table.name] <= sync_rows
    return replace(table, max_rows=sync_rows) if is_small else table


def _use_of(status: ServerStatus) -> TableUse:
    return TableUse(
        rows=status.rows,
        cold_rows=status.cold_rows,
        pending=status.pending,
        evicted=status.evicted,
        refused=status.refused,
        num_bytes=status.bytes,
    )


@contextlib.contextmanager
def local_servers(count: int, group: dist.ProcessGroup | None) -> Iterator[list[str]]:
    """Starts servers on rank 0, and yields their addresses on all ranks of this host. Collective."""
    processes: list[subprocess.Popen[str]] = []
    addresses: list[str] = []
    before = os.environ.get(_SECRET)
    try:
        secret = before or secrets.token_hex(16)
        if rank_of(group) == 0:
            command = [str(program_path("headway-ps")), "--address", "127.0.0.1:0"]
            environ = {**os.environ, _SECRET: secret}
            for _ in range(count):
                processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ))
                assert processes[-1].stdout is not None
                addresses.append(processes[-1].stdout.readline().removeprefix("listening at ").strip())
        addresses, os.environ[_SECRET] = all_gather((addresses, secret), group)[0]
        yield addresses
        all_gather(None, group)  # All ranks are done with the servers.
    finally:
        if before is None:
            os.environ.pop(_SECRET, None)
        for process in processes:
            process.terminate()
            process.wait()
