# SPDX-License-Identifier: Apache-2.0
"""Mode ``async``: the dense model is on the servers, and dense workers wait for none of the others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from headway import hybrid
from headway._hybrid import query_status
from headway.comm.rank_processes import run_ranks
from headway.embedding import Adagrad, Adam, RowWiseAdagrad, Sgd
from headway.embedding.config import Optimizer
from hybrid_cases import STEPS, Model, batch_of, feature_configs, table_configs
from parameter_servers import embedding_workers, parameter_servers
from torch.utils.checkpoint import checkpoint


@pytest.fixture
def two_servers() -> Iterator[list[str]]:
    with parameter_servers(2) as addresses:
        yield addresses


class Training:
    """A model with its tables, and their loop, which is the same in each mode."""

    def __init__(self, addresses: list[str], mode: str, optimizer: Optimizer | None = None, **settings: Any) -> None:
        values = {"mode": mode, "servers": {"addresses": addresses}, "job": {"timeout_s": 30}, **settings}
        self.config = hybrid.HybridConfig.of(values)
        self.model = Model()
        self.dense = hybrid.DenseOptimizer(self.model, optimizer or Adam(lr=0.01))
        self.tables: Any = hybrid.connect(
            self.config, tables=table_configs(), features=feature_configs(), dense=self.dense, seed=7
        )

    def loss_of(self, batch: hybrid.Batch) -> torch.Tensor:
        outputs = self.model(self.tables(batch.features), batch.dense)
        loss: torch.Tensor = (outputs - batch.labels).square().sum() / 16
        return loss

    def step(self, batch: hybrid.Batch) -> float:
        self.dense.zero_grad()
        loss = self.loss_of(batch)
        loss.backward()
        self.dense.step()
        self.tables.optimizer.step()
        return loss.item()

    def train(self, source: Any) -> list[float]:
        return [self.step(batch) for batch in hybrid.batches(self.tables, source)]

    def evaluate(self) -> list[float]:
        """Losses of other batches, by what servers have now."""
        self.tables.eval()
        with torch.no_grad():
            losses = [self.loss_of(batch_of(step, 77)).item() for step in range(3)]
        self.tables.train()
        return losses


def source_of(rank: int, steps: int = STEPS, first: int = 0) -> list[hybrid.Batch]:
    return [batch_of(step, rank) for step in range(first, steps)]


@pytest.mark.parametrize("optimizer", [Adam(lr=0.01), Adagrad(lr=0.05), Sgd(lr=0.05)])
def test_one_worker_without_staleness_learns_as_with_the_other_modes(
    two_servers: list[str], optimizer: Optimizer
) -> None:
    asynchronous = Training(two_servers, "async", optimizer, staleness=0)
    losses = asynchronous.train(source_of(0))
    with parameter_servers(1) as addresses:
        synchronous = Training(addresses, "sync", optimizer)
        assert losses == pytest.approx(synchronous.train(source_of(0)), rel=1e-5)
        assert asynchronous.evaluate() == pytest.approx(synchronous.evaluate(), rel=1e-5)
    for here, there in zip(asynchronous.model.parameters(), synchronous.model.parameters(), strict=True):
        assert torch.allclose(here, there, rtol=1e-5, atol=1e-7)
    local = Training(two_servers, "local", optimizer)
    assert losses == pytest.approx(local.train(source_of(0)), rel=1e-5)


def test_lookups_miss_own_steps_only_within_the_staleness(two_servers: list[str]) -> None:
    training = Training(two_servers, "async", staleness=2)
    before = sum(training.evaluate())
    assert len(training.train(source_of(0))) == STEPS
    assert sum(training.evaluate()) < before
    for status in training.tables.status():
        assert (status.num_applied, status.parts, status.voids) == (STEPS, STEPS, 0)
        assert len(status.staleness) == 3 and sum(status.staleness) == STEPS
    more = training.train(source_of(0, 2 * STEPS, STEPS))
    assert (training.tables.generation, training.tables.step) == (1, 2 * STEPS), "a worker may go on by itself"
    assert len(more) == STEPS


def slow_worker(rank: int, send: object, *, addresses: list[str]) -> list[float]:
    """Worker 1 looks up a batch, and makes its step only after worker 0 has made all of its own."""
    training = Training(addresses, "async", staleness=1)
    if rank == 0:
        losses = training.train(source_of(0))
        dist.barrier()
    else:
        losses = []
        for batch in hybrid.batches(training.tables, source_of(1, 3)):
            loss = training.loss_of(batch)
            if not losses:
                dist.barrier()
            loss.backward()
            training.dense.step()
            training.tables.optimizer.step()
            losses.append(loss.item())
    of_workers = [None, None]
    dist.all_gather_object(of_workers, losses)
    return [len(each) for each in of_workers]  # type: ignore[arg-type]


def test_a_slow_worker_holds_nobody_back(two_servers: list[str]) -> None:
    run = partial(run_ranks, num_ranks=2, timeout_s=120, backend="gloo", wait_s=60)
    assert run(partial(slow_worker, addresses=list(two_servers))) == [STEPS, 3]
    for each in two_servers:
        status = query_status(each, job="hybrid", timeout_s=30)
        assert (status.num_applied, status.parts, status.voids) == (STEPS, STEPS + 3, 0)


def worker(rank: int, send: object, *, addresses: list[str], counts: list[int]) -> list[float]:
    """A dense worker with its own number of batches; returns losses of evaluations before and after."""
    training = Training(addresses, "async", staleness=1)
    before = training.evaluate()
    dist.barrier()
    assert len(training.train(source_of(rank, counts[rank]))) == counts[rank]
    dist.barrier()
    after = training.evaluate()
    of_workers: list[Any] = [None] * len(counts)
    dist.all_gather_object(of_workers, after)
    assert all(each == after for each in of_workers), "all read the same dense model"
    return [sum(before), sum(after)]


def test_workers_with_other_numbers_of_batches_end_by_themselves(two_servers: list[str]) -> None:
    counts = [STEPS, 3, 0]
    run = partial(run_ranks, num_ranks=len(counts), timeout_s=120, backend="gloo", wait_s=60)
    before, after = run(partial(worker, addresses=list(two_servers), counts=counts))
    assert after < before
    for each in two_servers:
        status = query_status(each, job="hybrid", timeout_s=30)
        assert (status.parts, status.voids, sum(status.lost.values())) == (STEPS + 3, 0, 0)


def test_a_killed_server_is_named() -> None:
    with parameter_servers(2) as addresses:
        training = Training(addresses, "async")
        training.step(batch_of(0, 0))
        addresses.kill(1)
        with pytest.raises(RuntimeError, match=rf"parameter server 1 at {addresses[1]}"):
            training.train(source_of(0))


def test_embedding_workers_bring_the_dense_model_too(two_servers: list[str]) -> None:
    losses = Training(two_servers, "async", staleness=0).train(source_of(0))
    with parameter_servers(2) as addresses, embedding_workers(1, addresses) as workers:
        training = Training(addresses, "async", staleness=0, workers={"addresses": list(workers)})
        dense = hybrid.DenseOptimizer(Model(), Adam(lr=0.01))
        loader = hybrid.Loader(
            training.config, tables=table_configs(), features=feature_configs(), dense=dense, seed=7
        )
        source = [hybrid.Batch(loader.submit(each.features), each.dense, each.labels) for each in source_of(0)]
        assert training.train(source) == pytest.approx(losses, rel=1e-5)
        with pytest.raises(ValueError, match='mode = "async" has the dense model on the servers'):
            hybrid.Loader(training.config, tables=table_configs(), features=feature_configs(), seed=7)


def test_a_checkpoint_goes_on_as_a_training_that_was_not_interrupted(tmp_path: Path) -> None:
    with parameter_servers(1) as addresses:
        losses = Training(addresses, "async", staleness=0).train(source_of(0))
    found: list[float] = []
    for num_servers, last in ((2, 8), (1, STEPS)):
        with parameter_servers(num_servers) as addresses:
            training = Training(
                addresses, "async", staleness=0, checkpoints={"folder": str(tmp_path), "every_steps": 6}
            )
            checkpoints = hybrid.Checkpoints(training.config, training.tables, training.model, training.dense)
            loaded = checkpoints.resume()
            first = 0 if loaded is None else loaded.step
            assert training.tables.step == first
            del found[first:]
            for batch in hybrid.batches(training.tables, source_of(0, last, first)):
                found.append(training.step(batch))
                checkpoints.save_if_due(training.tables.step)
    assert first == 6 and loaded is not None and loaded.positions == [6]
    assert found == pytest.approx(losses, rel=1e-5)


def saving_worker(rank: int, send: object, *, addresses: list[str], folder: Path) -> list[int]:
    """Worker 1 makes no call while worker 0 saves, and a call of its own does nothing."""
    training = Training(addresses, "async", checkpoints={"folder": str(folder), "every_steps": 4})
    checkpoints = hybrid.Checkpoints(training.config, training.tables, training.model, training.dense)
    assert checkpoints.resume() is None
    if rank == 0:
        for batch in hybrid.batches(training.tables, source_of(0)):
            training.step(batch)
            checkpoints.save_if_due()
    dist.barrier()
    if rank == 1:
        assert checkpoints.save() is None
        training.train(source_of(1, 3))
    dist.barrier()
    loaded = checkpoints.resume()
    assert loaded is not None and training.tables.step == loaded.step == STEPS
    return [training.tables.generation, len(training.train(source_of(rank, 3)))]


def test_the_first_worker_saves_alone(two_servers: list[str], tmp_path: Path) -> None:
    run = partial(run_ranks, num_ranks=2, timeout_s=120, backend="gloo", wait_s=60)
    assert run(partial(saving_worker, addresses=list(two_servers), folder=tmp_path)) == [2, 3]


def test_a_model_that_begins_otherwise_is_told_apart(two_servers: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Training(two_servers, "async")
    monkeypatch.setattr(torch, "manual_seed", lambda seed: None)
    with pytest.raises(RuntimeError, match=r"the server has these tables: .* The request has: "):
        Training(two_servers, "async")


def differing_worker(rank: int, send: object, *, addresses: list[str], mode: str) -> list[str]:
    """Worker 1 has other initial parameters."""
    model = Model()
    if rank == 1:
        with torch.no_grad():
            model.top.bias += 1
    dense = hybrid.DenseOptimizer(model, Adam(lr=0.01))
    config = hybrid.HybridConfig.of({"mode": mode, "servers": {"addresses": addresses}})
    try:
        hybrid.connect(config, tables=table_configs(), features=feature_configs(), dense=dense)
    except ValueError as error:
        return [str(error)]
    return []


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_workers_with_different_initial_parameters_are_refused(two_servers: list[str], mode: str) -> None:
    run = partial(run_ranks, num_ranks=2, timeout_s=120, backend="gloo", wait_s=60)
    (message,) = run(partial(differing_worker, addresses=list(two_servers), mode=mode))
    assert "dense workers have different initial parameters" in message


def adding_worker(rank: int, send: object, *, addresses: list[str]) -> list[float]:
    """Trains with DenseOptimizer, then with gradients that are added by hand."""
    training = Training(addresses[:1], "sync")
    found = training.train(source_of(rank, STEPS if rank == 0 else 3))
    by_hand = Training(addresses[1:], "sync")
    optimizer = torch.optim.Adam(by_hand.model.parameters(), lr=0.01)
    expected = []
    for batch in hybrid.batches(by_hand.tables, source_of(rank, STEPS if rank == 0 else 3)):
        optimizer.zero_grad()
        loss = by_hand.loss_of(batch)
        loss.backward()
        for each in by_hand.model.parameters():
            dist.all_reduce(each.grad)
        optimizer.step()
        by_hand.tables.optimizer.step()
        expected.append(loss.item())
    assert found == expected
    return found


def test_the_other_modes_add_the_gradients_of_all_workers(two_servers: list[str]) -> None:
    run = partial(run_ranks, num_ranks=2, timeout_s=120, backend="gloo", wait_s=60)
    assert len(run(partial(adding_worker, addresses=list(two_servers)))) == STEPS


def test_schedulers_change_the_rate_of_the_dense_model(two_servers: list[str]) -> None:
    for mode in ("async", "local"):
        training = Training(two_servers, mode, Sgd(lr=0.5), **({"staleness": 0} if mode == "async" else {}))
        schedule = torch.optim.lr_scheduler.LambdaLR(training.dense, lambda step: 1.0 if step == 0 else 0.0)
        for step in range(2):
            training.evaluate()
            before = [each.detach().clone() for each in training.model.parameters()]
            training.step(batch_of(step, 0))
            training.evaluate()
            is_equal = all(map(torch.equal, before, training.model.parameters()))
            assert is_equal == (step == 1), mode
            schedule.step()


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_grad_scaler_scales_and_skips(two_servers: list[str], mode: str) -> None:
    training = Training(two_servers, mode, Sgd(lr=0.5), **({"staleness": 0} if mode == "async" else {}))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)
    values = []
    for factor in (1.0, float("inf"), 1.0):
        training.dense.zero_grad()
        loss = training.loss_of(batch_of(0, 0)) * factor
        values.append(training.model.top.bias.detach().clone())
        scaler.scale(loss).backward()
        gradient = training.model.top.bias.grad / scaler.get_scale()
        scaler.step(training.dense)
        scaler.step(training.tables.optimizer)
        scaler.update()
        if factor == 1.0:
            expected = values[-1] - 0.5 * gradient
    training.tables.finish()
    assert scaler.get_scale() == 4.0
    assert torch.equal(values[1], values[2]), "the step with inf was skipped"
    training.evaluate()
    assert torch.allclose(training.model.top.bias, expected)


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_activation_checkpointing_finds_the_parameters_unchanged(two_servers: list[str], is_reentrant: bool) -> None:
    training = Training(two_servers, "async", staleness=0)
    batch = batch_of(0, 0)
    weight = torch.ones((), requires_grad=True)
    for _ in range(2):
        training.dense.zero_grad()
        inside = checkpoint(
            lambda scale: training.model(training.tables(batch.features), batch.dense) * scale,
            weight,
            use_reentrant=is_reentrant,
        )
        inside.sum().backward()
        training.dense.step()
        training.tables.optimizer.step()
    assert [each.parts for each in training.tables.status()] == [2, 2]


def test_the_dense_step_comes_first(two_servers: list[str]) -> None:
    training = Training(two_servers, "async")
    training.loss_of(batch_of(0, 0)).backward()
    training.tables.optimizer.step()
    with pytest.raises(RuntimeError, match=r"dense.step\(\) comes before tables.optimizer.step\(\)"):
        training.dense.step()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": "exact"}, 'order = "exact" contradicts mode = "async"'),
        ({"combine": "none"}, 'combine = "none" contradicts mode = "async", which never adds'),
    ],
)
def test_settings_that_it_cannot_honour_are_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(hybrid.ConfigError, match=message):
        hybrid.HybridConfig.of({"mode": "async", **settings})


def test_dense_models_that_it_cannot_train_are_errors(two_servers: list[str]) -> None:
    config = hybrid.HybridConfig.of({"mode": "async", "servers": {"addresses": two_servers}})
    with pytest.raises(ValueError, match='mode = "async" has the dense model on the servers: pass a'):
        hybrid.connect(config, tables=table_configs(), features=feature_configs())
    with pytest.raises(ValueError, match=r'weight_decay = 0.1 of the dense model contradicts mode = "async"'):
        Training(two_servers, "async", Adam(lr=0.01, weight_decay=0.1))
    with pytest.raises(ValueError, match=r"trained by Sgd, Adagrad or Adam as in torch.optim, not by RowWiseAdagrad"):
        hybrid.DenseOptimizer(Model(), RowWiseAdagrad(lr=0.1))
    with pytest.raises(ValueError, match=r"parameter top.weight of the dense model must be float32, not torch.float64"):
        hybrid.DenseOptimizer(Model().double(), Adam(lr=0.1))
    with pytest.raises(ValueError, match="has no parameters"):
        hybrid.DenseOptimizer(torch.nn.ReLU(), Adam(lr=0.1))
    with pytest.raises(RuntimeError, match=r"pass this optimizer to hybrid.connect\(\) as dense"):
        hybrid.DenseOptimizer(Model(), Adam(lr=0.1)).step()
