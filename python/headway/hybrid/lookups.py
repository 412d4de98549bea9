# SPDX-License-Identifier: Apache-2.0
"""Lookups of ``HybridTables``: straight at the parameter servers, or through embedding workers.

With embedding workers a dense worker has a ``BatchRef`` in place of ids. A ``Loader`` made it in another process.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from headway._hybrid import EmbeddingClient, EmbeddingWorkers, ServerStatus, TableSettings, query_status
from headway.config_files import ConfigError
from headway.embedding.config import FeatureConfig, TableConfig
from headway.embedding.features import Features, columns_of, tensors_of
from headway.embedding.merging import MergedTable, merge_tables, merged_table_indices, table_id_of
from headway.hybrid.config import HybridConfig
from headway.hybrid.dense_optimizer import DenseBlocks, DenseOptimizer
from headway.hybrid.worker_members import WorkerMembers

if TYPE_CHECKING:  # Types without a name at run time.
    from headway._hybrid import IndexedRows, SmallFeature

Values = npt.NDArray[np.float32]
_logger = logging.getLogger("headway.hybrid")


@dataclass(frozen=True)
class BatchRef:
    """A batch whose ids an embedding worker has. It may be pickled, and has no id.

    Attributes:
        worker: address of the embedding worker.
        loader: number of the loader.
        number: number of the batch at the loader.
    """

    worker: str
    loader: int
    number: int


@dataclass(frozen=True)
class Layout:
    """Tables and features, in the order in which servers and embedding workers see them.

    Attributes:
        merged_tables: tables of equal configuration share storage.
        features: in the order of the caller.
        of_table: indices of the features of each merged table.
        dense: blocks of the dense model. Their table is the last of ``merged_tables``, and their feature the last of
            ``features``. None: the dense model is not on the servers.
    """

    merged_tables: list[MergedTable]
    features: list[FeatureConfig]
    of_table: list[list[int]]
    dense: DenseBlocks | None = None

    @classmethod
    def of(
        cls, tables: Iterable[TableConfig], features: Iterable[FeatureConfig], dense: DenseBlocks | None = None
    ) -> Layout:
        """Merges tables and assigns features.

        Raises:
            ValueError: a name is used twice, or a feature's table does not exist.
        """
        tables, features = list(tables), list(features)
        if dense is not None:
            tables.append(dense.table)
            features.append(dense.feature)
        merged_tables = merge_tables(tables)
        index_of = merged_table_indices(merged_tables)
        of_table: list[list[int]] = [[] for _ in merged_tables]
        names: set[str] = set()
        for index, feature in enumerate(features):
            if feature.name in names:
                raise ValueError(f"feature {feature.name} is there twice")
            if feature.table not in index_of:
                raise ValueError(f"feature {feature.name}: there is no table {feature.table}")
            names.add(feature.name)
            of_table[index_of[feature.table]].append(index)
        for merged, of_merged in zip(merged_tables, of_table, strict=True):
            if not of_merged:
                raise ValueError(f"no feature uses the table {merged.name}")
        return cls(merged_tables, features, of_table, dense)

    @property
    def own(self) -> Layout:
        """The layout without the dense model."""
        if self.dense is None:
            return self
        return Layout(self.merged_tables[:-1], self.features[:-1], self.of_table[:-1])

    @property
    def order(self) -> list[int]:
        """Indices of the features, those of a merged table adjacent."""
        return [index for of_merged in self.of_table for index in of_merged]

    def settings(self, *, seed: int, num_servers: int) -> dict[str, Any]:
        """Returns arguments of both clients."""
        return {
            "tables": [TableSettings(**each.settings(seed=seed, num_ranks=num_servers)) for each in self.merged_tables],
            "table_ids": [[table_id_of(table.name) for table in each.tables] for each in self.merged_tables],
            "table_names": [[table.name for table in each.tables] for each in self.merged_tables],
            "reads_zeros": [each.config.unknown == "zeros" for each in self.merged_tables],
        }

    def arguments_of(self, features: Features) -> tuple[list[Any], list[int]]:
        """Returns features for a client, in ``order``, and their bags, in the order of the caller.

        The blocks of the dense model come last, as one list.

        Raises:
            ValueError: a feature is missing, or its tensors do not fit.
        """
        columns = columns_of(features)
        arguments: list[Any] = []
        num_bags = [0] * len(self.features)
        for index in self.own.order:
            feature = self.features[index]
            ids, lengths, weights = tensors_of(columns, feature.name)
            if weights is not None and weights.requires_grad:
                raise ValueError(f"feature {feature.name}: weights on parameter servers cannot get a gradient")
            values = None if weights is None else weights.to("cpu", torch.float32).contiguous().numpy()
            arguments.append(
                (feature.name, table_id_of(feature.table), feature.pooling, _int64(feature.name, ids),
                 _int64(feature.name, lengths), values)
            )  # fmt: skip
            num_bags[index] = len(ids) if feature.pooling is None else len(lengths)
        if self.dense is not None:
            name, count = self.dense.table.name, self.dense.count
            arguments.append((name, table_id_of(name), None, np.arange(count), np.array([count]), None))
            num_bags[-1] = count
        return arguments, num_bags


@dataclass(frozen=True)
class SmallFound:
    """A batch in small tables, as an embedding worker sends it.

    Attributes:
        features: row indices (K,), lengths (B,) and weights (K,) or None, of the features in their order by table;
            empty for a batch without samples.
        rows: for each small table, rows that this dense worker may not have.
    """

    features: list[SmallFeature]
    rows: list[IndexedRows]


#: Bags of each feature in the order of the caller, (bags, dim) of each merged table, and small tables.
Found = tuple[list[int], list[Values], SmallFound | None]


@dataclass(frozen=True)
class SplitLayout:
    """Tables on servers and small tables, which dense workers have.

    Attributes:
        on_servers: large tables, and blocks of the dense model.
        small: None: there are none.
        features: in the order of the caller, without the dense model.
        of_servers, of_small: indices of their features in ``features``.
    """

    on_servers: Layout
    small: Layout | None
    features: list[FeatureConfig]
    of_servers: list[int]
    of_small: list[int]

    @classmethod
    def of(
        cls,
        config: HybridConfig,
        tables: Iterable[TableConfig],
        features: Iterable[FeatureConfig],
        dense: DenseBlocks | None,
    ) -> SplitLayout:
        """Merges tables and assigns features.

        Raises:
            ConfigError: all tables are small.
            ValueError: a name is used twice, or a feature's table does not exist.
        """
        tables, features = list(tables), list(features)
        Layout.of(tables, features)  # Finds names that are used by a small and by another table.
        names = {each.name for each in tables if is_small(each, config.most_small_rows)}
        if names and len(names) == len(tables):
            raise ConfigError(
                f"sync_rows = {config.sync_rows} leaves no table for the servers: all have at most as many max_rows. "
                'Use mode = "local" or a smaller number'
            )
        of_servers = [index for index, each in enumerate(features) if each.table not in names]
        of_small = [index for index, each in enumerate(features) if each.table in names]
        on_servers = Layout.of(
            [each for each in tables if each.name not in names], [features[index] for index in of_servers], dense
        )
        small = None
        if names:
            small = Layout.of([each for each in tables if each.name in names], [features[index] for index in of_small])
        return cls(on_servers, small, features, of_servers, of_small)

    @property
    def of_workers(self) -> Layout:
        """All tables, small ones last: embedding workers know them, and servers behind them."""
        if self.small is None:
            return self.on_servers
        return Layout(self.merged_tables, self.features, self.of_table)

    @property
    def small_indices(self) -> list[int]:
        """Small tables among all merged tables."""
        return list(range(len(self.on_servers.own.merged_tables), len(self.merged_tables)))

    @property
    def merged_tables(self) -> list[MergedTable]:
        """Tables of servers without the dense model, then small ones."""
        return self.on_servers.own.merged_tables + ([] if self.small is None else self.small.merged_tables)

    @property
    def of_table(self) -> list[list[int]]:
        """Indices of the features of each merged table."""
        large = [[self.of_servers[index] for index in indices] for indices in self.on_servers.own.of_table]
        small = [] if self.small is None else self.small.of_table
        return large + [[self.of_small[index] for index in indices] for indices in small]

    def join(self, num_bags: Sequence[int], num_small_bags: Sequence[int]) -> list[int]:
        """Returns the bags of all features, in the order of the caller."""
        joined = [0] * len(self.features)
        for indices, counts in ((self.of_servers, num_bags), (self.of_small, num_small_bags)):
            for index, count in zip(indices, counts, strict=True):
                joined[index] = count
        return joined


def is_small(table: TableConfig, most_rows: int) -> bool:
    """Whether a table stays in step on the dense workers. One that evicts, expires or counts ids is never small."""
    keeps_rows = table.eviction is None and table.time_to_live == 0 and table.min_count == 1 and table.hot_count == 0
    return keeps_rows and table.max_rows is not None and table.max_rows <= most_rows


class ServerLookups:
    """Lookups of features straight at the parameter servers."""

    def __init__(self, config: HybridConfig, layout: Layout, *, seed: int, num_threads: int) -> None:
        addresses = config.servers.addresses
        self._layout = layout
        self._client = EmbeddingClient(
            addresses=addresses,
            job=config.job.name,
            timeout_s=config.job.timeout_s,
            connect_timeout_s=config.job.connect_timeout_s,
            compress_ids=config.compression.ids,
            compress_values=config.compression.values,
            num_threads=num_threads,
            **layout.settings(seed=seed, num_servers=len(addresses)),
        )
        self._num_bags: dict[int, list[int]] = {}  #: Bags of the batches in flight, by step.
        self.begin_generation = self._client.begin_generation
        self.return_gradients = self._client.return_gradients
        self.drop = self._client.drop
        self.is_finished = self._client.is_finished
        self.waits = self._client.waits
        self.end_at = self._client.end_at
        self.status = self._client.status

    def prepare(self, features: Any) -> tuple[Any, bool]:
        """Checks a batch; returns what ``start()`` sends, and whether it has samples."""
        if isinstance(features, BatchRef):
            raise ValueError("a batch of a Loader needs embedding workers: name them in workers.addresses or .discover")
        arguments, num_bags = self._layout.arguments_of(features)
        own = arguments[: len(self._layout.own.features)]
        return (arguments, num_bags), any(len(lengths) > 0 for _, _, _, _, lengths, _ in own)

    def start(self, step: int, rank: int, prepared: Any) -> None:
        arguments, num_bags = prepared
        self._client.start(step, rank, arguments)
        self._num_bags[step] = num_bags

    def forget(self, step: int, rank: int, prepared: Any) -> None:
        """Tells about a batch that is dropped and was not started. Servers know nothing of it."""

    def wait(self, step: int, rank: int) -> Found:
        return self._num_bags[step], self._client.wait(step, rank), None

    def finish(self, step: int, rank: int) -> bool:
        is_finite = self._client.finish(step, rank)
        self._num_bags.pop(step, None)
        return is_finite

    def read(self, features: Any) -> Found:
        arguments, num_bags = self._layout.arguments_of(features)
        return num_bags, self._client.read(arguments), None


class WorkerLookups:
    """Lookups through embedding workers, of batches that a ``Loader`` has sent them."""

    def __init__(self, config: HybridConfig, split: SplitLayout, *, seed: int) -> None:
        self._config, self._split, self._layout = config, split, split.of_workers
        self._members = connect_workers(config, split, seed=seed)
        self._workers = self._members.workers
        self.begin_generation = self._workers.begin_generation
        self.drop = self._workers.drop
        self.is_finished = self._workers.is_finished
        self.finish = self._workers.finish
        self.waits = self._workers.waits
        self.end_at = self._workers.end_at

    def prepare(self, features: Any) -> tuple[Any, bool]:
        """Checks a batch; returns what ``start()`` sends, and whether there is a batch."""
        reference = self._reference_of(features)
        return reference, reference is not None

    def start(self, step: int, rank: int, prepared: Any) -> None:
        self._expect_worker_of(prepared)
        if not self._workers.start(step, rank, prepared):  # It has come back under its address.
            self._expect_worker_of(prepared)
            self._workers.start(step, rank, prepared)

    def _expect_worker_of(self, reference: tuple[str, int, int] | None) -> None:
        """Connects with the worker of a batch if it has come since. Any worker may tell of a step without a batch."""
        if reference is None:
            self._members.expect_one()
        else:
            self._members.connect(reference[0])

    def forget(self, step: int, rank: int, prepared: Any) -> None:
        """Tells about a batch that is dropped and was not started. Its embedding worker has its ids."""
        self.start(step, rank, prepared)

    def _reference_of(self, features: Any) -> tuple[str, int, int] | None:
        """Returns the key of a batch; None: it is empty."""
        if isinstance(features, BatchRef):
            return features.worker, features.loader, features.number
        if features is None:
            return None
        raise ValueError(
            "with embedding workers, features are what Loader.submit() returned, since a dense worker has no ids"
        )

    def return_gradients(self, step: int, rank: int, gradients: Sequence[tuple[float, Values | None]]) -> None:
        """Sends gradients of large tables. Small ones have none here."""
        of_small: list[tuple[float, Values | None]] = [(0.0, None) for _ in self._split.small_indices]
        self._workers.return_gradients(step, rank, [*gradients, *of_small])

    def wait(self, step: int, rank: int) -> Found:
        return self._found(*self._workers.wait(step, rank))

    def read(self, features: Any) -> Found:
        reference = self._reference_of(features)
        if reference is None:
            raise ValueError("there are no features to read")
        self._expect_worker_of(reference)
        return self._found(*self._workers.read(reference))

    def _found(
        self, num_bags: list[int], values: list[Values], features: list[SmallFeature], rows: list[IndexedRows]
    ) -> Found:
        bags = self._in_order(num_bags)
        if self._split.small is None:
            return bags, values, None
        of_servers = [bags[index] for index in self._split.of_servers]
        return of_servers, values[: -len(self._split.small_indices)], SmallFound(features, rows)

    def _in_order(self, num_bags: Sequence[int]) -> list[int]:
        """Returns bags in the order of the caller's features."""
        result = [0] * len(num_bags)
        for index, count in zip(self._layout.order, num_bags, strict=True):
            result[index] = count
        return result

    def status(self) -> list[ServerStatus]:
        job = self._config.job
        return [
            query_status(address, job=job.name, timeout_s=job.connect_timeout_s)
            for address in self._config.servers.addresses
        ]


def blocks_of(config: HybridConfig, dense: DenseOptimizer | None) -> DenseBlocks | None:
    """Returns the blocks of the dense model; None: it is not on the servers.

    Raises:
        ValueError: the mode is ``async``, and there is no dense model.
    """
    if config.mode != "async":
        return None
    if dense is None:
        raise ValueError('mode = "async" has the dense model on the servers: pass a hybrid.DenseOptimizer as dense')
    return dense.blocks


def connect_workers(config: HybridConfig, split: SplitLayout, *, seed: int) -> WorkerMembers:
    """Connects with all embedding workers, and gives them tables and features."""
    layout = split.of_workers
    features = [layout.features[index] for index in layout.order]
    workers = EmbeddingWorkers(
        job=config.job.name,
        features=[(each.name, table_id_of(each.table), each.pooling) for each in features],
        timeout_s=config.job.timeout_s,
        compress_ids=config.compression.ids,
        compress_values=config.compression.values,
        small=split.small_indices,
        **layout.settings(seed=seed, num_servers=len(config.servers.addresses)),
    )
    return WorkerMembers(config, workers)


class Loader:
    """Sends ids to embedding workers, which take turns. Use it in the processes that read data.

    It may be pickled, such as in a dataset of ``torch.utils.data.DataLoader`` with worker processes. Each process
    connects by itself, at its first batch. So the process of the dense worker never has an id.

    Args:
        config: settings with ``workers.addresses`` or ``workers.discover``, or their file. With mode ``local`` nothing
            is sent: ``submit()`` returns the features.
        tables, features, dense, seed: as for ``connect()``.
    Raises:
        ValueError: an argument is wrong, or there are no embedding workers.
    """

    def __init__(
        self,
        config: HybridConfig | str | os.PathLike[str],
        *,
        tables: Iterable[TableConfig],
        features: Iterable[FeatureConfig],
        dense: DenseOptimizer | None = None,
        seed: int = 0,
    ) -> None:
        config = HybridConfig.of_argument(config)
        if not config.workers.are_there and config.mode != "local":
            raise ValueError("a Loader needs embedding workers: name them in workers.addresses or workers.discover")
        self._config, self._seed = config, seed
        self._split = SplitLayout.of(config, tables, features, blocks_of(config, dense))
        self._forget()

    def _forget(self) -> None:
        self._process = 0
        self._members: WorkerMembers | None = None

    def submit(self, features: Features) -> BatchRef | Features:
        """Sends a batch to the embedding worker whose turn it is. Waits while it has no room for it.

        A worker that is leaving, or lost, is passed over: the next one gets the batch.

        Args:
            features: as for ``HashTableCollection``.
        Returns:
            what ``HybridTables`` takes in place of the features.
        Raises:
            ValueError: a feature is missing, or its tensors do not fit.
            RuntimeError: an embedding worker has no room in time, or none can be reached. The message names it.
        """
        if self._config.mode == "local":
            return features
        arguments, _ = self._split.of_workers.arguments_of(features)
        if self._members is None or self._process != os.getpid():
            self._members = connect_workers(self._config, self._split, seed=self._seed)
            self._process, self._number, self._loader = os.getpid(), 0, secrets.randbits(63)
        while True:
            reference = BatchRef(self._members.in_turn(self._number), self._loader, self._number)
            why = self._members.workers.submit((reference.worker, reference.loader, reference.number), arguments)
            if why is None:
                break
            _logger.warning("%s: other embedding workers get its batches", why)
        self._number += 1
        return reference

    def __getstate__(self) -> dict[str, Any]:
        return {"_config": self._config, "_seed": self._seed, "_split": self._split}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()


def _int64(name: str, tensor: torch.Tensor) -> npt.NDArray[np.int64]:
    if tensor.dtype not in (torch.int64, torch.int32) or tensor.dim() != 1:
        raise ValueError(f"feature {name}: ids and lengths must be of one dimension, int64 or int32")
    array: npt.NDArray[np.int64] = tensor.to("cpu", torch.int64).contiguous().numpy()
    return array
