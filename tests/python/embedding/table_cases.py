# SPDX-License-Identifier: Apache-2.0
"""Tables, batches and training loops that tests of collections share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import torch
import torch.distributed as dist
from headway.embedding import (
    Adagrad,
    Adam,
    Constant,
    FeatureConfig,
    HashTableCollection,
    Optimizer,
    RowWiseAdagrad,
    RowWiseAdam,
    Sgd,
    TableConfig,
    Uniform,
)

OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": Sgd(lr=0.25),
    "adagrad": Adagrad(lr=0.05),
    "row_wise_adagrad": RowWiseAdagrad(lr=0.05),
    "adam": Adam(lr=0.01),
    "row_wise_adam": RowWiseAdam(lr=0.01),
}
TABLE_OF = {"user": "users", "item": "items", "tags": "items", "city": "cities"}
POOLING = {"user": "sum", "item": None, "tags": "mean", "city": "sum"}
Batch = dict[str, tuple[torch.Tensor, ...]]


def make_tables(
    optimizer: Optimizer | None = None, table: dict[str, Any] | None = None, **more: Any
) -> HashTableCollection:
    """Makes two tables of 8 columns, which are merged (they share storage), and one of 4.

    Two features share the table ``items``.

    ``table`` has further arguments of each table, ``more`` those of the collection.
    """
    optimizer = optimizer or Sgd(lr=0.25)
    table = {"optimizer": optimizer, "initializer": Uniform(-1, 1), **(table or {})}
    return HashTableCollection(
        tables=[
            TableConfig("users", dim=8, **table),
            TableConfig("items", dim=8, **table),
            TableConfig("cities", dim=4, **table),
        ],
        features=[
            FeatureConfig("user", table="users", pooling="sum"),
            FeatureConfig("item", table="items", pooling=None),
            FeatureConfig("tags", table="items", pooling="mean"),
            FeatureConfig("city", table="cities", pooling="sum"),
        ],
        **{"seed": 11, "gradient_reduction": "sum", **more},
    )


def make_batch(seed: int, *, batch_size: int = 6, num_ids: int = 40) -> Batch:
    """Makes a batch of arbitrary 64-bit ids with many duplicates. Lists may be empty."""
    generator = torch.Generator().manual_seed(seed)

    def ids(count: int) -> torch.Tensor:
        small = torch.randint(num_ids, (count,), generator=generator)
        return small * 0x5DEECE66D1234567 - (small % 3)

    batch: Batch = {}
    for name in POOLING:
        lengths = torch.randint(5, (batch_size,), generator=generator)
        batch[name] = (ids(int(lengths.sum())), lengths)
    values, lengths = batch["user"]
    batch["user"] = (values, lengths, torch.randint(1, 4, (len(values),), generator=generator).float())
    return batch


def join_batches(batches: Sequence[Batch]) -> Batch:
    """Concatenates batches to one with all their lists, in order."""
    return {
        name: tuple(torch.cat(columns) for columns in zip(*(b[name] for b in batches), strict=True)) for name in POOLING
    }


def move_batch(batch: Batch, device: torch.device | str) -> Batch:
    return {name: tuple(column.to(device) for column in columns) for name, columns in batch.items()}


def integer_loss(outputs: dict[str, torch.Tensor], batch: Batch) -> torch.Tensor:
    """Returns a loss whose gradients are small integers, so sums are exact. They do not depend on the embeddings."""
    losses = []
    for name, embeddings in outputs.items():
        if name == "tags":
            # Gradients of a mean are not integers: multiply the mean back to a sum.
            embeddings = embeddings * batch[name][1].clamp(min=1).unsqueeze(1)
        columns = torch.arange(embeddings.size(1), device=embeddings.device) % 3 + 1
        losses.append((embeddings * columns).sum())
    return sum(losses)


def real_loss(outputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Returns a weighted sum of squares: gradients depend on the embeddings."""
    return sum(
        (embeddings.square() * torch.linspace(0.5, 1.5, embeddings.size(1), device=embeddings.device)).sum()
        for embeddings in outputs.values()
    )


def records_of(tables: HashTableCollection) -> list[list[numpy.ndarray]]:
    """Returns for each merged table the columns of this rank's records, as arrays.

    They are ids, table ids, lookup counts, steps of the last lookup, embeddings and optimizer states.
    """
    result = []
    for table in tables.tables:
        keys = table.list(0, 1 << 14)  # All virtual buckets of the ids' hash.
        assert keys.tables is not None
        result.append([each.numpy().copy() for each in (keys.ids, keys.tables, *table.export_records(keys))])
    return result


def join_records(by_rank: Sequence[list[list[numpy.ndarray]]]) -> list[list[numpy.ndarray]]:
    """Concatenates the records of all ranks in the order of one rank: ranks own ascending ranges of virtual buckets."""
    return [[numpy.concatenate(column) for column in zip(*table, strict=True)] for table in zip(*by_rank, strict=True)]


def make_one(process_group: dist.ProcessGroup | None = None, **table: Any) -> HashTableCollection:
    """Makes a collection with one table, whose embeddings begin as 0."""
    return HashTableCollection(
        tables=[TableConfig("t", dim=2, optimizer=Sgd(lr=1), initializer=Constant(0), **table)],
        features=[FeatureConfig("f", table="t")],
        process_group=process_group,
    )


def look_up(tables: HashTableCollection, *ids: int) -> torch.Tensor:
    return tables({"f": (torch.tensor(ids), torch.tensor([len(ids)]))})["f"]


def vectors_of(tables: HashTableCollection) -> dict[int, float]:
    """Returns the first element of each embedding, by id."""
    ids, _, _, _, embeddings, _ = records_of(tables)[0]
    return {int(each): float(vector[0]) for each, vector in zip(ids, embeddings, strict=True)}


def train(tables: HashTableCollection, steps: range, part: int = 0) -> None:
    """Trains one step per batch. Batches differ between values of ``part``, which is mostly the rank."""
    for step in steps:
        batch = make_batch(10 * step + part, batch_size=20, num_ids=400)
        integer_loss(tables(batch), batch).backward()
        tables.optimizer.step()


def pending_of(tables: HashTableCollection) -> dict[tuple[int, int, int], int]:
    """Returns the lookup counts of pending keys, which have no row yet, by (merged table, table id, id)."""
    found = {}
    for number, table in enumerate(tables.tables):
        keys = table.list_pending(0, 1 << 14)
        assert keys.tables is not None and keys.counts is not None
        columns = zip(keys.tables.tolist(), keys.ids.tolist(), keys.counts.tolist(), strict=True)
        found.update({(number, table_id, key): count for table_id, key, count in columns})
    return found


def join_pending(parts: list[dict[Any, int]]) -> dict[Any, int]:
    joined = {key: count for part in parts for key, count in part.items()}
    assert len(joined) == sum(map(len, parts)), "a key is on two ranks"
    return joined


def same(one: list[list[Any]], other: list[list[Any]]) -> bool:
    """Are records equal, bit by bit?"""
    return all(
        len(a) == len(b) and (a == b).all() for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True)
    )
