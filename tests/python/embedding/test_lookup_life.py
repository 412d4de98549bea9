# SPDX-License-Identifier: Apache-2.0
"""Lookups that fail, are dropped, or meet other threads and processes: the tables stay usable, and no drop blocks."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from headway.embedding import FeatureConfig, HashTableCollection, NoRoomError, Sgd, TableConfig
from rank_processes import BACKENDS, run_ranks
from table_cases import make_batch, make_tables, real_loss

IDS = {"f": (torch.tensor([1, 2, 1]), torch.tensor([2, 1]))}


def make_one(**others: Any) -> HashTableCollection:
    table = TableConfig("t", dim=2, optimizer=Sgd(lr=1.0), **others)
    return HashTableCollection(tables=[table], features=[FeatureConfig("f", table="t", pooling="sum")])


def test_after_an_error_one_rank_goes_on() -> None:
    tables = make_one()
    with pytest.raises(ValueError, match="add up"):
        tables({"f": (torch.tensor([1, 2]), torch.tensor([1]))})
    other = make_tables()
    with pytest.raises(ValueError, match="begun in other tables"):
        tables(other.begin(make_batch(1)))
    assert tables(IDS)["f"].shape == (2, 2)


@pytest.mark.parametrize("reader", ["forward", "anchor", "step"])
def test_gradients_that_were_changed_in_place_are_refused(reader: str) -> None:
    tables = make_one()
    output = tables(IDS)["f"]
    gradients = torch.ones_like(output)
    output.backward(gradients)
    gradients.mul_(2)
    with pytest.raises(RuntimeError, match="changed in place"):
        if reader == "forward":
            tables(IDS)
        elif reader == "anchor":  # The dummy parameter of a table, whose grad a GradScaler reads.
            _ = tables.optimizer.param_groups[0]["params"][0].grad
        else:
            tables.optimizer.step()


def test_a_graph_is_used_twice_only_if_it_was_retained() -> None:
    tables = make_one()
    loss = tables(IDS)["f"].sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
    norm = tables.gradient_norm()
    tables.optimizer.zero_grad()
    loss = tables(IDS)["f"].sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert torch.equal(tables.gradient_norm(), 2 * norm)


def test_a_collection_is_freed_with_a_pending_gradient_of_its_own_weights() -> None:
    tables = make_one()
    weights = tables(IDS)["f"].flatten()[:3]
    ids, lengths = IDS["f"]
    tables({"f": (ids, lengths, weights)})["f"].sum().backward()
    freed = []

    class Watch:
        def __del__(self) -> None:
            freed.append(True)

    weights.grad_fn.metadata["watch"] = Watch()
    del weights
    assert freed, "the pending gradient keeps the graph of the weights"


def begin_and_finish(rank: int) -> int:
    tables = make_one()
    failures: list[BaseException] = []

    def begin() -> None:
        try:
            for _ in range(200):
                tables.begin(IDS)
        except ValueError as error:
            failures.append(error)

    thread = threading.Thread(target=begin)
    thread.start()
    for _ in range(200):
        tables(IDS)["f"].sum().backward()
        tables.optimizer.step()
    thread.join()
    return len(failures)


def test_another_thread_may_begin_batches_of_one_rank() -> None:
    assert begin_and_finish(0) == 0


def drop_a_batch(rank: int) -> float:
    tables = make_tables(Sgd(lr=0.5), process_group=dist.group.WORLD)
    if rank == 1:
        time.sleep(1.5)
    pending = tables.begin(make_batch(rank))
    started = time.monotonic()
    del pending
    return time.monotonic() - started


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_that_is_dropped_does_not_wait_for_peers(backend: str) -> None:
    durations_s = run_ranks(drop_a_batch, 2, backend=backend)
    assert max(durations_s) < 1


def train_or_evaluate(rank: int) -> str:
    tables = make_tables(Sgd(lr=0.5), process_group=dist.group.WORLD, strict=True)
    tables.train(rank == 0)
    with torch.no_grad():
        tables(make_batch(rank))
    return "done"


@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_may_train_and_evaluate_at_once(backend: str) -> None:
    assert run_ranks(train_or_evaluate, 2, backend=backend) == ["done"] * 2


def look_up_in_a_child(rank: int) -> tuple[int, str]:
    tables = make_tables(Sgd(lr=0.5), process_group=dist.group.WORLD)
    batch = make_batch(rank)
    real_loss(tables(batch)).backward()
    child = os.fork()
    if child == 0:
        try:
            tables(batch)
        except ValueError as error:
            os._exit(7 if "parent" in str(error) else 8)
        os._exit(9)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    tables(batch)
    return status, "done"


def test_a_forked_child_does_not_use_the_group_of_its_parent() -> None:
    assert run_ranks(look_up_in_a_child, 2, backend="headway") == [(7, "done")] * 2


def interrupt(rank: int) -> float:
    tables = make_tables(Sgd(lr=0.5), process_group=dist.group.WORLD)
    tables(make_batch(rank))
    if rank == 1:
        time.sleep(8)
        return 0.0
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        tables(make_batch(rank))
    return time.monotonic() - started


def test_ctrl_c_ends_the_wait_for_a_peer() -> None:
    duration_s, _ = run_ranks(interrupt, 2, backend="headway")
    assert duration_s < 5


def look_up_after_destruction(rank: int) -> str:
    tables = make_tables(Sgd(lr=0.5), process_group=dist.group.WORLD)
    tables(make_batch(rank))
    dist.barrier()
    dist.destroy_process_group()
    with pytest.raises(RuntimeError, match=r"shut down|destroyed"):
        tables(make_batch(rank))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return "done"


def test_the_group_of_a_collection_may_be_destroyed() -> None:
    assert run_ranks(look_up_after_destruction, 2, backend="headway") == ["done"] * 2


def test_a_full_table_does_not_break_the_collection() -> None:
    table = TableConfig("t", dim=2, optimizer=Sgd(lr=1.0), max_rows=1)
    tables = HashTableCollection(tables=[table], features=[FeatureConfig("f", table="t", pooling="sum")], strict=True)
    with pytest.raises(NoRoomError):
        tables(IDS)
    assert tables({"f": (torch.tensor([1]), torch.tensor([1]))})["f"].shape == (1, 2)
