# SPDX-License-Identifier: Apache-2.0
"""Dense workers and parameter servers: the bits of a collection without staleness, and bounds with it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from headway import hybrid
from headway._hybrid import GenerationOptions, query_status
from headway.comm.rank_processes import run_ranks
from headway.embedding import LOCAL
from hybrid_cases import STEPS, batch_of, collection, feature_configs, table_configs, train
from parameter_servers import parameter_servers
from torch.utils.checkpoint import checkpoint


def connect(addresses: list[str], mode: str = "sync", **settings: Any) -> hybrid.HybridTables:
    values = {"mode": mode, "servers": {"addresses": addresses}, "job": {"timeout_s": 30}, **settings}
    tables = hybrid.connect(hybrid.HybridConfig.of(values), tables=table_configs(), features=feature_configs(), seed=7)
    assert isinstance(tables, hybrid.HybridTables)
    return tables


@pytest.fixture
def two_servers() -> Iterator[list[str]]:
    with parameter_servers(2) as addresses:
        yield addresses


def test_without_staleness_it_learns_as_a_collection(two_servers: list[str]) -> None:
    source = [batch_of(step, 0) for step in range(STEPS)]
    tables, expected = connect(two_servers), collection(process_group=LOCAL)
    assert train(tables, source) == train(expected, source)
    tables.eval()
    expected.eval()
    unseen = {**batch_of(99, 0).features, "city": (torch.tensor([12345]), torch.tensor([1, 0, 0, 0, 0, 0]))}
    for (name, here), there in zip(tables(unseen).items(), expected(unseen).values(), strict=True):
        assert torch.equal(here, there), name
    rows = sum(table.size()["rows"] for table in expected.tables)
    assert sum(each.rows for each in tables.status()) == rows, "eval() inserts nothing"


def test_compressed_keys_change_no_bit(two_servers: list[str]) -> None:
    source = [batch_of(step, 0) for step in range(STEPS)]
    tables = connect(two_servers, compression={"ids": True})
    assert train(tables, source) == train(collection(process_group=LOCAL), source)
    tables.eval()
    large = {name: (torch.arange(1000), torch.ones(1000, dtype=torch.int64)) for name in source[0].features}
    tables(large)
    for status in tables.status():
        assert 0 < status.sent_id_bytes < status.plain_id_bytes
        assert status.sent_value_bytes == status.plain_value_bytes


def test_compressed_values_give_nearly_the_same_losses_and_always_the_same_ones(two_servers: list[str]) -> None:
    source = [batch_of(step, 0) for step in range(STEPS)]
    settings = {"staleness": 2, "order": "exact"}
    losses = train(connect(two_servers, "hybrid", **settings, compression={"values": True}), source)
    with parameter_servers(1) as addresses:
        expected = train(connect(addresses, "hybrid", **settings), source)
    with parameter_servers(2) as addresses:
        tables = connect(addresses, "hybrid", **settings, compression={"values": True})
        assert train(tables, source) == losses
        assert all(status.sent_value_bytes < status.plain_value_bytes for status in tables.status())
    assert losses != expected and losses == pytest.approx(expected, rel=0.02)


def test_another_compression_is_an_error_that_names_it(two_servers: list[str]) -> None:
    connect(two_servers, compression={"values": True})
    message = "the server has compression of ids off and of values on, and the request has .* of values off"
    with pytest.raises(RuntimeError, match=message):
        connect(two_servers)


def worker(rank: int, send: object, *, addresses: list[str], counts: list[int]) -> list[float]:
    """A dense worker; trains on ``counts[rank]`` batches."""
    group = dist.group.WORLD
    tables: Any = collection() if not addresses else connect(addresses)
    source = [batch_of(step, rank) for step in range(counts[rank])]
    own = torch.tensor(train(tables, source, group))
    dist.all_reduce(own, group=group)
    return own.tolist()


@pytest.mark.parametrize("counts", [[STEPS, STEPS], [STEPS, 3], [STEPS, 3, STEPS, STEPS]])
def test_workers_learn_as_ranks(two_servers: list[str], counts: list[int]) -> None:
    run = partial(run_ranks, num_ranks=len(counts), timeout_s=120, backend="gloo", wait_s=60)
    expected = run(partial(worker, addresses=[], counts=counts))
    assert run(partial(worker, addresses=list(two_servers), counts=counts)) == expected
    assert len(expected) == STEPS, "a worker without data trains empty batches"


def test_an_exact_order_makes_stale_reads_determined(two_servers: list[str]) -> None:
    source = [batch_of(step, 0) for step in range(STEPS)]
    losses = train(connect(two_servers, "hybrid", staleness=3, order="exact"), source)
    with parameter_servers(1) as addresses:
        assert train(connect(addresses, "hybrid", staleness=3, order="exact"), source) == losses
    assert losses != train(collection(process_group=LOCAL), source), "reads are stale"


def test_gradients_that_are_not_added_are_updates_of_their_own(two_servers: list[str]) -> None:
    source = [batch_of(step, 0) for step in range(STEPS)]
    settings: dict[str, Any] = {"staleness": 2, "order": "exact"}
    losses = train(connect(two_servers, "hybrid", **settings, combine="none"), source)
    with parameter_servers(1) as addresses:
        assert train(connect(addresses, "hybrid", **settings), source) == losses, "a worker alone adds nothing"
    run = partial(run_ranks, num_ranks=2, timeout_s=120, backend="gloo", wait_s=60)
    found = []
    for combine in ("sum", "none"):
        with parameter_servers(1) as addresses:
            found.append(run(partial(two_workers, addresses=list(addresses), **settings, combine=combine)))
    assert found[0] != found[1] and found[0] == pytest.approx(found[1], rel=0.05)


def two_workers(rank: int, send: object, *, addresses: list[str], **settings: Any) -> list[float]:
    """A dense worker; returns losses of both."""
    group = dist.group.WORLD
    source = [batch_of(step, rank) for step in range(STEPS)]
    own = torch.tensor(train(connect(addresses, "hybrid", **settings), source, group))
    dist.all_reduce(own, group=group)
    return own.tolist()


def test_the_staleness_stays_in_its_bound(two_servers: list[str]) -> None:
    tables = connect(two_servers, "hybrid", staleness=2)
    train(tables, [batch_of(step, 0) for step in range(STEPS)])
    for status in tables.status():
        assert status.num_applied == STEPS and status.parts == STEPS and status.voids == 0
        assert len(status.staleness) == 3 and sum(status.staleness) == status.lookups == STEPS


def test_the_end_of_a_loop_does_not_depend_on_the_time_of_confirmations(
    two_servers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = connect(two_servers, "hybrid", staleness=3)
    source = [batch_of(step, 0) for step in range(STEPS)]
    for is_late in (False, True):
        if is_late:  # Nothing is confirmed before it is waited for.
            monkeypatch.setattr(tables._lookups, "is_finished", lambda step, rank: False)
        first = tables.step
        for number, batch in enumerate(hybrid.batches(tables, source)):
            sum(each.sum() for each in tables(batch.features).values()).backward()
            tables.optimizer.step()
            if number == 4:
                break
        assert tables.step == first + 5 + 3, "the lookups ahead are void"
    counts = tables.counts()
    assert (counts.begun, counts.lost["skipped"] + counts.in_flight + counts.trained) == (16, 16)
    monkeypatch.undo()
    assert len(train(tables, source)) == STEPS
    assert [each.num_applied for each in tables.status()] == [16 + STEPS] * 2


def test_another_trainer_goes_on_where_the_first_ended(two_servers: list[str]) -> None:
    source = [batch_of(step, 0) for step in range(STEPS)]
    first = connect(two_servers)
    train(first, source[:5])
    late = first.begin(source[5].features)
    second = connect(two_servers)
    assert (second.step, second.generation) == (5, first.generation + 1)
    with pytest.raises(RuntimeError, match="generation 2 has ended"):
        first(late)
        first.optimizer.step()
        first.finish()
    train(second, source[5:])
    assert [each.num_applied for each in second.status()] == [STEPS, STEPS]


def test_a_lookup_after_the_end_begins_a_new_generation(two_servers: list[str]) -> None:
    source = [batch_of(step, 0) for step in range(STEPS)]
    tables = connect(two_servers, "hybrid", staleness=1, order="exact")
    losses = train(tables, source[:6]) + train(tables, source[6:])
    assert (tables.generation, tables.step) == (2, STEPS)
    assert [each.num_applied for each in tables.status()] == [STEPS, STEPS]
    assert len(losses) == STEPS


def test_batches_that_make_no_step_are_void(two_servers: list[str]) -> None:
    tables = connect(two_servers, "hybrid", staleness=1)
    tables.begin(batch_of(0, 0).features)
    second = tables.begin(batch_of(1, 0).features)
    with pytest.raises(ValueError, match=r"2 batches have begun and wait for optimizer.step"):
        tables.begin(batch_of(2, 0).features)
    tables.skip()
    tables(second)["user_id"].sum().backward()
    tables.optimizer.step()
    tables.begin(batch_of(2, 0).features)
    tables.finish()
    for status in tables.status():
        assert (status.parts, status.voids, status.num_applied) == (1, 2, 3)


def sums_of(tables: hybrid.HybridTables, features: Any) -> torch.Tensor:
    """Embeddings of one feature as servers have them now."""
    tables.eval()
    found = tables(features)["city"].detach().clone()
    tables.train()
    return found


def test_a_lookup_without_a_step_does_not_stop_the_learning(two_servers: list[str]) -> None:
    tables = connect(two_servers, "hybrid", staleness=4)
    features = batch_of(0, 0).features
    before = sums_of(tables, features)
    with torch.no_grad():
        tables(features)  # Such as an evaluation without eval().
    for _ in range(3):
        tables.optimizer.zero_grad()
        tables(features)["city"].sum().backward()
        tables.optimizer.step()
    counts = torch.bincount(features["city"][0], minlength=30)[features["city"][0]].view(-1, 1)
    assert torch.allclose(sums_of(tables, features) - before, -0.1 * 3 * counts.expand(-1, 2).float(), atol=1e-6)
    assert [(each.parts, each.voids) for each in tables.status()] == [(3, 1), (3, 1)]


def test_batches_that_a_loop_passes_over_are_void(two_servers: list[str]) -> None:
    tables = connect(two_servers, "hybrid", staleness=1)
    source = [batch_of(step, 0) for step in range(5)]
    for number, batch in enumerate(hybrid.batches(tables, source)):
        loss = tables(batch.features)["city"].sum()
        if number in (1, 2):
            continue
        loss.backward()
        tables.optimizer.step()
    assert [(each.parts, each.voids, each.num_applied) for each in tables.status()] == [(3, 2, 5), (3, 2, 5)]
    for number, batch in enumerate(hybrid.batches(tables, source)):
        tables(batch.features)["city"].sum().backward()
        if number == 1:
            break
        tables.optimizer.step()
    train(tables, source)
    for status in tables.status():
        assert status.num_applied == status.parts + status.voids and status.parts == 3 + 1 + 5


def test_a_forgotten_step_is_warned_of(two_servers: list[str]) -> None:
    tables = connect(two_servers)
    with pytest.warns(UserWarning, match=r"no optimizer.step\(\): its gradients are lost"):
        for batch in hybrid.batches(tables, [batch_of(step, 0) for step in range(3)]):
            tables(batch.features)["city"].sum().backward()
    assert [(each.parts, each.voids) for each in tables.status()] == [(0, 3), (0, 3)]


def test_workers_without_a_process_group_are_refused(two_servers: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"there are 2 dense workers and no process group"):
        connect(two_servers)


def test_one_word_changes_the_mode(two_servers: list[str]) -> None:
    for mode in ("local", "sync", "hybrid"):
        config = hybrid.HybridConfig.of({"mode": mode, "staleness": 3, "servers": {"addresses": two_servers}})
        assert config.most_missing_steps == (3 if mode == "hybrid" else 0)


def test_gradients_count_once(two_servers: list[str]) -> None:
    tables = connect(two_servers, "hybrid", staleness=1)
    features = batch_of(0, 0).features
    outputs = tables(features)
    loss = outputs["city"].sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
    second = tables(features)["city"].sum()
    second.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="2 batches have had a backward pass"):
        tables.optimizer.step()
    tables.skip()
    tables.optimizer.step()
    with pytest.raises(RuntimeError, match="has made its step"):
        second.backward()


def test_features_outside_of_the_loss_have_no_gradient(two_servers: list[str]) -> None:
    tables, expected = connect(two_servers), collection(process_group=LOCAL)
    for step in range(3):
        features = batch_of(step, 0).features
        for each in (tables, expected):
            each(features)["history"].sum().backward()
            each.optimizer.step()
    tables.eval()
    expected.eval()
    for here, there in zip(tables(features).values(), expected(features).values(), strict=True):
        assert torch.equal(here, there)


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_activation_checkpointing_learns_as_without(two_servers: list[str], is_reentrant: bool) -> None:
    tables, expected = connect(two_servers), collection(process_group=LOCAL)
    features = batch_of(0, 0).features
    weight = torch.ones((), requires_grad=True)
    for _ in range(2):
        inside = checkpoint(lambda scale: tables(features)["city"] * scale, weight, use_reentrant=is_reentrant)
        inside.sum().backward()
        tables.optimizer.step()
        expected(features)["city"].sum().backward()
        expected.optimizer.step()
    expected.eval()
    assert torch.equal(sums_of(tables, features), expected(features)["city"])


def test_a_refused_gradient_does_not_stop_others() -> None:
    with parameter_servers(1, "--strict", "1") as addresses:
        tables = connect(addresses)
        features = batch_of(0, 0).features
        (tables(features)["city"].sum() * float("nan")).backward()
        tables.optimizer.step()
        with pytest.raises(RuntimeError, match="batch of step 0, worker 0: a gradient is not finite"):
            tables(features)
        tables(features)["city"].sum().backward()
        tables.optimizer.step()
        tables.finish()
        assert [(each.parts, each.voids) for each in tables.status()] == [(1, 1)]


def test_a_grad_scaler_scales_and_skips(two_servers: list[str]) -> None:
    tables = connect(two_servers)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)
    features = batch_of(0, 0).features
    values = []
    for factor in (1.0, float("inf"), 1.0):
        found = tables(features)["city"]
        values.append(found.detach().clone())
        scaler.scale(found.sum() * factor).backward()
        scaler.step(tables.optimizer)
        scaler.update()
    learned = values[1] - values[0]
    counts = torch.bincount(features["city"][0], minlength=30)[features["city"][0]]
    assert torch.allclose(learned, -0.1 * counts.view(-1, 1).expand_as(learned)), "the scale is divided out"
    assert torch.equal(values[2], values[1]), "the step with inf was skipped"
    tables.finish()
    assert [(each.parts, each.voids) for each in tables.status()] == [(2, 1), (2, 1)]


def scaled_worker(rank: int, send: object, *, addresses: list[str]) -> list[float]:
    """Trains with a GradScaler. The second gradient of worker 1 is infinite. Returns the scales of all steps."""
    tables = connect(addresses)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)
    scales = []
    for step in range(3):
        loss = tables(batch_of(step, rank).features)["city"].sum()
        scaler.scale(loss * (float("inf") if (rank, step) == (1, 1) else 1.0)).backward()
        scaler.step(tables.optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    tables.finish()
    of_workers = [torch.empty(3) for _ in range(2)]
    dist.all_gather(of_workers, torch.tensor(scales))
    return [*of_workers[0].tolist(), *of_workers[1].tolist()]


def test_scalers_of_all_workers_skip_the_same_steps(two_servers: list[str]) -> None:
    scales = run_ranks(
        partial(scaled_worker, addresses=list(two_servers)), num_ranks=2, timeout_s=120, backend="gloo", wait_s=60
    )
    assert scales == [8.0, 4.0, 4.0] * 2
    states = [query_status(each, job="hybrid", timeout_s=30) for each in two_servers]
    assert [(each.parts, each.voids, each.void_not_finite) for each in states] == [(4, 2, 0)] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"staleness": -1}, "staleness must be from 0 to 1024"),
        ({"mode": "fast"}, "mode must be one of"),
        ({"mode": "sync", "combine": "none"}, 'combine = "none" contradicts mode = "sync"'),
        ({"mode": "local", "combine": "none"}, 'combine = "none" contradicts mode = "local"'),
        ({"stalenes": 1}, "did you mean staleness"),
        ({"servers": {"addresses": []}}, r"servers\.addresses is empty"),
        ({"job": {"timeout_s": 0}}, r"job\.timeout_s must be above 0"),
        ({"checkpoints": {"keep": -1}}, r"checkpoints\.keep must be from 0, not -1"),
        ({"checkpoints": {"every_steps": 0}}, r"checkpoints\.every_steps must be above 0"),
        ({"checkpoints": {"every": 5}}, r"did you mean checkpoints\.every_steps"),
        ({"compression": {"idss": True}}, r"did you mean compression\.ids"),
        ({"compression": {"values": "fp16"}}, r"compression\.values"),
    ],
)
def test_wrong_settings_are_errors(change: dict[str, Any], message: str) -> None:
    with pytest.raises(hybrid.ConfigError, match=message):
        hybrid.HybridConfig.of(change)


def test_a_wrong_secret_and_a_missing_server_are_named(
    two_servers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_GROUP_SECRET", "another secret")
    with pytest.raises(RuntimeError, match=two_servers[0]):
        connect(two_servers)
    monkeypatch.delenv("HEADWAY_GROUP_SECRET")
    with pytest.raises(ValueError, match="secret of the job"):
        connect(two_servers)
    monkeypatch.setenv("HEADWAY_GROUP_SECRET", "any secret")
    with pytest.raises(RuntimeError, match=r"127\.0\.0\.1:1"):
        connect(["127.0.0.1:1"], job={"connect_timeout_s": 0.5})


def test_a_killed_server_is_named() -> None:
    with parameter_servers(2) as addresses:
        tables = connect(addresses)
        tables(batch_of(0, 0).features)
        tables.optimizer.step()
        addresses.kill(1)
        with pytest.raises(RuntimeError, match=rf"parameter server 1 at {addresses[1]}"):
            tables(batch_of(1, 0).features)


def test_a_part_that_never_comes_is_a_timeout(two_servers: list[str]) -> None:
    tables = connect(two_servers, job={"timeout_s": 0.3})
    # The servers wait for a second worker that never comes.
    tables._lookups.begin_generation(9, GenerationOptions(workers=2, staleness=0, first_step=0), token=1)
    tables(batch_of(0, 0).features)
    tables.optimizer.step()
    with pytest.raises(RuntimeError, match=r"parameter server 0 at .*: batch of step 1, worker 0: no rows came within"):
        tables(batch_of(1, 0).features)
