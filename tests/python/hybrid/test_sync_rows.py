# SPDX-License-Identifier: Apache-2.0
"""Small tables on dense workers (``sync_rows``): in step, with equal bits everywhere, and saved as tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from headway import hybrid
from headway._embedding import NUM_VIRTUAL_BUCKETS
from headway.comm.rank_processes import run_ranks
from headway.embedding import (
    LOCAL,
    Adam,
    CheckpointError,
    Eviction,
    FeatureConfig,
    HashTableCollection,
    RowWiseAdagrad,
    Sgd,
    TableConfig,
    Uniform,
)
from headway.hybrid.config import ServersConfig, WorkersConfig
from headway.hybrid.lookups import SplitLayout
from hybrid_cases import read_embeddings, same
from parameter_servers import embedding_workers, parameter_servers

STEPS = 12
FEATURES = [
    FeatureConfig("city", table="city", pooling="mean"),
    FeatureConfig("user", table="user"),
    FeatureConfig("hour", table="hour", pooling=None),
    FeatureConfig("home", table="city"),
]


def table_configs(*, user_learns: bool = True) -> list[TableConfig]:
    """``city`` and ``hour`` are small."""
    initializer = Uniform(-1.0, 1.0)
    user = {"optimizer": Sgd(lr=0.1)} if user_learns else {"optimizer": Sgd(lr=0.0)}
    return [
        TableConfig("city", dim=3, initializer=initializer, optimizer=Adam(lr=0.05), max_rows=100),
        TableConfig("user", dim=4, initializer=initializer, **user),
        TableConfig("hour", dim=2, initializer=initializer, optimizer=RowWiseAdagrad(lr=0.1), max_rows=100),
    ]


def batch_of(step: int, rank: int, samples: int = 6) -> hybrid.Batch:
    draw = torch.Generator().manual_seed(100 * step + rank)
    features = {}
    for feature in FEATURES:
        one = torch.ones(samples, dtype=torch.int64)
        lengths = torch.randint(0, 4, (samples,), generator=draw) if feature.pooling == "mean" else one
        features[feature.name] = (torch.randint(0, 30, (int(lengths.sum()),), generator=draw), lengths)
    return hybrid.Batch(features, torch.rand(samples, 3, generator=draw), torch.rand(samples, 1, generator=draw))


def connect(addresses: list[str], mode: str, *, user_learns: bool = True, **settings: Any) -> Any:
    values = {"mode": mode, "servers": {"addresses": addresses}, "job": {"timeout_s": 30}, **settings}
    configs = table_configs(user_learns=user_learns)
    return hybrid.connect(hybrid.HybridConfig.of(values), tables=configs, features=FEATURES, seed=7)


def collection(*, user_learns: bool = True, **options: Any) -> HashTableCollection:
    return HashTableCollection(
        tables=table_configs(user_learns=user_learns), features=FEATURES, gradient_reduction="sum", seed=7, **options
    )


def train(tables: Any, source: list[hybrid.Batch], group: dist.ProcessGroup | None = None) -> list[float]:
    """Trains and returns the losses. Gradients of the dense model are added over workers."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3 + 4 + 2 + 3 + 3, 1)
    dense = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for batch in hybrid.batches(tables, source):
        dense.zero_grad()
        found = tables(batch.features)
        loss = (model(torch.cat([*found.values(), batch.dense], dim=1)) - batch.labels).square().sum() / 16
        loss.backward()
        if group is not None:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=group)
        dense.step()
        tables.optimizer.step()
        losses.append(loss.item())
    return losses


def read(tables: Any) -> dict[str, torch.Tensor]:
    """Embeddings of many ids."""
    return read_embeddings(tables, batch_of(99, 0, samples=200).features)


@pytest.fixture
def two_servers() -> Iterator[list[str]]:
    with parameter_servers(2) as addresses:
        yield addresses


HYBRID: dict[str, Any] = {"mode": "hybrid", "staleness": 3, "order": "exact"}


def test_small_tables_learn_the_bits_of_synchronous_training(two_servers: list[str]) -> None:
    source = [batch_of(step, 0) for step in range(STEPS)]
    tables = connect(two_servers, **HYBRID, sync_rows=100, user_learns=False)
    losses = train(tables, source)
    with parameter_servers(1) as addresses:
        expected = connect(addresses, "sync", user_learns=False)
        assert train(expected, source) == losses
        assert same(read(tables), read(expected))
    ids = {each.name: {int(i) for batch in source for i in batch.features[each.name][0]} for each in FEATURES}
    assert tables.small_rows() == {"city": len(ids["city"] | ids["home"]), "hour": len(ids["hour"])}
    with parameter_servers(1) as addresses:
        assert train(connect(addresses, **HYBRID, user_learns=False), source) != losses, "without it they are stale"


def worker(rank: int, send: object, *, addresses: list[str], counts: list[int], **settings: Any) -> Any:
    """A dense worker that trains on ``counts[rank]`` batches; returns losses of all, and whether replicas are equal."""
    group = dist.group.WORLD
    tables: Any = connect(addresses, user_learns=False, **settings)
    source = [batch_of(step, rank, samples=4 + 3 * rank) for step in range(counts[rank])]
    own = torch.tensor(train(tables, source, group))
    dist.all_reduce(own, group=group)
    tables.drain()
    of_worker = torch.cat([each.flatten() for each in read(tables).values()])
    of_all = [torch.empty_like(of_worker) for _ in counts]
    dist.all_gather(of_all, of_worker, group=group)
    return own.tolist(), of_worker.tolist(), all(torch.equal(of_worker, each) for each in of_all)


@pytest.mark.parametrize("counts", [[STEPS, 5], [7, STEPS, STEPS]])
def test_workers_have_replicas_of_equal_bits_as_if_servers_were_in_step(
    two_servers: list[str], counts: list[int]
) -> None:
    run = partial(run_ranks, num_ranks=len(counts), timeout_s=120, backend="gloo", wait_s=60)
    found = run(partial(worker, addresses=list(two_servers), counts=counts, sync_rows=100, **HYBRID))
    assert found[2], "replicas of all workers"
    with parameter_servers(1) as addresses:
        assert run(partial(worker, addresses=list(addresses), counts=counts, mode="sync")) == found


def test_checkpoints_are_those_of_a_collection(two_servers: list[str], tmp_path: Path) -> None:
    source = [batch_of(step, 0) for step in range(STEPS)]
    settings = {"mode": "hybrid", "staleness": 0, "sync_rows": 100}
    tables = connect(two_servers, **settings)
    losses = train(tables, source[:6])
    expected = collection(process_group=LOCAL)
    assert train(expected, source[:6]) == losses
    tables.save(tmp_path / "servers")
    expected.save(tmp_path / "collection")
    loaded = collection(process_group=LOCAL)
    loaded.load(tmp_path / "servers")
    assert loaded.step == 6 and same(read(loaded), read(expected))
    found, wanted = records_of(loaded), records_of(expected)
    assert {name: found[name] for name in ("city", "hour")} == {name: wanted[name] for name in ("city", "hour")}
    losses = train(expected, source[6:])
    assert train(loaded, source[6:]) == losses
    assert train(tables, source[6:]) == losses, "it goes on after a checkpoint"
    with parameter_servers(3) as others:
        third = connect(others, **settings)
        train(third, source[:2])
        third.load(tmp_path / "collection")
        assert third.step == 6
        assert train(third, source[6:]) == losses
        assert same(read(third), read(expected))


def records_of(tables: HashTableCollection) -> dict[str, Any]:
    """Returns all rows of a collection: ids to counts, steps, embeddings and states."""
    found = {}
    for merged, table in zip(tables.merged_tables, tables.tables, strict=True):
        keys = table.list(0, NUM_VIRTUAL_BUCKETS)
        columns = [each.tolist() for each in table.export_records(keys)]
        found[merged.name] = dict(zip(keys.ids.tolist(), zip(*columns, strict=True), strict=True))
    return found


def test_a_load_that_fails_changes_nothing(two_servers: list[str], tmp_path: Path) -> None:
    source = [batch_of(step, 0) for step in range(4)]
    tables = connect(two_servers, **HYBRID, sync_rows=100)
    train(tables, source)
    before = read(tables)
    other = TableConfig("hour", dim=2, initializer=Uniform(-1.0, 1.0), optimizer=Adam(lr=0.1), max_rows=100)
    configs = [*table_configs()[:2], other]
    with parameter_servers(1) as addresses:
        config = hybrid.HybridConfig.of({**HYBRID, "sync_rows": 100, "servers": {"addresses": addresses}})
        third = hybrid.connect(config, tables=configs, features=FEATURES, seed=7)
        train(third, source)
        third.save(tmp_path)
    with pytest.raises(CheckpointError, match=r"table hour .* has optimizer Adam, not RowWiseAdagrad"):
        tables.load(tmp_path)
    assert same(read(tables), before) and tables.step == 4
    (file,) = tmp_path.glob("*-00001.bin")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="cannot be read"):
        tables.load(tmp_path, embeddings_only=True)
    assert same(read(tables), before)


def test_tables_that_a_checkpoint_lacks_keep_their_rows(two_servers: list[str], tmp_path: Path) -> None:
    source = [batch_of(step, 0) for step in range(4)]
    tables = connect(two_servers, **HYBRID, sync_rows=100)
    train(tables, source)
    before = read(tables)
    first = HashTableCollection(
        tables=table_configs()[:1], features=[FEATURES[0], FEATURES[3]], process_group=LOCAL, seed=8
    )
    first.save(tmp_path)
    tables.load(tmp_path, strict=False)
    after = read(tables)
    assert torch.equal(after["hour"], before["hour"]) and torch.equal(after["user"], before["user"])
    untrained = collection(process_group=LOCAL)
    assert torch.equal(after["city"], read(untrained)["city"]), "the checkpoint has no row of it"
    assert tables.step == 4


def test_a_skipped_step_changes_no_row(two_servers: list[str]) -> None:
    tables = connect(two_servers, **HYBRID, sync_rows=100)
    source = [batch_of(step, 0) for step in range(6)]
    for number, batch in enumerate(hybrid.batches(tables, source)):
        before = read(tables)
        sum(each.sum() for each in tables(batch.features).values()).backward()
        if number == 1:
            tables.skip()
        elif number == 2:
            tables.optimizer.found_inf = torch.ones(1)  # A GradScaler sets it.
            tables.optimizer.step()
            del tables.optimizer.found_inf
        else:
            tables.optimizer.step()
        is_skipped = number in (1, 2)
        for name in ("city", "hour", "home"):
            assert torch.equal(read(tables)[name], before[name]) == is_skipped, name
    assert tables.step == 6
    assert (tables.counts().trained, tables.counts().lost) == (4, {"skipped": 1, "overflow": 1})


def test_a_batch_that_is_passed_over_does_not_stop_other_workers(two_servers: list[str]) -> None:
    run = partial(run_ranks, num_ranks=2, timeout_s=120, backend="gloo", wait_s=60)
    assert run(partial(skipping_worker, addresses=list(two_servers))) == [True, True]


def skipping_worker(rank: int, send: object, *, addresses: list[str]) -> list[bool]:
    """Trains; worker 1 makes every other step only. Returns whether replicas are equal and have learned."""
    tables: Any = connect(addresses, **HYBRID, sync_rows=100)
    before = read(tables)["city"]
    for number, batch in enumerate(hybrid.batches(tables, [batch_of(step, rank) for step in range(6)])):
        found = tables(batch.features)
        if rank == 1 and number % 2 == 0:
            continue
        sum(each.sum() for each in found.values()).backward()
        tables.optimizer.step()
    own = read(tables)["city"]
    of_first = own.clone()
    dist.broadcast(of_first, 0)
    is_equal = torch.tensor(int(torch.equal(own, of_first)))
    dist.all_reduce(is_equal, dist.ReduceOp.MIN)
    return [bool(is_equal), not torch.equal(own, before)]


def test_errors_of_one_worker_are_raised_by_all(two_servers: list[str]) -> None:
    run = partial(run_ranks, num_ranks=2, timeout_s=120, backend="gloo", wait_s=60)
    assert run(partial(failing_worker, addresses=list(two_servers))) == [
        "table hour: dense workers have different learning rates: 0.1 and 0.5",
        "step 1 of dense worker 1: a gradient of table hour is not finite",
        "dense workers end different steps: 3, 2. Each has to make or skip all steps, since small tables are in step",
    ]


def failing_worker(rank: int, send: object, *, addresses: list[str]) -> list[str]:
    """Ends steps in wrong ways; returns what both workers said."""
    replicas = connect(addresses, **HYBRID, sync_rows=100)._replicas
    batch = replicas.prepare(batch_of(0, rank).features)
    finite, infinite = torch.ones(6, 2).numpy(), torch.full((6, 2), float("inf")).numpy()
    said = []
    for step, gradients, rate in (
        (0, finite, (0.1, 0.5)[rank]),
        (1, infinite if rank == 1 else finite, 0.1),
        (3 - rank, finite, 0.1),
    ):
        with pytest.raises((RuntimeError, ValueError)) as caught:
            replicas.end_step(step, batch, [None, gradients], [0.1, rate], is_strict=True)
        said.append(str(caught.value))
    of_all: list[Any] = [None, None]
    dist.all_gather_object(of_all, said)
    assert of_all[0] == of_all[1]
    replicas.end_step(2, batch, [None, finite], [0.1, 0.1], is_strict=True)
    assert len(set(read_sizes(replicas))) == 1
    return said


def read_sizes(replicas: Any) -> list[str]:
    """Rows of all workers' replicas."""
    of_all: list[Any] = [None, None]
    dist.all_gather_object(of_all, str([table.size()["rows"] for table in replicas.tables]))
    return of_all


def test_gradients_that_are_not_finite_are_dropped_or_an_error(two_servers: list[str]) -> None:
    tables = connect(two_servers, **HYBRID, sync_rows=100)
    before = read(tables)
    (tables(batch_of(0, 0).features)["hour"].sum() * float("nan")).backward()
    tables.optimizer.step()
    tables.finish()
    assert same(read(tables), before)
    assert tables.counts().lost == {"not_finite": 1}
    with parameter_servers(1) as addresses:
        strict = connect(addresses, "hybrid", sync_rows=100)
        strict._replicas.end_step(0)  # The server is not strict, and need not be.
        batch = strict._replicas.prepare(batch_of(0, 0).features)
        gradients = [None, torch.full((6, 2), float("inf")).numpy()]
        with pytest.raises(RuntimeError, match="step 1 of dense worker 0: a gradient of table hour is not finite"):
            strict._replicas.end_step(1, batch, gradients, [0.1, 0.1], is_strict=True)
        assert same(read(strict), before)


def test_wrong_features_are_refused_by_name(two_servers: list[str]) -> None:
    tables = connect(two_servers, **HYBRID, sync_rows=100)
    features = dict(batch_of(0, 0).features)
    features["hour"] = (torch.arange(5), torch.ones(6, dtype=torch.int64))
    with pytest.raises(ValueError, match="feature hour: 5 ids do not fit lengths that add up to 6"):
        tables.begin(features)
    del features["hour"]
    with pytest.raises(ValueError, match="feature hour is missing"):
        tables.begin(features)
    assert tables.step == 0 and tables.counts().begun == 0


def test_settings_that_cannot_be_honoured_are_refused() -> None:
    with pytest.raises(hybrid.ConfigError, match='sync_rows = 100 contradicts mode = "async"'):
        hybrid.HybridConfig.of({"mode": "async", "sync_rows": 100})
    with pytest.raises(hybrid.ConfigError, match="sync_rows must be from 0, not -1"):
        hybrid.HybridConfig.of({"sync_rows": -1})


def test_servers_need_a_table() -> None:
    config = hybrid.HybridConfig.of({"sync_rows": 100})
    with pytest.raises(hybrid.ConfigError, match="sync_rows = 100 leaves no table for the servers"):
        hybrid.connect(config, tables=table_configs()[:1], features=[FEATURES[0]])


def test_a_setting_without_effect_is_warned_of(two_servers: list[str]) -> None:
    with pytest.warns(UserWarning, match="sync_rows = 99 has no effect: no table has max_rows up to it"):
        connect(two_servers, **HYBRID, sync_rows=99)


def test_only_tables_that_keep_all_rows_are_small() -> None:
    options: dict[str, Any] = {"dim": 2, "max_rows": 50}
    small = TableConfig("small", **options)
    others = [
        TableConfig("unlimited", dim=2),
        TableConfig("large", dim=2, max_rows=51),
        TableConfig("evicts", **options, eviction=Eviction(policy="lru")),
        TableConfig("expires", **options, time_to_live=3),
        TableConfig("admits", **options, min_count=2),
        TableConfig("cold", **options, hot_count=2),
    ]
    features = [FeatureConfig(each.name, table=each.name) for each in [small, *others]]
    for mode, expected in (("hybrid", ["small"]), ("sync", [])):
        config = hybrid.HybridConfig.of({"mode": mode, "sync_rows": 50})
        split = SplitLayout.of(config, [small, *others], features, None)
        assert ([] if split.small is None else [each.name for each in split.small.merged_tables]) == expected


# With embedding workers


def with_workers(roles: tuple[list[str], list[str]], **settings: Any) -> tuple[Any, hybrid.Loader]:
    """Connects a dense worker and a loader."""
    servers, workers = roles
    sections = {"servers": {"addresses": servers}, "workers": {"addresses": workers}, "job": {"timeout_s": 30}}
    config = hybrid.HybridConfig.of({**sections, **settings})
    options: dict[str, Any] = {"tables": table_configs(user_learns=False), "features": FEATURES, "seed": 7}
    return hybrid.connect(config, **options), hybrid.Loader(config, **options)


def submitted(loader: hybrid.Loader, batch: hybrid.Batch) -> hybrid.Batch:
    return hybrid.Batch(loader.submit(batch.features), batch.dense, batch.labels)


def read_through(tables: Any, loader: hybrid.Loader) -> dict[str, torch.Tensor]:
    """Embeddings of many ids."""
    tables.eval()
    found = tables(loader.submit(batch_of(99, 0, samples=200).features))
    tables.train()
    return {name: each.detach().clone() for name, each in found.items()}


@pytest.fixture
def roles() -> Iterator[tuple[list[str], list[str]]]:
    with parameter_servers(2) as servers, embedding_workers(2, servers) as workers:
        yield list(servers), list(workers)


def test_row_indices_give_the_bits_of_ids(roles: tuple[list[str], list[str]], two_servers: list[str]) -> None:
    tables, loader = with_workers(roles, **HYBRID, sync_rows=100)
    source = [batch_of(step, 0) for step in range(STEPS)]
    losses = train(tables, [submitted(loader, batch) for batch in source])
    expected = connect(two_servers, "sync", user_learns=False)
    assert train(expected, source) == losses
    assert same(read_through(tables, loader), read(expected))


def test_checkpoints_of_row_indices_are_those_of_a_collection(
    roles: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    source = [batch_of(step, 0) for step in range(STEPS)]
    settings = {"mode": "hybrid", "staleness": 0, "sync_rows": 100}
    tables, loader = with_workers(roles, **settings)
    expected = collection(process_group=LOCAL, user_learns=False)
    train(tables, [submitted(loader, batch) for batch in source[:6]])
    train(expected, source[:6])
    tables.save(tmp_path / "servers")
    expected.save(tmp_path / "collection")
    loaded = collection(process_group=LOCAL, user_learns=False)
    loaded.load(tmp_path / "servers")
    found, wanted = records_of(loaded), records_of(expected)
    assert {name: found[name] for name in ("city", "hour")} == {name: wanted[name] for name in ("city", "hour")}
    losses = train(expected, source[6:])
    assert train(tables, [submitted(loader, batch) for batch in source[6:]]) == losses, "it goes on after a checkpoint"
    for folder in ("servers", "collection"):
        tables.load(tmp_path / folder)
        assert tables.step == 6 and same(read_through(tables, loader), read(loaded))
        assert train(tables, [submitted(loader, batch) for batch in source[6:]]) == losses
    with parameter_servers(3) as servers, embedding_workers(1, servers) as workers:
        third, its_loader = with_workers((list(servers), list(workers)), **settings)
        third.load(tmp_path / "collection")
        assert train(third, [submitted(its_loader, batch) for batch in source[6:]]) == losses
        assert same(read_through(third, its_loader), read(expected))


def squares(tables: Any, batches: Any, save_at: int, folder: Path) -> list[float]:
    """Trains without a dense model, and saves once before a step."""
    losses = []
    for batch in hybrid.batches(tables, batches):
        loss = sum(each.square().sum() for each in tables(batch.features).values())
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        tables.optimizer.step()
        losses.append(loss.item())
        if len(losses) == save_at:
            tables.save(folder)
    return losses


@pytest.mark.parametrize("has_workers", [False, True])
def test_a_training_that_resumes_has_the_bits_of_one_that_goes_on(tmp_path: Path, has_workers: bool) -> None:
    source = [batch_of(step, 0) for step in range(STEPS)]
    found = []
    for first in (0, 5):
        with parameter_servers(2) as servers, embedding_workers(1, servers) as workers:
            if has_workers:
                tables, loader = with_workers((list(servers), list(workers)), **HYBRID, sync_rows=100)
                batches = [submitted(loader, batch) for batch in source[first:]]
            else:
                tables, batches = connect(list(servers), **HYBRID, sync_rows=100), source[first:]
            if first > 0:
                tables.load(tmp_path)
            found.append(squares(tables, batches, 0 if first else 5, tmp_path))
            counts = tables.counts()
            assert (counts.trained, counts.lost, counts.in_flight) == (STEPS - first, {}, 0)
    assert found[0][5:] == found[1]


def test_compressed_values_leave_small_tables_alone(roles: tuple[list[str], list[str]]) -> None:
    settings = {**HYBRID, "sync_rows": 100, "compression": {"ids": True, "values": True}}
    tables, loader = with_workers(roles, **settings)
    expected = collection(process_group=LOCAL, user_learns=False)
    for step in range(4):
        features = batch_of(step, 0).features
        for learned, batch in ((tables, loader.submit(features)), (expected, features)):
            found = learned(batch)
            (found["city"].square().sum() + found["hour"].sum()).backward()
            learned.optimizer.step()
    here, there = read_through(tables, loader), read(expected)
    assert all(torch.equal(here[name], there[name]) for name in ("city", "hour", "home"))
    assert not torch.equal(here["user"], there["user"]), "these are rounded"


def test_tables_with_row_indices_that_a_checkpoint_lacks_keep_their_rows(
    roles: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    tables, loader = with_workers(roles, **HYBRID, sync_rows=100)
    train(tables, [submitted(loader, batch_of(step, 0)) for step in range(4)])
    before = read_through(tables, loader)
    HashTableCollection(
        tables=table_configs()[:1], features=[FEATURES[0], FEATURES[3]], process_group=LOCAL, seed=8
    ).save(tmp_path)
    tables.load(tmp_path, strict=False)
    after = read_through(tables, loader)
    assert torch.equal(after["hour"], before["hour"]) and torch.equal(after["user"], before["user"])
    assert torch.equal(after["city"], read(collection(process_group=LOCAL))["city"]), "the checkpoint has no row of it"


def test_unknown_ids_read_as_zeros_and_stored_rows_do_not(roles: tuple[list[str], list[str]], tmp_path: Path) -> None:
    servers, workers = roles
    sections: dict[str, Any] = {"servers": {"addresses": servers}, "workers": {"addresses": workers}}
    config = hybrid.HybridConfig.of({**sections, **HYBRID, "sync_rows": 100})
    city, *others = table_configs(user_learns=False)
    options: dict[str, Any] = {
        "tables": [replace(city, unknown="zeros"), *others], "features": FEATURES, "seed": 7
    }  # fmt: skip
    tables, loader = hybrid.connect(config, **options), hybrid.Loader(config, **options)
    expected = HashTableCollection(process_group=LOCAL, gradient_reduction="sum", **options)
    source = [batch_of(step, 0, samples=2) for step in range(2)]
    assert train(tables, [submitted(loader, batch) for batch in source]) != []
    train(expected, source)
    wanted = read(expected)
    assert bool((wanted["home"] == 0).all(dim=1).any()) and bool((wanted["home"] != 0).any()), "of both kinds"
    assert same(read_through(tables, loader), wanted)
    tables.save(tmp_path)
    tables.load(tmp_path)
    assert tables.small_rows() == {"city": 0, "hour": 0}, "rows come with the first batch that has them"
    assert same(read_through(tables, loader), wanted)
    with parameter_servers(1) as others_servers:
        sections = {"workers": WorkersConfig(), "servers": ServersConfig(addresses=tuple(others_servers))}
        direct = hybrid.connect(replace(config, **sections), **options)
        direct.load(tmp_path)
        assert same(read(direct), wanted)


def test_rows_of_an_answer_that_nobody_read_come_again(
    roles: tuple[list[str], list[str]], two_servers: list[str]
) -> None:
    tables, loader = with_workers(roles, **HYBRID, sync_rows=100)
    expected = connect(two_servers, **HYBRID, sync_rows=100, user_learns=False)
    source = [batch_of(0, 0), batch_of(0, 0), batch_of(1, 0)]
    begun = [tables.begin(loader.submit(batch.features)) for batch in source]
    others = [expected.begin(batch.features) for batch in source]
    for learned, window in ((tables, begun), (expected, others)):
        learned.skip()
        for batch in window[1:]:
            sum(each.square().sum() for each in learned(batch).values()).backward()
            learned.optimizer.step()
    assert same(read_through(tables, loader), read(expected))


def test_evaluation_gives_no_rows(roles: tuple[list[str], list[str]]) -> None:
    tables, loader = with_workers(roles, **HYBRID, sync_rows=100)
    train(tables, [submitted(loader, batch_of(step, 0, samples=2)) for step in range(2)])
    before = tables.small_rows()
    expected = collection(process_group=LOCAL, user_learns=False)
    train(expected, [batch_of(step, 0, samples=2) for step in range(2)])
    assert same(read_through(tables, loader), read(expected)), "ids without a row have their initial embedding"
    assert tables.small_rows() == before and before["city"] < 30


def worker_with_indices(rank: int, send: object, *, roles: Any, counts: list[int], **settings: Any) -> Any:
    """Like ``worker()``, with a loader in this process."""
    group = dist.group.WORLD
    tables, loader = with_workers(roles, **settings)
    source = [submitted(loader, batch_of(step, rank, samples=4 + 3 * rank)) for step in range(counts[rank])]
    own = torch.tensor(train(tables, source, group))
    dist.all_reduce(own, group=group)
    tables.drain()
    of_worker = torch.cat([each.flatten() for each in read_through(tables, loader).values()])
    of_all = [torch.empty_like(of_worker) for _ in counts]
    dist.all_gather(of_all, of_worker, group=group)
    return own.tolist(), of_worker.tolist(), all(torch.equal(of_worker, each) for each in of_all)


def test_workers_with_row_indices_have_replicas_of_equal_bits(
    roles: tuple[list[str], list[str]], two_servers: list[str]
) -> None:
    run = partial(run_ranks, num_ranks=2, timeout_s=120, backend="gloo", wait_s=60)
    found = run(partial(worker_with_indices, roles=roles, counts=[7, STEPS], sync_rows=100, **HYBRID))
    assert found[2], "replicas of all workers"
    assert run(partial(worker, addresses=list(two_servers), counts=[7, STEPS], mode="sync")) == found


def test_no_id_reaches_a_dense_worker(roles: tuple[list[str], list[str]]) -> None:
    tables, loader = with_workers(roles, **HYBRID, sync_rows=100)
    planted = 0x5EED_0DD5_1DE5_CAFE
    ones = torch.ones(3, dtype=torch.int64)
    found: list[Any] = []
    tables._lookups._workers = Spy(tables._lookups._workers, found)
    tables(loader.submit({each.name: (planted + torch.arange(3), ones) for each in FEATURES}))
    assert len(found) == 1
    columns = [each for part in (*found[0][2], *found[0][3]) for each in part if each is not None]
    assert columns and all((np.asarray(each) < 100).all() for each in columns), "indices, counts and values"


class Spy:
    """Embedding workers whose answers are kept."""

    def __init__(self, workers: Any, found: list[Any]) -> None:
        self._workers, self._found = workers, found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workers, name)

    def wait(self, step: int, rank: int) -> Any:
        self._found.append(self._workers.wait(step, rank))
        return self._found[-1]
