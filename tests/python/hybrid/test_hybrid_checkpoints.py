# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of tables on servers: those of a collection, with the bits of a training that was not interrupted."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from headway import hybrid
from headway._hybrid import query_worker_status
from headway.checkpoints import TrainingCheckpointError
from headway.comm.rank_processes import run_ranks
from headway.embedding import LOCAL, Adam, CheckpointError, FeatureConfig, TableConfig
from headway.embedding.checkpoint import writing
from hybrid_cases import Model, batch_of, collection, feature_configs, read_embeddings, same, table_configs, train
from parameter_servers import embedding_workers, parameter_servers


def connect(addresses: list[str], mode: str = "sync", **settings: Any) -> hybrid.HybridTables:
    values = {"mode": mode, "servers": {"addresses": addresses}, "job": {"timeout_s": 30}, **settings}
    tables = hybrid.connect(hybrid.HybridConfig.of(values), tables=table_configs(), features=feature_configs(), seed=7)
    assert isinstance(tables, hybrid.HybridTables)
    return tables


def read(tables: Any) -> dict[str, torch.Tensor]:
    """Embeddings of many ids."""
    return read_embeddings(tables, batch_of(99, 0, samples=200).features)


def test_servers_and_collections_read_the_same_folder(tmp_path: Path) -> None:
    source = [batch_of(step, 0) for step in range(12)]
    with parameter_servers(2) as addresses:
        tables = connect(addresses)
        train(tables, source[:6])
        tables.save(tmp_path)
        loaded = collection(process_group=LOCAL)
        loaded.load(tmp_path)
        assert loaded.step == 6
        assert same(read(loaded), read(tables))
        assert train(loaded, source[6:]) == train(tables, source[6:])
        loaded.save(tmp_path)
        with parameter_servers(3) as others:
            third = connect(others)
            third.load(tmp_path)
            assert third.step == 12
            assert same(read(third), read(loaded))
            assert train(third, source) == train(loaded, source)


def config_of(folder: Path, servers: list[str], workers: list[str], staleness: int) -> hybrid.HybridConfig:
    return hybrid.HybridConfig.of(
        {
            "mode": "hybrid",
            "staleness": staleness,
            "order": "exact",
            "servers": {"addresses": servers},
            "workers": {"addresses": workers},
            "job": {"timeout_s": 60},
            "checkpoints": {"folder": str(folder), "every_steps": 5, "timeout_s": 60},
        }
    )


def run_worker(
    rank: int, send: object, *, folder: Path, roles: tuple[list[str], list[str]], staleness: int, last: int
) -> tuple[int, list[float]]:
    """Trains from the newest checkpoint up to a step; returns the first step, and the losses."""
    group = dist.group.WORLD if dist.is_initialized() else None
    config = config_of(folder, *roles, staleness)
    configs: dict[str, Any] = {"tables": table_configs(), "features": feature_configs(), "seed": 7}
    tables = hybrid.connect(config, **configs)
    loader = hybrid.Loader(config, **configs) if roles[1] else None
    model = Model()
    dense = torch.optim.Adam(model.parameters(), lr=0.05)
    checkpoints = hybrid.Checkpoints(config, tables, model, dense)
    found = checkpoints.resume()
    first = tables.step
    if found is not None:
        assert found.positions == [[first, each] for each in range(len(found.positions))]
    source = [batch_of(step, rank) for step in range(first, last)]
    if loader is not None:
        source = [hybrid.Batch(loader.submit(each.features), each.dense, each.labels) for each in source]
    losses = []
    for batch in hybrid.batches(tables, source):
        dense.zero_grad()
        loss = (model(tables(batch.features), batch.dense) - batch.labels).square().sum()
        loss.backward()
        if group is not None:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=group)
        dense.step()
        tables.optimizer.step()
        losses.append(loss.item())
        checkpoints.save_if_due([tables.step, rank])
    tables.drain()
    expect_full_counts(config, tables, 1 if group is None else group.size(), len(losses))
    return first, losses


def expect_full_counts(config: hybrid.HybridConfig, tables: hybrid.HybridTables, num_ranks: int, steps: int) -> None:
    """Batches that are begun again after a checkpoint are not lost, and count once."""
    counts = tables.counts()
    assert (counts.begun - counts.empty, counts.trained, counts.lost, counts.in_flight) == (steps, steps, {}, 0)
    total = num_ranks * steps
    for server in tables.status():
        assert (server.parts, server.samples) == (total, 6 * total)
        assert server.lookups == total + (0 if config.workers.addresses else server.lost["no_batch"])
        assert sum(server.lost.values()) == server.lost["no_batch"]
    workers = [query_worker_status(each, job=config.job.name, timeout_s=30) for each in config.workers.addresses]
    if workers:
        assert total == sum(each.submitted for each in workers) == sum(each.trained for each in workers)
        assert sum(sum(each.lost.values()) for each in workers) == 0


def run_job(folder: Path, *, servers: int, embedding: int, dense: int, staleness: int, last: int) -> Any:
    """Runs a job with roles of its own up to a step."""
    with parameter_servers(servers) as addresses, embedding_workers(embedding, addresses) as workers:
        roles = (list(addresses), list(workers))
        work = partial(run_worker, folder=folder, roles=roles, staleness=staleness, last=last)
        if dense == 1:
            return work(0, None)
        return run_ranks(work, num_ranks=dense, timeout_s=120, backend="gloo", wait_s=60)


@pytest.mark.parametrize(
    ("servers", "embedding", "dense", "staleness"),
    [(1, 0, 1, 0), (2, 0, 1, 3), (2, 2, 1, 2), (2, 0, 2, 2), (1, 1, 2, 1)],
)
def test_a_restart_has_the_bits_of_an_uninterrupted_run(
    tmp_path: Path, servers: int, embedding: int, dense: int, staleness: int
) -> None:
    run = partial(run_job, servers=servers, embedding=embedding, dense=dense, staleness=staleness)
    first, expected = run(tmp_path, last=12)
    assert (first, len(expected)) == (0, 12)
    shutil.rmtree(tmp_path / "step_00000010")
    first, losses = run(tmp_path, last=12)
    assert first == 5
    assert losses == expected[5:]


def test_a_checkpoint_goes_to_other_numbers_of_roles(tmp_path: Path) -> None:
    run_job(tmp_path, servers=2, embedding=0, dense=2, staleness=2, last=6)
    first, losses = run_job(tmp_path, servers=3, embedding=1, dense=1, staleness=0, last=9)
    assert (first, len(losses)) == (5, 4)


def test_a_save_between_lookups_and_step_is_refused(tmp_path: Path) -> None:
    with parameter_servers(1) as addresses:
        tables = connect(addresses, "hybrid", staleness=1)
        tables(batch_of(0, 0).features)
        with pytest.raises(ValueError, match=r"the batch of step 0 was looked up, and has not made its step"):
            tables.save(tmp_path)
        tables.skip()
        tables.save(tmp_path)
        tables.save(tmp_path)
        tables.load(tmp_path)
        tables.save(tmp_path)
        assert (tables.step, [each.num_applied for each in tables.status()]) == (1, [1])


def test_what_a_server_cannot_write_or_read_is_named(tmp_path: Path) -> None:
    with parameter_servers(2) as addresses:
        tables = connect(addresses, "hybrid", staleness=2)
        source = [batch_of(step, 0) for step in range(8)]
        train(tables, source[:4])
        tables.save(tmp_path)
        before = sorted(tmp_path.iterdir())
        expected = read(tables)
        train(tables, source[4:])
        paths = [tmp_path / f"tables-{'0' * 12}-{index:05d}.bin" for index in range(2)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(writing.uuid, "uuid4", lambda: SimpleNamespace(hex="0" * 32))
            patch.setattr(writing, "_remove_unnamed", lambda folder, named: None)
            paths[1].mkdir()  # Root may write anywhere, but not into a folder.
            ahead = tables.begin(batch_of(8, 0).features)
            with pytest.raises(CheckpointError, match=rf"server 1 at {addresses[1]}: .*{paths[1].name}"):
                tables.save(tmp_path)
            paths[1].rmdir()
        tables(ahead)["city"].sum().backward()
        tables.optimizer.step()
        tables.finish()
        assert sorted(tmp_path.iterdir()) == before, "the checkpoint before stays, and nothing else"
        (file,) = (path for path in before if path.name.endswith("-00001.bin"))
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        present = read(tables)
        with pytest.raises(CheckpointError, match=rf"server \d at .*{file.name}.* was altered"):
            tables.load(tmp_path)
        assert same(read(tables), present), "a load that fails changes nothing"
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        tables.load(tmp_path)
        assert tables.step == 4 and same(read(tables), expected)


def test_other_tables_and_other_columns_are_named(tmp_path: Path) -> None:
    with parameter_servers(1) as addresses:
        connect(addresses).save(tmp_path)
    config = TableConfig("user", dim=8, optimizer=Adam(lr=0.05)), FeatureConfig("user_id", table="user")
    other = TableConfig("shop", dim=4), FeatureConfig("shop", table="shop")
    for (table, feature), message in ((config, "table user of the checkpoint .* has dim 4, not 8"),
                                      (other, "has the tables city, item, user, and not shop")):  # fmt: skip
        with parameter_servers(1) as addresses:
            settings = hybrid.HybridConfig.of({"mode": "sync", "servers": {"addresses": list(addresses)}})
            tables = hybrid.connect(settings, tables=[table], features=[feature])
            with pytest.raises(CheckpointError, match=message):
                tables.load(tmp_path, strict=table.name != "user")


def test_tables_that_a_checkpoint_lacks_keep_their_rows(tmp_path: Path) -> None:
    features = batch_of(0, 0).features
    with parameter_servers(2) as addresses:
        settings = hybrid.HybridConfig.of({"mode": "sync", "servers": {"addresses": list(addresses)}})
        by_name = {each.name: each for each in table_configs()}
        of_user = hybrid.connect(settings, tables=[by_name["user"]], features=[feature_configs()[0]], seed=7)
        of_user(features)["user_id"].sum().backward()
        of_user.optimizer.step()
        of_user.save(tmp_path)
        learned = of_user.eval()(features)["user_id"]
    with parameter_servers(1) as addresses:
        tables = connect(addresses)
        train(tables, [batch_of(step, 0) for step in range(3)])
        expected = {**read(tables)}
        tables.load(tmp_path, strict=False)
        assert tables.step == 3
        found = read(tables)
        assert torch.equal(found["city"], expected["city"]) and torch.equal(found["history"], expected["history"])
        assert torch.equal(tables.eval()(features)["user_id"], learned)


def test_a_checkpoint_of_local_tables_goes_to_servers(tmp_path: Path) -> None:
    source = [batch_of(step, 0) for step in range(8)]
    losses = []
    with parameter_servers(2) as addresses:
        for mode, first, last in (("local", 0, 5), ("sync", 5, 8), ("local", 5, 8)):
            sections = {"servers": {"addresses": list(addresses)}, "checkpoints": {"folder": str(tmp_path)}}
            config = hybrid.HybridConfig.of({"mode": mode, **sections})
            configs: dict[str, Any] = {"tables": table_configs(), "features": feature_configs(), "seed": 7}
            tables = hybrid.connect(config, process_group=LOCAL, **configs)
            model = Model()
            dense = torch.optim.Adam(model.parameters(), lr=0.05)
            checkpoints = hybrid.Checkpoints(config, tables, model, dense)
            assert (checkpoints.resume() is None) == (first == 0) and tables.step == first
            losses.append([])
            for batch in hybrid.batches(tables, source[first:last]):
                dense.zero_grad()
                loss = (model(tables(batch.features), batch.dense) - batch.labels).square().sum()
                loss.backward()
                dense.step()
                tables.optimizer.step()
                losses[-1].append(loss.item())
            if mode == "local" and first == 0:
                checkpoints.save()
        assert losses[1] == losses[2]
        with pytest.raises(TypeError):
            checkpoints.save(object())
        with pytest.raises(TrainingCheckpointError, match="does not fit the model"):
            hybrid.Checkpoints(config, tables, torch.nn.Linear(2, 2), dense).resume()
        next(tmp_path.glob("step_*/dense.pt")).write_bytes(b"damaged")
        with pytest.raises(TrainingCheckpointError, match=r"dense.pt cannot be read"):
            checkpoints.resume()
    with pytest.raises(hybrid.ConfigError, match=r"set checkpoints\.folder"):
        hybrid.Checkpoints(hybrid.HybridConfig.of({}), tables, model, dense)
