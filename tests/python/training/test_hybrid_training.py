# SPDX-License-Identifier: Apache-2.0
"""The trainer with tables on parameter servers: the bits of its own tables without staleness, and a bound with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from headway import hybrid
from headway._hybrid import query_status
from headway.comm.rank_processes import run_ranks
from headway.training import ConfigError, Progress, Trainer, TrainingConfig
from headway.training.train_step import LossError
from parameter_servers import parameter_servers
from training_cases import ExactModel, make_config, make_folder

IDS = 60  #: Above all ids of the logs.


@pytest.fixture
def server() -> Iterator[list[str]]:
    with parameter_servers(1) as addresses:
        yield addresses


def on_servers(config: TrainingConfig, addresses: list[str], mode: str = "sync", **settings: Any) -> TrainingConfig:
    servers = {"servers": {"addresses": addresses}, "job": {"timeout_s": 30.0}}
    return TrainingConfig.of(config.as_dict() | {"mode": mode} | servers | settings)


def outcome_of(trainer: Trainer) -> dict[str, Any]:
    """Trains; returns losses of all lines, dense weights, and the embeddings of all ids as ``eval()`` reads them."""
    progress: list[Progress] = []
    trainer._observe = progress.append
    result = trainer.run()
    (tables,) = trainer.tables
    ids = torch.arange(IDS)
    with torch.no_grad():
        found = tables.eval()({each.name: (ids, torch.ones_like(ids)) for each in tables.features})
    return {
        "losses": [dict(each.losses) for each in progress],
        "dense": {name: value.detach().numpy().tobytes() for name, value in trainer.model.named_parameters()},
        "rows": {name: rows.numpy().tobytes() for name, rows in found.items()},
        "quality": result.quality,
        "skipped": progress[-1].skipped_steps,
        "last": progress[-1],
    }


def same_bits(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one[name] == other[name] for name in ("losses", "dense", "rows", "quality"))


def train_rank(
    rank: int,
    send: Callable[[Any], None],
    *,
    configs: list[TrainingConfig],
    model: Any = None,
    outs: list[Path | None],
) -> list[dict[str, Any]]:
    """Trains by each config in turn. ``model`` gets the config, and makes the model."""
    torch.set_num_threads(1)
    outcomes = []
    for config, out in zip(configs, outs, strict=True):
        trainer = Trainer(config, model=None if model is None else model(config), out=out, say=lambda line: None)
        trainer.resume()
        outcomes.append(outcome_of(trainer))
    return outcomes


def train(
    num_ranks: int, *configs: TrainingConfig, model: Any = None, outs: list[Path | None] | None = None
) -> list[dict[str, Any]]:
    """Trains on ranks of this host; returns the outcomes of rank 0.

    A run resumes from the newest checkpoint of its folder of ``outs``, and saves one there.
    """
    run = partial(train_rank, configs=list(configs), model=model, outs=outs or [None] * len(configs))
    if num_ranks == 1:
        num_threads = torch.get_num_threads()
        try:
            return run(0, print)
        finally:
            torch.set_num_threads(num_threads)
    return run_ranks(run, num_ranks=num_ranks, timeout_s=200, backend="headway", wait_s=120)


def status_of(address: str) -> hybrid.ServerStatus:
    return query_status(address, job="hybrid", timeout_s=30)


def test_one_worker_without_staleness_learns_the_bits_of_local_tables(tmp_path: Path, server: list[str]) -> None:
    folder = make_folder(tmp_path / "log", 65)
    config = make_config(
        folder,
        data={"evaluation": str(folder)},
        model={"dropout": 0.3, "deep": [8]},
        optimizer={"lr": 0.01, "table_lr": 0.05, "warmup_steps": 3, "decay": "cosine"},
        run={"log_every": 1},
    )
    local, sync = train(1, config, on_servers(config, server))
    assert len(local["losses"]) == 10 and same_bits(sync, local)
    assert (sync["last"].staleness, local["last"].staleness, local["last"].server_wait) == (0.0, None, None)
    assert sync["last"].rows == local["last"].rows
    status = status_of(server[0])
    assert (status.parts, status.voids, status.num_applied) == (10, 0, 10)


def test_in_exact_order_stale_reads_are_determined(tmp_path: Path) -> None:
    config = make_config(make_folder(tmp_path / "log"), run={"log_every": 1})
    with parameter_servers(2) as addresses:
        one, other = (on_servers(config, [each], "hybrid", staleness=2, order="exact") for each in addresses)
        local, first, second = train(1, config, one, other)
    assert same_bits(first, second) and not same_bits(first, local)


def test_two_workers_learn_as_two_ranks_and_staleness_stays_in_its_bound(tmp_path: Path) -> None:
    """The last step of an epoch has one sample, so a rank trains an empty batch.

    With a budget an epoch ends by a step without samples, of which servers see nothing, or its void notices.
    """
    folder = make_folder(tmp_path / "log", 65)
    plain, moving, budget = (
        make_config(folder, data={"evaluation": str(folder)} | data, run={"log_every": 1})
        for data in (
            {"global_batch": 16},
            {"global_batch": 16, "balance": "fixed", "scope": "global", "square_weight": 0.1},
            {"balance": "budget", "budget": 40},
        )
    )
    with parameter_servers(6) as addresses:
        configs = [plain, moving, budget]
        configs += [on_servers(each, [address]) for each, address in zip(configs, addresses[:3], strict=True)]
        for address, order in zip(addresses[3:5], ("free", "exact"), strict=True):
            configs.append(on_servers(plain, [address], "hybrid", staleness=2, order=order))
        configs.append(on_servers(budget, addresses[5:], "hybrid", staleness=2))
        *locals_and_syncs, free, exact, stale_budget = train(2, *configs)
        for local, sync, address in zip(locals_and_syncs[:3], locals_and_syncs[3:], addresses[:3], strict=True):
            assert same_bits(sync, local)
            status, num_steps = status_of(address), len(local["losses"])
            assert (status.num_applied, status.parts, status.voids) == (num_steps, 2 * num_steps, 0)
        for stale, address in ((free, addresses[3]), (exact, addresses[4])):
            status = status_of(address)
            assert (status.parts, status.voids, status.num_applied) == (20, 0, 10)
            assert len(status.staleness) == 3 and sum(status.staleness) == 20
            assert 0 < stale["last"].staleness <= 2 and 0 <= stale["last"].server_wait < 1
            assert re.search(r"wait for servers \d+\.\d%, staleness [12]\.\d", stale["last"].line())
            assert not same_bits(stale, locals_and_syncs[0]), "lookups lack updates"
        status, num_steps = status_of(addresses[5]), len(stale_budget["losses"])
        assert num_steps == len(locals_and_syncs[2]["losses"]) and status.parts == 2 * num_steps
        assert status.voids > 0 and 2 * status.num_applied == status.parts + status.voids


class Overflowing(ExactModel):
    """Gradients of rows are infinite on rank 1 in step 1, and those of the dense part are not."""

    def forward(self, batch: Any, *, seed: int, step: int) -> dict[str, torch.Tensor]:
        self._is_bad = step == 1 and dist.get_rank() == 1
        return super().forward(batch, seed=seed, step=step)

    def rows_of(self, batch: Any) -> torch.Tensor:
        rows = super().rows_of(batch)
        if self._is_bad:
            rows.register_hook(lambda gradient: gradient * torch.inf)
        return rows


def exact_model(config: TrainingConfig, kind: type[ExactModel] = ExactModel) -> ExactModel:
    return kind(make_tables=partial(hybrid.connect, config))


def test_ranks_skip_the_same_steps_in_float16(tmp_path: Path, server: list[str]) -> None:
    config = make_config(make_folder(tmp_path / "log", targets=2), run={"log_every": 1, "dtype": "float16"})
    model = partial(exact_model, kind=Overflowing)
    local, sync = train(2, config, on_servers(config, server), model=model)
    assert local["skipped"] == sync["skipped"] == 1
    assert same_bits(sync, local)
    status = status_of(server[0])
    assert (status.parts, status.voids, status.void_not_finite) == (14, 2, 0)


def test_a_model_of_ones_own_needs_the_tables_of_the_mode(tmp_path: Path, server: list[str]) -> None:
    config = make_config(make_folder(tmp_path / "log", targets=2), run={"log_every": 1})
    sync, stale = (on_servers(config, server, mode, staleness=3) for mode in ("sync", "hybrid"))
    for other, made_for, message in (
        (config, sync, 'the model has tables on parameter servers, and mode is "local"'),
        (sync, config, 'the model has tables on its ranks, and mode is "sync"'),
        (stale, sync, "the tables of the model have a staleness of 0, and the training has 3"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            Trainer(other, model=exact_model(made_for), say=lambda line: None)
    twice = exact_model(sync)
    twice.second = exact_model(sync)
    with pytest.raises(ConfigError, match="the model has 2 HybridTables"):
        Trainer(sync, model=twice, say=lambda line: None)
    with parameter_servers(1) as addresses:
        local, found = train(1, config, on_servers(config, addresses), model=exact_model)
    assert same_bits(found, local)


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("optimizer", {"clip_norm": 0.5}, r"optimizer\.clip_norm = 0\.5 needs mode = \"local\", not \"{mode}\""),
        ("run", {"prioritized_updates": True}, r"run\.prioritized_updates = true needs mode = \"local\""),
        ("data", {"micro_batches": 2}, r"data\.micro_batches = 2 needs mode = \"local\", not \"{mode}\""),
        ("workers", {"addresses": ["a:1"]}, r"workers\.addresses = .* the trainer reads ids itself"),
    ],
)
@pytest.mark.parametrize("mode", ["sync", "hybrid"])
def test_settings_that_a_mode_cannot_honour_are_named(
    section: str, change: dict[str, Any], message: str, mode: str
) -> None:
    values = make_config(Path("log")).as_dict()
    values[section] |= change
    TrainingConfig.of(values)
    with pytest.raises(ConfigError, match=message.format(mode=mode)):
        TrainingConfig.of(values | {"mode": mode})


def test_a_dense_model_on_servers_is_not_for_the_trainer() -> None:
    with pytest.raises(ConfigError, match=r'mode = "async" is for scripts of headway\.hybrid'):
        TrainingConfig.of(make_config(Path("log")).as_dict() | {"mode": "async"})
    with pytest.raises(ConfigError, match=r"sync_rows = 9 is for scripts of headway\.hybrid"):
        TrainingConfig.of(make_config(Path("log")).as_dict() | {"mode": "hybrid", "sync_rows": 9})


def test_a_loss_that_is_not_finite_makes_no_step(tmp_path: Path, server: list[str]) -> None:
    config = on_servers(make_config(make_folder(tmp_path / "log")), server)
    trainer = Trainer(config, say=lambda line: None)
    with torch.no_grad():
        trainer.model.head_bias.fill_(torch.nan)
    with pytest.raises(LossError, match="step 1 of 8, epoch 1 of 2: the loss of"):
        trainer.run()
    trainer.tables[0].finish()
    status = status_of(server[0])
    assert (status.parts, status.voids) == (0, 1)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_resumed_training_has_the_bits_of_one_that_was_not_stopped(tmp_path: Path, num_ranks: int) -> None:
    """A run stops after 3 of 8 steps. It goes on at a fresh server, or on the ranks, and the other way round."""
    config = make_config(make_folder(tmp_path / "log"), run={"log_every": 1}, checkpoint={"every": 2})
    short = make_config(tmp_path / "log", run={"log_every": 1, "max_steps": 3})
    one, other, third = (tmp_path / name for name in ("one", "other", "third"))
    with parameter_servers(5) as addresses:
        sync = [on_servers(short if index < 2 else config, [each]) for index, each in enumerate(addresses)]
        configs = [config, sync[0], sync[2], sync[1], config, short, sync[3], sync[4]]
        whole, _, resumed, _, on_ranks, _, at_server, saving = train(
            num_ranks, *configs, outs=[None, one, one, other, other, third, third, tmp_path / "whole"]
        )
    for found in (resumed, on_ranks, at_server):
        assert found["losses"] == whole["losses"][3:] and found["rows"] == whole["rows"]
        assert found["dense"] == whole["dense"]
    assert same_bits(saving, whole), "checkpoints change nothing"


@pytest.mark.parametrize("order", ["free", "exact"])
def test_lookups_of_later_steps_wait_for_a_checkpoint(tmp_path: Path, server: list[str], order: str) -> None:
    """Else they would be counted in it, and repeated after it."""
    config = make_config(make_folder(tmp_path / "log"), run={"log_every": 1}, checkpoint={"every": 3})
    (found,) = train(1, on_servers(config, server, "hybrid", staleness=2, order=order), outs=[tmp_path / "out"])
    status = status_of(server[0])
    assert (status.parts, status.voids, status.lookups) == (8, 0, 8) and len(found["losses"]) == 8
    saved = sorted(path.name for path in (tmp_path / "out/checkpoints").iterdir())
    assert saved == ["step_00000006", "step_00000008"]
