# SPDX-License-Identifier: Apache-2.0
"""``HybridConfig``: the settings of a hybrid training, from TOML.

::

    mode = "hybrid"
    staleness = 4

    [job]
    name = "ctr"

    [servers]
    addresses = ["ps-0.ps:7000", "ps-1.ps:7000"]
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from headway.config_files import ConfigError, build_config, read_toml

Mode = Literal["local", "sync", "hybrid", "async"]
MOST_STALENESS = 1024  #: StepLedger::kMostStaleness.
#: Sections of ``headway.training.TrainingConfig``, which a file of ``headway train`` has beside those of this module.
TRAINING_SECTIONS = ("data", "model", "optimizer", "run", "checkpoint")
TRAINING_OUT = Path("out/train")  #: Default folder of checkpoints and results of ``headway train``.


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """The job.

    Attributes:
        name: peers of another job are refused. The secret of the job is in the environment, not in the file.
        timeout_s: limit of each wait for a server.
        connect_timeout_s: limit of the wait until a server listens.
    """

    name: str = "hybrid"
    timeout_s: float = 120.0
    connect_timeout_s: float = 60.0


@dataclass(frozen=True, kw_only=True)
class ServersConfig:
    """Parameter servers.

    Attributes:
        addresses: ``HOST:PORT`` of each. Their order decides which ids a server has.
        threads: threads of a server's tables.
        strict: a gradient that is not finite is an error, instead of a part that is dropped and counted.
        max_request_mib: largest request in MiB.
    """

    addresses: tuple[str, ...] = ("127.0.0.1:7000",)
    threads: int = 1
    strict: bool = False
    max_request_mib: int = 256


@dataclass(frozen=True, kw_only=True)
class WorkersConfig:
    """Embedding workers. Without any, dense workers ask the servers themselves.

    Attributes:
        addresses: ``HOST:PORT`` of each.
        discover: ``NAME:PORT`` instead, where the DNS name has the addresses of all embedding workers. They may come
            and go while the job trains.
        refresh_s: seconds after which a loader looks for workers that have come, or come back.
        leave_timeout_s: longest time that a worker stays after SIGTERM for the batches that it has.
        threads: threads of a worker.
        buffer_mib: ids in MiB that a worker buffers; loaders wait beyond it.
    """

    addresses: tuple[str, ...] = ()
    discover: str = ""
    refresh_s: float = 10.0
    leave_timeout_s: float = 20.0
    threads: int = 1
    buffer_mib: int = 1024

    @property
    def are_there(self) -> bool:
        """Does the job have embedding workers?"""
        return bool(self.addresses or self.discover)

    @property
    def discovered_port(self) -> str:
        """Port of ``discover``."""
        return self.discover.rpartition(":")[2]


@dataclass(frozen=True, kw_only=True)
class CheckpointsConfig:
    """Checkpoints, and restarts of ``headway hybrid run`` from them.

    Attributes:
        folder: has a subfolder for each checkpoint. All roles see it. Empty: there are none.
        every_steps: steps between two of them, as ``Checkpoints.save_if_due()`` counts.
        keep: newest ones that stay; 0: all.
        max_restarts: how often ``run`` starts all roles again when one was lost, if there is a checkpoint.
        timeout_s: limit of the time in which servers write or read theirs.
    """

    folder: str = ""
    every_steps: int = 1000
    keep: int = 2
    max_restarts: int = 3
    timeout_s: float = 3600.0


@dataclass(frozen=True, kw_only=True)
class CompressionConfig:
    """Compression of messages. All roles of a job have the same; a difference is an error.

    Attributes:
        ids: ids to embedding workers, and keys to servers. It changes no result.
        values: embeddings and gradients travel as float16 with an exponent for each block of a row, which rounds them.
            Servers keep float32.
    """

    ids: bool = False
    values: bool = False


@dataclass(frozen=True, kw_only=True)
class MetricsConfig:
    """Pages for Prometheus, at ``http://HOST:PORT/metrics``. They need prometheus-cpp when the programs are built.

    Attributes:
        host: numeric address at which roles listen for Prometheus.
        port: of parameter server 0; server i has the port + i, and embedding worker i the port + servers + i. 0: there
            are no pages. ``headway hybrid ps`` and ``worker`` take other addresses by ``--metrics``.
    """

    host: str = "127.0.0.1"
    port: int = 0


@dataclass(frozen=True, kw_only=True)
class HybridConfig:
    """All settings.

    Attributes:
        mode: ``local`` has no servers: each dense worker has tables of its own process group. ``sync`` waits for the
            updates of all steps before. ``hybrid`` lets lookups miss the updates of up to ``staleness`` steps.
            ``async`` has the dense model on the servers, too, and each dense worker makes steps of its own. Its lookups
            miss the updates of up to ``staleness`` of its own steps.
        staleness: steps; used with ``hybrid`` and ``async``.
        order: ``exact`` makes every read determined, for tests. It is slower. Not with ``async``.
        combine: ``sum`` adds the gradients that the dense workers have for a row in a step, and makes one optimizer
            step of the sum. ``none`` makes one of each worker's gradient, as soon as it comes; with ``hybrid`` alone.
            ``async`` adds none.
        sync_rows: with ``hybrid``, tables with ``max_rows`` up to this are in step on the dense workers, and not on
            servers. Only tables without eviction, ``time_to_live``, ``min_count`` and ``hot_count`` are. 0: none.
        job, servers, workers, compression, metrics: sections; ``local`` uses none of them.
        checkpoints: section.
    """

    mode: Mode = "hybrid"
    staleness: int = 4
    order: Literal["free", "exact"] = "free"
    combine: Literal["sum", "none"] = "sum"
    sync_rows: int = 0
    job: JobConfig = field(default_factory=JobConfig)
    servers: ServersConfig = field(default_factory=ServersConfig)
    workers: WorkersConfig = field(default_factory=WorkersConfig)
    checkpoints: CheckpointsConfig = field(default_factory=CheckpointsConfig)
    compression: CompressionConfig = field(default_factory=CompressionConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)

    @classmethod
    def load(cls, path: str | Path) -> HybridConfig:
        """Reads a TOML file. In a file of ``headway train``, one with ``[data]``, the default of ``mode`` is ``local``.

        The sections of ``TrainingConfig`` are left to it.

        Raises:
            ConfigError: the file cannot be read, or a setting is wrong. The message names file and key.
        """
        values = read_toml(Path(path))
        if "data" in values:
            values = {"mode": "local"} | {name: of for name, of in values.items() if name not in TRAINING_SECTIONS}
        try:
            return cls.of(values)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Makes a config from nested dictionaries.

        Raises:
            ConfigError: a setting is wrong.
        """
        config = build_config(cls, values)
        if not 0 <= config.staleness <= MOST_STALENESS:
            raise ConfigError(f"staleness must be from 0 to {MOST_STALENESS}, not {config.staleness}")
        if config.combine == "none" and config.mode != "hybrid":
            reason = "never adds" if config.mode == "async" else "adds before an update"
            raise ConfigError(f'combine = "none" contradicts mode = "{config.mode}", which {reason}')
        if config.order == "exact" and config.mode == "async":
            raise ConfigError('order = "exact" contradicts mode = "async", which has no order of steps')
        config._expect_sync_rows()
        if not config.servers.addresses:
            raise ConfigError("servers.addresses is empty")
        for name, value in (("job.timeout_s", config.job.timeout_s), ("job.connect_timeout_s",
                            config.job.connect_timeout_s), ("servers.threads", config.servers.threads),
                            ("servers.max_request_mib", config.servers.max_request_mib),
                            ("workers.threads", config.workers.threads),
                            ("workers.refresh_s", config.workers.refresh_s),
                            ("workers.leave_timeout_s", config.workers.leave_timeout_s),
                            ("checkpoints.every_steps", config.checkpoints.every_steps),
                            ("checkpoints.timeout_s", config.checkpoints.timeout_s),
                            ("workers.buffer_mib", config.workers.buffer_mib)):  # fmt: skip
            if not 0 < value < 1e9:
                raise ConfigError(f"{name} must be above 0, not {value}")
        for name in ("keep", "max_restarts"):
            if getattr(config.checkpoints, name) < 0:
                raise ConfigError(f"checkpoints.{name} must be from 0, not {getattr(config.checkpoints, name)}")
        if config.workers.discover and config.workers.addresses:
            raise ConfigError("workers.discover contradicts workers.addresses: give one of them")
        if config.workers.discover and not re.fullmatch(r"[^:\s]+:\d+", config.workers.discover):
            raise ConfigError(f'workers.discover must be "NAME:PORT", not "{config.workers.discover}"')
        last = config.metrics.port + len(config.servers.addresses) + len(config.workers.addresses) - 1
        if config.metrics.port and not 0 < config.metrics.port <= last < 1 << 16:
            raise ConfigError(f"metrics.port must leave room for all roles below 65536, not {config.metrics.port}")
        return config

    def _expect_sync_rows(self) -> None:
        if self.sync_rows < 0:
            raise ConfigError(f"sync_rows must be from 0, not {self.sync_rows}")
        if self.sync_rows and self.mode == "async":
            raise ConfigError(
                f'sync_rows = {self.sync_rows} contradicts mode = "async", whose dense workers are not in step'
            )

    @classmethod
    def of_argument(cls, config: HybridConfig | str | os.PathLike[str]) -> HybridConfig:
        """Returns settings, which may be given as their file."""
        return config if isinstance(config, HybridConfig) else cls.load(os.fspath(config))

    def metrics_address(self, role: Literal["server", "worker"], index: int) -> str | None:
        """Returns where a role shows its metrics; None: nowhere."""
        if not self.metrics.port:
            return None
        first = self.metrics.port + (0 if role == "server" else len(self.servers.addresses))
        return f"{self.metrics.host}:{first + index}"

    @property
    def most_small_rows(self) -> int:
        """``max_rows`` up to which tables are in step on the dense workers; 0: none is."""
        return self.sync_rows if self.mode == "hybrid" else 0

    @property
    def most_missing_steps(self) -> int:
        """Steps whose updates a lookup may lack; with ``async`` steps of its dense worker."""
        return self.staleness if self.mode in ("hybrid", "async") else 0
