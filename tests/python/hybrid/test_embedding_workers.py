# SPDX-License-Identifier: Apache-2.0
"""Embedding workers between loaders and dense workers: the same bits, and no id in the dense worker."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from headway import hybrid
from headway.comm.rank_processes import run_ranks
from headway.embedding import LOCAL
from hybrid_cases import STEPS, batch_of, collection, connect, loader_of, train
from parameter_servers import embedding_workers, parameter_servers


def config_of(servers: list[str], workers: list[str], mode: str = "sync", **settings: Any) -> hybrid.HybridConfig:
    sections = {"servers": {"addresses": servers}, "workers": {"addresses": workers}, "job": {"timeout_s": 30}}
    return hybrid.HybridConfig.of({"mode": mode, **sections, **settings})


class Submitted(torch.utils.data.IterableDataset[hybrid.Batch]):
    """Batches whose ids a process of a DataLoader sends to embedding workers."""

    def __init__(self, loader: hybrid.Loader, rank: int, count: int) -> None:
        self.loader, self.rank, self.count = loader, rank, count

    def __iter__(self) -> Iterator[hybrid.Batch]:
        for step in range(self.count):
            batch = batch_of(step, self.rank)
            yield hybrid.Batch(self.loader.submit(batch.features), batch.dense, batch.labels)


def batches_of(config: hybrid.HybridConfig, rank: int, count: int) -> Any:
    """Batches from another process, with refs in place of ids."""
    dataset = Submitted(loader_of(config), rank, count)
    return torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")


@pytest.fixture
def roles() -> Iterator[tuple[list[str], list[str]]]:
    with parameter_servers(2) as servers, embedding_workers(2, servers) as workers:
        yield list(servers), list(workers)


def test_a_dense_worker_without_ids_learns_as_a_collection(roles: tuple[list[str], list[str]]) -> None:
    config = config_of(*roles)
    tables, expected = connect(config), collection(process_group=LOCAL)
    source = [batch_of(step, 0) for step in range(STEPS)]
    assert train(tables, batches_of(config, 0, STEPS)) == train(expected, source)
    tables.eval()
    expected.eval()
    unseen = batch_of(99, 0).features
    loader = loader_of(config)
    for here, there in zip(tables(loader.submit(unseen)).values(), expected(unseen).values(), strict=True):
        assert torch.equal(here, there)
    assert [each.num_applied for each in tables.status()] == [STEPS, STEPS]


def test_compressed_ids_change_no_bit_and_compressed_values_hardly_any(roles: tuple[list[str], list[str]]) -> None:
    expected = train(collection(process_group=LOCAL), [batch_of(step, 0) for step in range(STEPS)])
    ids = config_of(*roles, compression={"ids": True})
    assert train(connect(ids), batches_of(ids, 0, STEPS)) == expected
    with pytest.raises(RuntimeError, match=r"embedding worker 0 at .* has compression of ids on and of values off"):
        connect(config_of(*roles))
    with parameter_servers(2) as servers, embedding_workers(2, servers) as workers:
        both = config_of(list(servers), list(workers), compression={"ids": True, "values": True})
        losses = train(connect(both), batches_of(both, 0, STEPS))
    assert losses != expected and losses == pytest.approx(expected, rel=0.02)


def worker(rank: int, send: object, *, roles: Any, counts: list[int]) -> list[float]:
    group = dist.group.WORLD
    config = None if roles is None else config_of(*roles)
    tables: Any = collection() if config is None else connect(config)
    source = [batch_of(step, rank) for step in range(counts[rank])]
    if config is not None:
        loader = loader_of(config)
        source = [hybrid.Batch(loader.submit(each.features), each.dense, each.labels) for each in source]
    own = torch.tensor(train(tables, source, group))
    dist.all_reduce(own, group=group)
    return own.tolist()


def test_two_workers_of_which_one_runs_out_learn_as_two_ranks(roles: tuple[list[str], list[str]]) -> None:
    run = partial(run_ranks, num_ranks=2, timeout_s=120, backend="gloo", wait_s=60)
    counts = [STEPS, 3]
    expected = run(partial(worker, roles=None, counts=counts))
    assert run(partial(worker, roles=roles, counts=counts)) == expected


def test_staleness_and_void_batches(roles: tuple[list[str], list[str]]) -> None:
    config = config_of(*roles, "hybrid", staleness=2)
    tables, loader = connect(config), loader_of(config)
    source = [hybrid.Batch(loader.submit(batch_of(step, 0).features), torch.zeros(6, 3), torch.zeros(6, 1))
              for step in range(6)]  # fmt: skip
    for number, batch in enumerate(hybrid.batches(tables, source)):
        if number == 3:
            continue
        tables(batch.features)["city"].sum().backward()
        tables.optimizer.step()
    for status in tables.status():
        assert (status.parts, status.voids, status.num_applied) == (5, 1, 6)
        assert len(status.staleness) == 3


def test_mistakes_are_named(roles: tuple[list[str], list[str]]) -> None:
    config = config_of(*roles)
    tables, loader = connect(config), loader_of(config)
    with pytest.raises(ValueError, match="since a dense worker has no ids"):
        tables(batch_of(0, 0).features)
    unknown = hybrid.BatchRef(roles[1][1], 5, 0)
    with pytest.raises(RuntimeError, match=rf"embedding worker 1 at {roles[1][1]}: batch 0 of loader 5 has not been"):
        tables(unknown)
    tables.skip()
    reference = loader.submit(batch_of(0, 0).features)
    tables(reference)["city"].sum().backward()
    tables.optimizer.step()
    with pytest.raises(RuntimeError, match="was fetched before"):
        tables(reference)
    with pytest.raises(ValueError, match="a Loader needs embedding workers"):
        loader_of(config_of(roles[0], []))
    with pytest.raises(ValueError, match="needs embedding workers"):
        connect(config_of(roles[0], []))(reference)
    features = batch_of(0, 0).features
    assert loader_of(config_of(*roles, "local")).submit(features) is features


def test_a_lost_server_and_a_lost_worker_are_named() -> None:
    with parameter_servers(2) as servers, embedding_workers(2, servers) as workers:
        config = config_of(list(servers), list(workers))
        tables, loader = connect(config), loader_of(config)
        references = [loader.submit(batch_of(step, 0).features) for step in range(4)]
        tables(references[0])
        tables.optimizer.step()
        workers.kill(1)
        with pytest.raises(RuntimeError, match=rf"embedding worker 1 at {workers[1]}"):
            tables(references[1])
    with parameter_servers(2) as servers, embedding_workers(1, servers) as workers:
        config = config_of(list(servers), list(workers))
        tables, loader = connect(config), loader_of(config)
        references = [loader.submit(batch_of(step, 0).features) for step in range(4)]
        tables(references[0])
        tables.optimizer.step()
        servers.kill(1)
        with pytest.raises(RuntimeError, match=rf"embedding worker 0 at .*: parameter server 1 at {servers[1]}"):
            tables(references[1])
