# SPDX-License-Identifier: Apache-2.0
"""``Replicas``: small tables, of which every dense worker has all rows, and which are in step.

Idea: a replica is a table on the CPU that changes by what all dense workers exchange at the end of a step, and by
nothing else. So the replicas of all workers are equal, and a lookup asks nobody.

Example: 2 workers, SGD with a rate of 1. In step 4 worker 0 looks up ids 5, 6 and 5, and worker 1 looks up 5. Their
gradients by id are g0 and g1, and h0. Each sends its unique ids, (5, 6) and (5), with counts (2, 1) and (1), and
gradients. Both get ids 5, 6 and 5, in the order of workers. They insert 5 (3 lookups) and 6, and subtract g0 + h0 and
g1.

Invariants:
  A lookup changes nothing: an id without a row has the initial embedding that its row would begin with.
  Each worker takes part once in each step, also if its batch makes none. Then it sends nothing.
  Each worker applies the same values in the same order with the same kernels, so replicas have equal bits.
  A worker that gets its batches from embedding workers has row indices in place of ids (``ArrivedRows``). A row goes to
  all workers before or with the first step that uses it.
  Rows have the bits, counts and steps that a HashTableCollection of the workers would give them. It would also have
  rows and counts of batches without a step.
Complexity: a step sends the unique ids of a batch, 12 + 4 dim bytes each, to all workers. It is one exchange, or two if
some worker has sent more than any before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from headway._embedding import (
    NUM_VIRTUAL_BUCKETS,
    ROUTING_VERSION,
    Deduplicator,
    Keys,
    KeyStatus,
    Table,
    ThreadPool,
    UniqueKeys,
)
from headway.embedding.features import Features
from headway.embedding.merging import table_id_of
from headway.embedding.process_groups import gather_vectors
from headway.hybrid.arrived_rows import ArrivedRows, stored_rows, words_of_rows
from headway.hybrid.lookups import Layout, SmallFound, Values

if TYPE_CHECKING:  # A type without a name at run time.
    from headway._hybrid import IndexedRows

_HEADER_OF_STEP = 2  #: Step, and index of the table that has refused its gradients, or -1.
_HEADER_OF_TABLE = 4  #: Ids, whether they have gradients, the learning rate as bits, and new rows.


@dataclass(frozen=True)
class ReplicaLookup:
    """The ids of a batch in one table. K ids, U unique ones, B bags.

    Attributes:
        unique: ids without duplicates.
        offsets: (B + 1,) of bags; None: each id is a bag.
        weights: (K,); None: all are 1.
    """

    unique: UniqueKeys
    offsets: torch.Tensor | None
    weights: torch.Tensor | None


@dataclass(frozen=True)
class ReplicaBatch:
    """A batch in all small tables.

    Attributes:
        num_bags: bags of each feature, in the order of the layout.
        lookups: for each table.
    """

    num_bags: list[int]
    lookups: list[ReplicaLookup]


@dataclass(frozen=True)
class _Part:
    """The ids of one worker in one table and step, (K,), their counts, and gradients (K, dim) or None.

    ``rows`` are those that have arrived at the worker since the step before; None: there are no row indices.
    """

    ids: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int32]
    gradients: Values | None
    rate: float
    rows: IndexedRows | None = None

    def words(self, arrived: ArrivedRows | None) -> list[npt.NDArray[np.int32]]:
        of_gradients = [] if self.gradients is None else [self.gradients.reshape(-1).view(np.int32)]
        of_rows = [] if self.rows is None or arrived is None else arrived.encode(self.rows)
        return [self.ids.view(np.int32), self.counts, *of_gradients, *of_rows]


class Replicas:
    """Replicas of small tables on this dense worker.

    Args:
        layout: small tables and their features. Each merged table is one table, since it has a limit of rows.
        seed: seed of initial embeddings.
        num_threads: threads of tables.
        group: the dense workers; None: this one is alone.
        has_indices: keys are row indices of embedding workers, and not ids.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        seed: int,
        num_threads: int,
        group: dist.ProcessGroup | None,
        has_indices: bool = False,
    ) -> None:
        self.merged_tables = layout.merged_tables
        self._layout, self._seed = layout, seed
        self._group = None if group is None or group.size() == 1 else group
        self._rank = 0 if self._group is None else self._group.rank()
        self._thread_pool = ThreadPool(num_threads)
        self._deduplicator = Deduplicator(self._thread_pool)
        self._table_ids = [table_id_of(merged.name) for merged in self.merged_tables]
        self._room = 0  #: Most words that a worker has sent in a step beside its header.
        self.tables = self.build()
        self.has_indices = has_indices
        self._arrived: list[ArrivedRows] = []  #: Rows of each table, with indices.
        self._forget_rows()

    def _forget_rows(self) -> None:
        if self.has_indices:
            self._arrived = [ArrivedRows(table.dim, table.state_size) for table in self.tables]

    def build(self) -> list[Table]:
        """Makes empty tables."""
        return [
            merged.build(seed=self._seed, num_ranks=1, thread_pool=self._thread_pool) for merged in self.merged_tables
        ]

    def begin_at(self, step: int) -> None:
        """Sets the number of steps so far."""
        for table in self.tables:
            table.resume_step(step + 1, step + 1)

    def replace(self, tables: Sequence[Table], *, step: int) -> None:
        """Replaces all tables by loaded ones."""
        self.tables = list(tables)
        self._forget_rows()
        self.begin_at(step)

    # Lookups

    def prepare(self, features: Features) -> ReplicaBatch:
        """Removes the duplicates of a batch.

        Raises:
            ValueError: a feature is missing, or its tensors do not fit.
        """
        arguments, num_bags = self._layout.arguments_of(features)
        return ReplicaBatch(num_bags, self._lookups_of(arguments))

    def prepare_indices(self, found: SmallFound) -> ReplicaBatch:
        """Takes the answer of an embedding worker."""
        for arrived, rows in zip(self._arrived, found.rows, strict=bool(found.rows)):
            arrived.take(rows, is_own=True)
        empty: Any = (np.empty(0, np.int64), np.empty(0, np.int64), None)
        arguments, num_bags = [], [0] * len(self._layout.features)
        for index, of_feature in zip(
            self._layout.order, found.features or [empty] * len(self._layout.features), strict=True
        ):
            indices, lengths, weights = of_feature
            feature = self._layout.features[index]
            arguments.append((feature.name, 0, feature.pooling, indices, lengths, weights))
            num_bags[index] = len(indices) if feature.pooling is None else len(lengths)
        return ReplicaBatch(num_bags, self._lookups_of(arguments))

    def _lookups_of(self, arguments: Sequence[Any]) -> list[ReplicaLookup]:
        lookups, first = [], 0
        for table_id, of_merged in zip(self._table_ids, self._layout.of_table, strict=True):
            lookups.append(self._lookup_of(table_id, arguments[first : first + len(of_merged)]))
            first += len(of_merged)
        return lookups

    def _lookup_of(self, table_id: int, features: Sequence[Any]) -> ReplicaLookup:
        for name, _, _, ids, lengths, weights in features:
            if (lengths < 0).any() or lengths.sum() != len(ids):
                raise ValueError(f"feature {name}: {len(ids)} ids do not fit lengths that add up to {lengths.sum()}")
            if weights is not None and len(weights) != len(ids):
                raise ValueError(f"feature {name}: {len(weights)} weights do not fit {len(ids)} ids")
        offsets = weights = None
        if any(pooling is not None for _, _, pooling, *_ in features):
            bags = [np.ones_like(ids) if pooling is None else lengths for _, _, pooling, ids, lengths, _ in features]
            offsets = torch.from_numpy(np.concatenate([np.zeros(1, np.int64), *bags]).cumsum())
        if any(pooling == "mean" or given is not None for _, _, pooling, _, _, given in features):
            weights = torch.from_numpy(np.concatenate([_weights_of(feature) for feature in features]))
        ids = torch.from_numpy(np.concatenate([ids for _, _, _, ids, _, _ in features]))
        return ReplicaLookup(self._deduplicator.deduplicate(Keys(ids, table=table_id)), offsets, weights)

    def read(self, batch: ReplicaBatch, *, evaluates: bool) -> list[Values]:
        """Returns (bags, dim) of each table. Changes nothing."""
        found = []
        for index, (merged, table, lookup) in enumerate(
            zip(self.merged_tables, self.tables, batch.lookups, strict=True)
        ):
            keys = lookup.unique.keys
            rows, statuses = table.find(keys)
            values = table.gather(keys, rows)
            is_absent = statuses == KeyStatus.ABSENT.value
            if self.has_indices and bool(is_absent.any()):
                embeddings, are_stored = self._arrived[index].find(keys.ids[is_absent].numpy())
                values[is_absent] = torch.from_numpy(embeddings)
                is_absent[is_absent.clone()] = torch.from_numpy(~are_stored)
            if evaluates and merged.config.unknown == "zeros":
                values[is_absent] = 0
            bags = self._deduplicator.expand(lookup.unique, values, offsets=lookup.offsets, weights=lookup.weights)
            found.append(bags.numpy())
        return found

    # Checkpoints with row indices

    def rows(self, index: int) -> IndexedRows:
        """Returns the rows of one table by their indices, all of them as stored."""
        table = self.tables[index]
        keys = table.list(0, NUM_VIRTUAL_BUCKETS)
        counts, steps, embeddings, states = (each.numpy() for each in table.export_records(keys))
        ids: npt.NDArray[np.int64] = keys.ids.numpy()
        return ids, np.ones_like(ids), counts.astype(np.int64), steps.astype(np.int64), embeddings, states

    # Learning

    def end_step(
        self,
        step: int,
        batch: ReplicaBatch | None = None,
        gradients: Sequence[Values | None] = (),
        rates: Sequence[float] = (),
        *,
        is_strict: bool = False,
    ) -> bool:
        """Updates the replicas by the gradients of all dense workers, which call it together for each step.

        Args:
            step: the step that ends, from 0.
            batch: None: this worker's batch makes no step.
            gradients: for each table (bags, dim), or None.
            rates: learning rate of each table.
            is_strict: gradients that are not finite are an error on all workers. Otherwise this worker's are dropped.
        Returns:
            False: this worker's gradients are not finite.
        Raises:
            RuntimeError: workers end different steps, or one has gradients that are not finite.
            ValueError: workers have different learning rates.
        """
        own, refused = self._own_parts(batch, gradients, rates)
        errors, of_workers = self._exchange(step, own, refused if is_strict else -1)
        by_table = [[parts[index] for parts in of_workers] for index in range(len(self.tables))]
        for index, parts in enumerate(by_table):
            self._take_rows(index, parts)  # Also if an error follows, since they do not come again.
        self._expect_finite(step, errors)
        self._expect_rates(by_table)
        for index, parts in enumerate(by_table):
            self._apply(index, parts, step + 1)
            self.tables[index].begin_step(step + 2, step + 2)
        return refused < 0

    def _own_parts(
        self, batch: ReplicaBatch | None, gradients: Sequence[Values | None], rates: Sequence[float]
    ) -> tuple[list[_Part], int]:
        """Returns this worker's parts, and the index of a table with gradients that are not finite, or -1."""
        new_rows = [each.take_unsent() for each in self._arrived] if self.has_indices else [None] * len(self.tables)
        if batch is None:
            no_ids = (np.empty(0, np.int64), np.empty(0, np.int32))
            return [_Part(*no_ids, None, 0.0, rows) for rows in new_rows], -1
        refused = next((i for i, each in enumerate(gradients) if each is not None and not np.isfinite(each).all()), -1)
        parts = []
        for lookup, of_bags, rate, rows in zip(batch.lookups, gradients, rates, new_rows, strict=True):
            sums = None
            if of_bags is not None and refused < 0:
                sums = self._deduplicator.reduce(
                    lookup.unique, torch.from_numpy(of_bags), offsets=lookup.offsets, weights=lookup.weights
                ).numpy()
            keys = lookup.unique.keys
            assert keys.counts is not None
            parts.append(_Part(keys.ids.numpy(), keys.counts.numpy(), sums, rate, rows))
        return parts, refused

    def _take_rows(self, index: int, parts: Sequence[_Part]) -> None:
        """Takes the rows that have arrived at all workers. Stored ones go into the replica."""
        table, table_id = self.tables[index], self._table_ids[index]
        for part in parts:
            if part.rows is None or len(part.rows[0]) == 0:
                continue
            self._arrived[index].take(part.rows, is_own=False)
            stored = stored_rows(part.rows)
            _, statuses = table.find(Keys(torch.from_numpy(stored[0]), table=table_id))
            is_new = statuses == KeyStatus.ABSENT.value
            indices, _, counts, steps, embeddings, states = (torch.from_numpy(each)[is_new] for each in stored)
            none = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int32)
            buckets = (0, NUM_VIRTUAL_BUCKETS)
            fragment = (ROUTING_VERSION, 0, buckets, table_id, indices, counts.int(), steps.int(), embeddings, states)
            table.import_records((*fragment, *none), pending=False, rank=0, num_ranks=1)

    def _insert(self, index: int, keys: Keys) -> None:
        """Inserts rows that have arrived."""
        table = self.tables[index]
        _, statuses = table.find(keys)
        absent = keys.ids[statuses == KeyStatus.ABSENT.value]
        embeddings, _ = self._arrived[index].find(absent.numpy())
        table.insert_or_assign(Keys(absent, table=self._table_ids[index]), torch.from_numpy(embeddings))

    def _apply(self, index: int, parts: Sequence[_Part], number: int) -> None:
        """Inserts the ids of all workers, and makes one optimizer step for each that has gradients."""
        table, table_id = self.tables[index], self._table_ids[index]
        all_of_step = [part for part in parts if len(part.ids) > 0]
        if not all_of_step:
            return
        unique = self._unique(all_of_step, table_id)
        if self.has_indices:
            self._insert(index, unique.keys)
        rows, _ = table.find_or_insert(unique.keys)
        learned = [part for part in all_of_step if part.gradients is not None]
        if not learned:
            return
        if len(learned) < len(all_of_step):
            unique = self._unique(learned, table_id)
            rows, _ = table.find(unique.keys)
        values = torch.from_numpy(np.concatenate([part.gradients for part in learned if part.gradients is not None]))
        sums = self._deduplicator.reduce(unique, values)
        table.update(unique.keys, rows, sums, lr=learned[0].rate, step=number)

    def _unique(self, parts: Sequence[_Part], table_id: int) -> UniqueKeys:
        ids = torch.from_numpy(np.concatenate([part.ids for part in parts]))
        counts = torch.from_numpy(np.concatenate([part.counts for part in parts]))
        return self._deduplicator.deduplicate(Keys(ids, table=table_id, counts=counts))

    # Exchange

    def _exchange(self, step: int, own: list[_Part], error: int) -> tuple[list[int], list[list[_Part]]]:
        """Returns the errors of all workers, and their parts for each table, by worker.

        A message is a header of int64, and as many words of 4 bytes as the largest message so far had. If a header says
        that there are more, all workers exchange the rest.
        """
        if self._group is None:
            return [error], [own]
        arrived = self._arrived if self.has_indices else [None] * len(self.tables)
        header = [step, error]
        for part in own:
            rate = int(np.float64(part.rate).view(np.int64))
            num_rows = 0 if part.rows is None else len(part.rows[0])
            header += [len(part.ids), int(part.gradients is not None), rate, num_rows]
        words = [each for part, rows in zip(own, arrived, strict=True) for each in part.words(rows)]
        payload = np.concatenate([np.empty(0, np.int32), *words])
        head = np.asarray(header, np.int64).view(np.int32)
        first = np.zeros(len(head) + self._room, np.int32)
        first[: len(head)] = head
        fitting = payload[: self._room]
        first[len(head) : len(head) + len(fitting)] = fitting
        received = gather_vectors(torch.from_numpy(first), self._group).numpy()
        headers = received[:, : len(head)].copy().view(np.int64)
        payloads = received[:, len(head) :]
        most = max(self._num_words(each) for each in headers)
        if most > self._room:
            rest = np.zeros(most - self._room, np.int32)
            beyond = payload[self._room :]
            rest[: len(beyond)] = beyond
            others = gather_vectors(torch.from_numpy(rest), self._group).numpy()
            payloads = np.concatenate([payloads, others], axis=1)
            self._room = most
        self._expect_steps(headers[:, 0].tolist())
        of_workers = [self._parts_of(head, words) for head, words in zip(headers, payloads, strict=True)]
        return headers[:, 1].tolist(), of_workers

    def _num_words(self, header: npt.NDArray[np.int64]) -> int:
        num_words = 0
        for index, table in enumerate(self.tables):
            num_ids, has_gradients, _, num_rows = self._of_table(header, index)
            num_words += num_ids * (3 + has_gradients * table.dim)
            num_words += words_of_rows(num_rows, table.dim, table.state_size)
        return num_words

    @staticmethod
    def _of_table(header: npt.NDArray[np.int64], index: int) -> tuple[int, int, int, int]:
        first = _HEADER_OF_STEP + _HEADER_OF_TABLE * index
        num_ids, has_gradients, rate, num_rows = (int(each) for each in header[first : first + _HEADER_OF_TABLE])
        return num_ids, has_gradients, rate, num_rows

    def _parts_of(self, header: npt.NDArray[np.int64], words: npt.NDArray[np.int32]) -> list[_Part]:
        parts, first = [], 0

        def take(count: int) -> npt.NDArray[np.int32]:
            nonlocal first
            first += count
            return words[first - count : first].copy()

        for index, table in enumerate(self.tables):
            num_ids, has_gradients, rate, num_rows = self._of_table(header, index)
            ids, counts = take(2 * num_ids).view(np.int64), take(num_ids)
            gradients = None
            if has_gradients:
                gradients = take(num_ids * table.dim).view(np.float32).reshape(num_ids, table.dim)
            rows = None
            if self.has_indices:
                rows = self._arrived[index].decode(
                    take(words_of_rows(num_rows, table.dim, table.state_size)), num_rows
                )
            parts.append(_Part(ids, counts, gradients, float(np.int64(rate).view(np.float64)), rows))
        return parts

    @staticmethod
    def _expect_steps(steps: Sequence[int]) -> None:
        if len(set(steps)) > 1:
            raise RuntimeError(
                f"dense workers end different steps: {', '.join(map(str, steps))}. Each has to make or skip all steps, "
                "since small tables are in step"
            )

    def _expect_finite(self, step: int, errors: Sequence[int]) -> None:
        for worker, refused in enumerate(errors):
            if refused >= 0:
                raise RuntimeError(
                    f"step {step} of dense worker {worker}: a gradient of table {self.merged_tables[refused].name} is "
                    "not finite"
                )

    def _expect_rates(self, by_table: Sequence[Sequence[_Part]]) -> None:
        for merged, parts in zip(self.merged_tables, by_table, strict=True):
            rates = {part.rate for part in parts if part.gradients is not None}
            if len(rates) > 1:
                shown = " and ".join(str(each) for each in sorted(rates))
                raise ValueError(f"table {merged.name}: dense workers have different learning rates: {shown}")


def _weights_of(feature: Any) -> npt.NDArray[np.float32]:
    """Returns one weight per id; for a mean each is divided by the length of its list."""
    _, _, pooling, ids, lengths, given = feature
    weights: npt.NDArray[np.float32] = np.ones(len(ids), np.float32) if given is None else given
    if pooling != "mean":
        return weights
    inverse = np.float32(1) / np.maximum(lengths, 1).astype(np.float32)
    scaled: npt.NDArray[np.float32] = weights * np.repeat(inverse, lengths)
    return scaled
