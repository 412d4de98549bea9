# SPDX-License-Identifier: Apache-2.0
"""Collections on a GPU match collections on the CPU: embeddings, updates, counts and evictions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from cuda_ranks import NEEDS_GPU, run_on_gpus, take_device
from headway import _embedding
from headway._embedding import Deduplicator, Keys, ThreadPool, reorder, route
from headway.embedding import LOCAL, Eviction, HashTableCollection, NoRoomError, Optimizer, Sgd
from headway.embedding.keys import from_unique
from table_cases import (
    OPTIMIZERS,
    Batch,
    integer_loss,
    join_batches,
    join_records,
    make_batch,
    make_tables,
    move_batch,
    real_loss,
    records_of,
)

pytestmark = NEEDS_GPU

CPU = torch.device("cpu")
#: For each merged table six columns: ids, table ids, lookup counts, steps of the last lookup, embeddings and optimizer
#: states.
Records = list[list[numpy.ndarray]]

#: Settings of tables, and the tolerance of embeddings. Rows with fewer than ``hot_count`` lookups are kept in bfloat16,
#: and a rounding difference in a sum may round to another bfloat16.
SETTINGS: dict[str, tuple[dict[str, Any], float]] = {
    "plain": ({}, 1e-5),
    "rare": ({"min_count": 2}, 1e-5),
    "cold": ({"hot_count": 3}, 2**-6),
    "evicting": ({"max_rows": 40, "eviction": Eviction(policy="lru")}, 1e-5),
}


# Each test runs in a process of its own: a process that has used CUDA must not fork, and other tests fork.


def make_pair(optimizer: Optimizer, device: torch.device, **more: Any) -> dict[torch.device, HashTableCollection]:
    return {each: make_tables(optimizer, device=each, **more) for each in (CPU, device)}


def expect_equal_keys(ours: Records, theirs: Records, *, columns: int = 4) -> None:
    """Compares the first columns: ids, tables, counts and steps."""
    for one, other in zip(ours, theirs, strict=True):
        for mine, yours in zip(one[:columns], other[:columns], strict=True):
            numpy.testing.assert_array_equal(mine, yours)


def expect_close(ours: Records, theirs: Records, *, rtol: float, atol: float = 1e-6) -> None:
    expect_equal_keys(ours, theirs)
    for one, other in zip(ours, theirs, strict=True):
        for mine, yours in zip(one[4:], other[4:], strict=True):
            numpy.testing.assert_allclose(mine, yours, rtol=rtol, atol=atol)


def expect_same(ours: Records, theirs: Records) -> None:
    expect_equal_keys(ours, theirs, columns=6)


def train_alike(device: torch.device, optimizer: str, settings: str, dedup: str) -> None:
    """Trains on the CPU and on ``device``; the batch of step 3 is empty.

    ``dedup`` says where duplicates are removed: before the exchange (``first``), at the owner rank (``second``), at
    ``both`` or nowhere (``none``).
    """
    table, tolerance = SETTINGS[settings]
    pair = make_pair(OPTIMIZERS[optimizer], device, table=table, dedup=dedup)
    for step in range(5):
        batch = make_batch(step, batch_size=0 if step == 3 else 20, num_ids=60)
        outputs = {each: tables(move_batch(batch, each)) for each, tables in pair.items()}
        for name, embeddings in outputs[CPU].items():
            found = outputs[device][name].cpu()
            assert step > 0 or name != "item" or torch.equal(found, embeddings), "uniform rows begin with the same bits"
            torch.testing.assert_close(found, embeddings, rtol=tolerance, atol=max(tolerance, 1e-6))
        for each, tables in pair.items():
            real_loss(outputs[each]).backward()
            tables.optimizer.step()
    expect_close(records_of(pair[device]), records_of(pair[CPU]), rtol=tolerance, atol=max(tolerance, 1e-6))
    ours, theirs = (pair[each].statistics() for each in (device, CPU))
    assert ours["traffic"] == theirs["traffic"]


def train_all_alike(rank: int, cases: Sequence[tuple[str, str, str]]) -> None:
    device = take_device(rank)
    for case in cases:
        train_alike(device, *case)


@pytest.mark.parametrize("settings", SETTINGS)
def test_vectors_and_learning_are_those_of_the_cpu(settings: str) -> None:
    run_on_gpus(train_all_alike, 1, [(optimizer, settings, "both") for optimizer in OPTIMIZERS])


def test_deduplication_does_not_matter() -> None:
    run_on_gpus(train_all_alike, 1, [("adam", "plain", dedup) for dedup in ("none", "first", "second")])


def learn_weights(rank: int) -> None:
    device = take_device(rank)
    group = dist.group.WORLD if dist.get_world_size() > 1 else None
    for dedup in ("none", "first", "second", "both"):
        found = []
        for each in (CPU, device):
            batch = move_batch(make_batch(rank, batch_size=20), each)
            weights = [torch.linspace(-1, 1, len(batch[name][0]), device=each) for name in ("user", "item", "tags")]
            for name, of_feature in zip(("user", "item", "tags"), weights, strict=True):
                batch[name] = (*batch[name][:2], of_feature.requires_grad_())
            tables = make_tables(device=each, dedup=dedup, process_group=LOCAL if each == CPU else group)
            found.append([gradient.cpu() for gradient in torch.autograd.grad(real_loss(tables(batch)), weights)])
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_weights_have_the_gradients_of_the_cpu(num_ranks: int) -> None:
    run_on_gpus(learn_weights, num_ranks)


def train_micro_batches(rank: int) -> None:
    device = take_device(rank)
    for optimizer in OPTIMIZERS.values():
        small, big = (make_tables(optimizer, device=device) for _ in range(2))
        for step in range(3):
            batches = [make_batch(10 * step + part) for part in range(3)]
            for batch in (move_batch(each, device) for each in batches):
                integer_loss(small(batch), batch).backward()
            small.optimizer.step()
            whole = move_batch(join_batches(batches), device)
            integer_loss(big(whole), whole).backward()
            big.optimizer.step()
        expect_same(records_of(small), records_of(big))


def test_micro_batches_learn_what_the_big_batch_does() -> None:
    run_on_gpus(train_micro_batches, 1)


def train(tables: HashTableCollection, device: torch.device, steps: range) -> None:
    for step in steps:
        batch = move_batch(make_batch(10 * step, batch_size=20, num_ids=400), device)
        integer_loss(tables(batch), batch).backward()
        tables.optimizer.step()


def pending_of(tables: HashTableCollection) -> list[list[Any]]:
    listed = [table.list_pending(0, _embedding.NUM_VIRTUAL_BUCKETS) for table in tables.tables]
    return [[keys.ids.tolist(), keys.counts.tolist()] for keys in listed if keys.counts is not None]


def move_checkpoints(rank: int, folder: str) -> None:
    device = take_device(rank)
    table = {"hot_count": 3, "min_count": 2}
    for optimizer in OPTIMIZERS.values():
        for source, target in ((device, CPU), (CPU, device)):
            saved = make_tables(optimizer, table, device=source)
            train(saved, source, range(3))
            saved.save(folder)
            loaded = make_tables(optimizer, table, device=target)
            loaded.load(folder)
            expect_same(records_of(loaded), records_of(saved))
            assert pending_of(loaded) == pending_of(saved) != [[[], []], [[], []]]
            by_state = make_tables(optimizer, table, device=target)
            by_state.load_state_dict(saved.state_dict())
            expect_same(records_of(by_state), records_of(saved))
            assert pending_of(by_state) == pending_of(saved)
            train(loaded, target, range(3, 5))


def test_checkpoints_go_from_device_to_device_and_keep_their_bits(tmp_path: Path) -> None:
    run_on_gpus(move_checkpoints, 1, str(tmp_path))


def batch_of(rank: int, step: int) -> Batch:
    return make_batch(100 * step + rank, batch_size=0 if rank == 1 and step == 1 else 5 + rank)


def train_integers(rank: int, optimizer: str, dedup: str, *, num_ranks: int | None = None) -> Records:
    """Trains, and returns the records of this rank.

    With ``num_ranks`` a single rank trains on the batches of that many ranks.
    """
    device = take_device(rank)
    group = None if num_ranks else dist.group.WORLD
    tables = make_tables(OPTIMIZERS[optimizer], process_group=group, dedup=dedup, device="cuda")
    for step in range(3):
        batch = join_batches([batch_of(r, step) for r in range(num_ranks)]) if num_ranks else batch_of(rank, step)
        batch = move_batch(batch, device)
        integer_loss(tables(batch), batch).backward()
        tables.optimizer.step()
    return records_of(tables)


def train_all_integers(rank: int, cases: Sequence[tuple[str, str]], num_ranks: int | None = None) -> list[Records]:
    return [train_integers(rank, *case, num_ranks=num_ranks) for case in cases]


def test_ranks_on_gpus_have_the_bits_of_one_rank() -> None:
    cases = [(optimizer, "both") for optimizer in OPTIMIZERS]
    cases += [("adam", dedup) for dedup in ("none", "first", "second")]
    by_rank = run_on_gpus(train_all_integers, 2, cases)
    (expected,) = run_on_gpus(train_all_integers, 1, cases, 2)
    for number in range(len(cases)):
        expect_same(join_records([rank[number] for rank in by_rank]), expected[number])


def train_unlike_losses(rank: int) -> numpy.ndarray:
    """Trains with a loss that uses the tables of 4 columns only on rank 0 in the first step.

    Returns:
        their optimizer states.
    """
    device = take_device(rank)
    tables = make_tables(OPTIMIZERS["adam"], process_group=dist.group.WORLD, device=device)
    pending = tables.begin(move_batch(make_batch(0), device))
    for step in range(2):
        outputs = tables(pending)
        pending = tables.begin(move_batch(make_batch(step + 1), device))
        (outputs["user"].sum() + (outputs["city"].sum() if rank == 0 and step == 0 else 0)).backward()
        tables.optimizer.step()
    return records_of(tables)[1][5]  # Merged table 1 is that of 4 columns.


def test_losses_of_ranks_may_depend_on_different_tables() -> None:
    first_moments = numpy.abs(numpy.concatenate(run_on_gpus(train_unlike_losses, 2))[:, :4])
    assert (first_moments > 0).any(), "rank 0's gradients arrive"
    assert numpy.allclose(first_moments * 10, numpy.round(first_moments * 10), atol=1e-5), "and once"


def train_without_waiting(rank: int) -> None:
    device = take_device(rank)
    for optimizer in OPTIMIZERS.values():
        for dedup in ("both", "none"):
            tables = make_tables(optimizer, device=device, dedup=dedup)
            batches = [move_batch(make_batch(step), device) for step in range(6)]
            for number, batch in enumerate(batches):
                # The first batches allocate memory. From the fourth on, a synchronization with the device raises.
                torch.cuda.set_sync_debug_mode("error" if number >= 3 else "default")
                real_loss(tables(batch)).backward()
                if number % 2 == 1:  # Each step applies the gradients of two batches.
                    tables.optimizer.step()
            torch.cuda.set_sync_debug_mode("default")


def test_one_rank_does_not_wait_for_the_device() -> None:
    run_on_gpus(train_without_waiting, 1)


def train_scaled(device: torch.device, scale: float | None, *, unscales: bool = False) -> tuple[Records, float]:
    """Trains with a GradScaler, as in half precision; one gradient overflows."""
    tables = make_tables(Sgd(lr=2**-6), device=device)
    scaler = torch.amp.GradScaler("cuda", init_scale=scale or 1.0, growth_interval=1000, enabled=scale is not None)
    for step in range(4):
        outputs = tables(move_batch(make_batch(step), device))
        loss = outputs["user"].sum() + outputs["city"].sum()
        if step == 2:
            if scale is None:
                continue
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        if unscales and scale is not None:
            scaler.unscale_(tables.optimizer)
        scaler.step(tables.optimizer)
        scaler.update()
    return records_of(tables), scaler.get_scale()


def train_with_scalers(rank: int) -> None:
    device = take_device(rank)
    plain, _ = train_scaled(device, None)
    for unscales in (False, True):
        scaled, scale = train_scaled(device, 2.0**12, unscales=unscales)
        assert scale == 2.0**11, "the overflow was seen"
        for ours, expected in zip(scaled, plain, strict=True):
            numpy.testing.assert_array_equal(ours[0], expected[0])
            numpy.testing.assert_allclose(ours[4], expected[4], atol=1e-6)


def test_loss_scaling_is_undone_and_steps_that_overflow_are_skipped() -> None:
    run_on_gpus(train_with_scalers, 1)


def refuse_ids(rank: int) -> None:
    device = take_device(rank)
    tables = make_tables(table={"max_rows": 3}, device=device, strict=True)
    with pytest.raises(NoRoomError, match="ids got no row: their table is full"):
        tables(move_batch(make_batch(5), device))
    roomy = make_tables(device=device, strict=True)
    roomy(move_batch(make_batch(5), device))


def test_full_tables_raise_if_that_is_wanted() -> None:
    run_on_gpus(refuse_ids, 1)


def mix_devices(rank: int) -> None:
    device = take_device(rank)
    batch = make_batch(1)
    with pytest.raises(ValueError, match=f"feature user: values must be .* on {device}, not .* on the CPU"):
        make_tables(device=device)(batch)
    with pytest.raises(ValueError, match=f"feature user: values must be .* on the CPU, not .* on {device}"):
        make_tables()(move_batch(batch, device))
    with pytest.raises(ValueError, match="num_threads is for tables on the CPU"):
        make_tables(device=device, num_threads=2)
    table, ids = make_tables(device=device).tables[0], torch.arange(3)
    assert table.device == device
    with pytest.raises(ValueError, match=f"ids must be a contiguous Long tensor on {device}, not Long on the CPU"):
        table.find(Keys(ids))
    with pytest.raises(ValueError, match=f"tables must be a contiguous Int tensor on {device}, not Int on the CPU"):
        Keys(ids.to(device), torch.zeros(3, dtype=torch.int32))
    with pytest.raises(ValueError, match="ids must be a contiguous Long tensor on the CPU"):
        table.export_records(Keys(ids.to(device)))


def test_tensors_of_other_devices_are_named() -> None:
    run_on_gpus(mix_devices, 1)


def find_unique_keys(rank: int) -> None:
    device = take_device(rank)
    ids, tables = torch.tensor([5, 7, 5, 9, 5]), torch.tensor([1, 1, 1, 2, 1], dtype=torch.int32)
    keys = Keys(ids.to(device), tables.to(device))
    unique = Deduplicator(ThreadPool(1), device).deduplicate(keys)
    assert unique.keys.num_known is not None and unique.keys.are_unique
    assert len(unique.keys) == 5 and len(unique) == 3  # The tensors have room for all 5 keys; 3 are unique.
    known = unique.narrow(3).keys
    assert known.num_known is None
    found = sorted(zip(known.ids.tolist(), known.tables.tolist(), known.counts.tolist(), strict=True))
    assert found == [(5, 1, 3), (7, 1, 1), (9, 2, 1)]
    with pytest.raises(ValueError, match="there are not 6 unique keys, but at most 5"):
        unique.narrow(6)
    assert len(from_unique(keys)) == 5 and not from_unique(keys).keys.are_unique
    for ours, theirs in zip(route(keys, 4), route(Keys(ids, tables), 4), strict=True):
        assert torch.equal(ours.cpu(), theirs)
    order, counts = route(unique.keys, 4)
    swapped = reorder(unique, order)
    assert swapped.keys.num_known is not None and len(swapped) == 3
    assert torch.equal(swapped.keys.ids[:3], unique.keys.ids[order[:3]])
    assert torch.equal(swapped.keys.ids[swapped.inverse_indices], keys.ids)
    by_owner, counts_R = Deduplicator(ThreadPool(1), device).sort_by_owner(unique, 4)
    assert torch.equal(by_owner.keys.ids[:3], swapped.keys.ids[:3]) and torch.equal(counts_R, counts)
    assert torch.equal(reorder(unique.narrow(3), order[:3]).keys.counts, swapped.narrow(3).keys.counts)
    with pytest.raises(ValueError, match="not one place in the order for each unique key"):
        reorder(unique, order[:4])


def test_only_the_device_knows_how_many_unique_keys_there_are() -> None:
    run_on_gpus(find_unique_keys, 1)
