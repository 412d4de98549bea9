# SPDX-License-Identifier: Apache-2.0
"""Ranks that share tables have the embeddings and updates of a single rank."""

from __future__ import annotations

from typing import Any

import headway
import numpy
import pytest
import torch
import torch.distributed as dist
from headway.embedding import Eviction, FeatureConfig, HashTableCollection, Sgd, TableConfig
from rank_processes import BACKENDS, run_ranks
from table_cases import (
    OPTIMIZERS,
    integer_loss,
    join_batches,
    join_records,
    make_batch,
    make_tables,
    real_loss,
    records_of,
    same,
)

STEPS = 3
#: Duplicates are removed before the exchange (first), or at the owner (second).
DEDUPS = ["none", "first", "second", "both"]


def batch_of(rank: int, step: int) -> Any:
    # Ranks have some ids in common, and different batch sizes. One batch is empty.
    return make_batch(100 * step + rank, batch_size=0 if rank == 1 and step == 1 else 5 + rank)


def train_integers(rank: int, optimizer: str, dedup: str, *, num_ranks: int | None = None) -> Any:
    """Trains, and returns the records of this rank.

    With ``num_ranks`` a single rank trains on the batches of that many ranks.
    """
    group = None if num_ranks else dist.group.WORLD
    tables = make_tables(OPTIMIZERS[optimizer], process_group=group, dedup=dedup)
    for step in range(STEPS):
        batch = join_batches([batch_of(r, step) for r in range(num_ranks)]) if num_ranks else batch_of(rank, step)
        integer_loss(tables(batch), batch).backward()
        tables.optimizer.step()
    return records_of(tables)


def train_all(rank: int, cases: list[tuple[str, str]]) -> list[Any]:
    return [train_integers(rank, *case) for case in cases]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_tables_are_bit_identical_to_those_of_one_rank(num_ranks: int, backend: str) -> None:
    cases = [(optimizer, dedup) for optimizer in OPTIMIZERS for dedup in DEDUPS]
    by_rank = run_ranks(train_all, num_ranks, cases, backend=backend)
    for number, (optimizer, dedup) in enumerate(cases):
        expected = train_integers(0, optimizer, "both", num_ranks=num_ranks)
        found = join_records([rank[number] for rank in by_rank])
        for ours, theirs in zip(found, expected, strict=True):
            assert all((a == b).all() for a, b in zip(ours, theirs, strict=True)), (optimizer, dedup)


def train_one_table(rank: int, strict: bool, *, num_ranks: int | None = None) -> Any:
    tables = HashTableCollection(
        tables=[TableConfig("items", dim=8, optimizer=OPTIMIZERS["adagrad"])],
        features=[FeatureConfig("item", table="items"), FeatureConfig("city", table="items", pooling="sum")],
        process_group=None if num_ranks else dist.group.WORLD,
        gradient_reduction="sum",
        strict=strict,
    )
    for step in range(STEPS):
        batch = join_batches([batch_of(r, step) for r in range(num_ranks)]) if num_ranks else batch_of(rank, step)
        integer_loss(tables(batch), batch).backward()
        tables.optimizer.step()
    return records_of(tables)


@pytest.mark.parametrize("strict", [False, True])
def test_one_table_alone_is_that_of_one_rank_too(strict: bool) -> None:
    found = join_records(run_ranks(train_one_table, 3, strict, backend="headway"))
    assert same(found, train_one_table(0, strict, num_ranks=3))


def train_reals(rank: int, num_ranks: int | None = None) -> tuple[Any, Any]:
    group = None if num_ranks else dist.group.WORLD
    tables = make_tables(OPTIMIZERS["adam"], process_group=group)
    for step in range(STEPS):
        batch = join_batches([batch_of(r, step) for r in range(num_ranks)]) if num_ranks else batch_of(rank, step)
        outputs = tables(batch)
        real_loss(outputs).backward()
        tables.optimizer.step()
    return records_of(tables), {name: embeddings.detach().numpy() for name, embeddings in outputs.items()}


def test_real_gradients_give_the_same_bits_from_run_to_run_and_nearly_those_of_one_rank() -> None:
    first, again = (run_ranks(train_reals, 3, backend="headway") for _ in range(2))
    expected, outputs = train_reals(0, num_ranks=3)
    one, other = (join_records([rank[0] for rank in run]) for run in (first, again))
    assert same(one, other)
    for ours, theirs in zip(one, expected, strict=True):
        assert all((a == b).all() for a, b in zip(ours[:4], theirs[:4], strict=True))
        assert numpy.allclose(ours[4], theirs[4], rtol=1e-4, atol=1e-5)
    for name, embeddings in outputs.items():
        assert numpy.allclose(numpy.concatenate([rank[1][name] for rank in first]), embeddings, rtol=1e-4, atol=1e-5)


def count_traffic(rank: int) -> dict[str, Any]:
    result = {}
    for dedup in DEDUPS:
        tables = make_tables(process_group=dist.group.WORLD, dedup=dedup)
        batch = make_batch(7 * rank, batch_size=40, num_ids=20)
        real_loss(tables(batch)).backward()
        result[dedup] = tables.statistics()["traffic"]
    return result


def test_duplicates_are_not_sent_and_not_looked_up() -> None:
    by_rank = run_ranks(count_traffic, 2, backend="gloo")
    sums = {dedup: {name: sum(rank[dedup][name] for rank in by_rank) for name in by_rank[0][dedup]} for dedup in DEDUPS}
    none, first, second, both = (sums[dedup] for dedup in DEDUPS)
    # Keys of the batches, sent to their owners (routed), received there, and looked up there (found).
    assert none["keys_routed"] == none["keys"] == second["keys_routed"] == none["keys_received"]
    assert first["keys_routed"] == both["keys_routed"] < none["keys"] / 2
    assert first["keys_found"] == first["keys_routed"] and none["keys_found"] == none["keys"]
    assert second["keys_found"] == both["keys_found"] < first["keys_found"]
    assert both["id_bytes"] == first["id_bytes"] < none["id_bytes"] / 2
    assert both["vector_bytes"] == both["gradient_bytes"] < none["vector_bytes"] / 2
    # About half of the keys belong to the other rank and cost 16 bytes each.
    assert none["id_bytes"] == pytest.approx(none["keys"] * 16 / 2, rel=0.3)


def evict(rank: int) -> Any:
    limits = {"max_rows": 120, "eviction": Eviction(policy="lfu")}
    tables = make_tables(table=limits, process_group=dist.group.WORLD, strict=True)
    for step in range(30):
        batch = make_batch(10 * step + rank, batch_size=3, num_ids=10 * (step + 1))
        integer_loss(tables(batch), batch).backward()
        tables.optimizer.step()
    return tables.statistics()["tables"]


def test_ranks_evict_what_is_beyond_their_share() -> None:
    for statistics in run_ranks(evict, 2):
        assert statistics["items"]["evicted"] > 0
        # Half of 120 rows, and a tenth more.
        assert all(statistics[name]["rows"] <= 66 for name in ("users", "items", "cities"))


def refuse(rank: int) -> str:
    tables = make_tables(table={"max_rows": 40}, process_group=dist.group.WORLD, strict=True)
    try:
        for step in range(20):
            tables(make_batch(10 * step if rank == 0 else 1, num_ids=400))
    except RuntimeError as error:
        return str(error)
    return "all have room"


def test_all_ranks_hear_of_a_table_that_is_full() -> None:
    for message in run_ranks(refuse, 2):
        assert "ids got no row" in message


def unlike_losses(rank: int) -> Any:
    """Trains with a loss that uses the tables of 4 columns only on rank 0 in the first step. Returns their records."""
    tables = make_tables(OPTIMIZERS["adam"], process_group=dist.group.WORLD)
    for step in range(2):
        outputs = tables(make_batch(step))
        (outputs["user"].sum() + (outputs["city"].sum() if rank == 0 and step == 0 else 0)).backward()
        tables.optimizer.step()
    return records_of(tables)[1]  # Merged table 1 is that of 4 columns.


def test_losses_of_ranks_may_depend_on_different_tables() -> None:
    states = numpy.concatenate([records[5] for records in run_ranks(unlike_losses, 2)])  # Column 5: optimizer states.
    first_moments = numpy.abs(states[:, :4])
    assert (first_moments > 0).any(), "rank 0's gradients arrive"
    # In the second step no rank has a gradient: Adam's first moments are those of one step with gradients 1, 2, ...
    assert numpy.allclose(first_moments * 10, numpy.round(first_moments * 10), atol=1e-5)


def mean_gradients(rank: int) -> Any:
    tables = HashTableCollection(
        tables=[TableConfig("t", dim=1, optimizer=Sgd(lr=1.0))],
        features=[FeatureConfig("f", table="t")],
        process_group=dist.group.WORLD,
    )
    one = {"f": (torch.tensor([7]), torch.tensor([1]))}
    before = tables(one)["f"]
    before.sum().backward()
    tables.optimizer.step()
    return float(tables(one)["f"] - before)


def test_gradients_are_averaged_over_ranks_as_those_of_ddp() -> None:
    assert run_ranks(mean_gradients, 2) == [-1.0, -1.0]


def mean_of_bags(rank: int, gradient_reduction: str) -> Any:
    tables = make_tables(OPTIMIZERS["adam"], process_group=dist.group.WORLD, gradient_reduction=gradient_reduction)
    batch = batch_of(rank, 0)
    loss = integer_loss(tables(batch), batch)
    (loss / 2 if gradient_reduction == "sum" else loss).backward()
    tables.optimizer.step()
    return records_of(tables)


def test_a_mean_over_ranks_is_a_sum_of_what_is_divided_before() -> None:
    of_means, of_sums = (run_ranks(mean_of_bags, 2, reduction) for reduction in ("mean", "sum"))
    for ours, theirs in zip(of_means, of_sums, strict=True):
        assert same(ours, theirs)


def lose_a_rank(rank: int) -> str:
    tables = make_tables(process_group=dist.group.WORLD)
    batch = make_batch(rank)
    integer_loss(tables(batch), batch).backward()
    if rank == 1:
        return "left"
    with pytest.raises(dist.DistBackendError) as raised:
        tables(batch)
    with pytest.raises(ValueError, match="an exchange of these tables has failed"):
        tables(batch)
    return str(raised.value)


def test_a_lost_rank_is_an_error_and_no_hang() -> None:
    message, _ = run_ranks(lose_a_rank, 2, timeout_s=5, may_die=True)
    assert "rank" in message or "peer" in message, message


def count_exchanges(rank: int) -> list[tuple[int, int]]:
    tables, counts = make_tables(Sgd(lr=0.5)), []
    for step in range(2):
        batch = batch_of(rank, step)
        headway.reset_stats()
        outputs = tables(batch)
        forward = headway.stats()["operations"]
        integer_loss(outputs, batch).backward()
        counts.append((forward, headway.stats()["operations"] - forward))
        tables.optimizer.step()
    return counts


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_a_step_over_a_headway_group_takes_two_exchanges_forward_and_one_backward(num_ranks: int) -> None:
    for counts in run_ranks(count_exchanges, num_ranks, backend="headway"):
        assert counts == [(2, 1), (2, 1)]
