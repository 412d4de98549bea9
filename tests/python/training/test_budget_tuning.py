# SPDX-License-Identifier: Apache-2.0
"""The budget that is measured before a training: what is chosen for given times and memory, and that ranks agree."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from headway.comm.rank_processes import run_ranks
from headway.data import SampleBatch
from headway.training import ConfigError, Trainer, device_memory
from headway.training.budget_tuning import TunedBudget, tune_budget
from headway.training.device_memory import DeviceMemory
from headway.training.trainer import BatchMemoryError
from headway.training.trial_passes import PassMemoryError, TrialPasses
from torch import Tensor
from training_cases import ExactModel, Run, make_config, make_folder, train

CPU = torch.device("cpu")


class Device:
    """Stands for ``TrialPasses`` and ``PeakMemory``. Passes over T tokens take fixed_s + s_per_token T."""

    def __init__(self, *, fixed_s: float = 0.0, s_per_token: float = 1e-6, memory_per_token: float = 1e-9) -> None:
        self.fixed_s, self.s_per_token, self.memory_per_token = fixed_s, s_per_token, memory_per_token
        self.most_tokens = 0  #: Since reset().
        self.calls: list[tuple[int, int]] = []
        self.capacity = math.inf  #: Tokens at which an allocation fails.
        self.fixed_memory = 0.1
        self.shortest = 2

    def time(self, *, count: int, length: int) -> tuple[int, float]:
        self.calls.append((count, length))
        if count * length > self.capacity:
            raise PassMemoryError("the device of a rank has no memory for a pass")
        self.most_tokens = max(self.most_tokens, count * length)
        return count * length, self.fixed_s + self.s_per_token * count * length

    def reset(self) -> None:
        self.most_tokens = 0

    def peak_share(self) -> float:
        return self.fixed_memory + self.memory_per_token * self.most_tokens


def tune(device: Any, *, longest: int = 1_000, limit: float = 0.9, square_weight: float = 0.0) -> TunedBudget:
    return tune_budget(device, device, longest=longest, square_weight=square_weight, limit=limit, device=CPU)


def test_the_budget_grows_while_the_next_size_gains_a_percent() -> None:
    # Throughput gains 2.0% from 128,000 to 256,000 tokens, and 0.8% from there on.
    tuned = tune(Device(fixed_s=0.004))
    assert tuned.tokens == 256_000 and not tuned.is_bound_by_memory


@pytest.mark.parametrize(
    ("tokens_at_limit", "least"),
    [
        (150_000, 149_000),
        (1_500, 1_490),  # Twice the first size, 1,000 tokens, does not fit.
    ],
)
def test_memory_bounds_the_budget(tokens_at_limit: int, least: int) -> None:
    tuned = tune(Device(fixed_s=0.004, memory_per_token=0.8 / tokens_at_limit))
    assert tuned.is_bound_by_memory and least <= tuned.tokens <= tokens_at_limit
    assert tuned.memory == pytest.approx(0.9, abs=0.01)


def test_a_large_fixed_part_of_the_memory_is_told_from_the_rest() -> None:
    device = Device(fixed_s=0.004, memory_per_token=1e-6)
    device.fixed_memory = 0.6  # Tables, for example.
    assert tune(device).tokens == pytest.approx(256_000, rel=0.01)


def test_a_batch_that_does_not_fit_is_half_as_large_the_next_time() -> None:
    device = Device(fixed_s=0.004)
    device.capacity = 50_000  # The line of memory does not tell.
    tuned = tune(device)
    assert tuned.is_bound_by_memory and tuned.tokens == 32_000


def test_all_compositions_of_a_budget_are_measured() -> None:
    device = Device(fixed_s=0.0)
    tune(device, longest=1_000, square_weight=0.001)
    # A budget of 2,000 weighted tokens: one sample of 1,000 tokens, or 998 of 2.
    assert device.calls[:2] == [(1, 1_000), (998, 2)]


def test_a_sample_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ConfigError, match="a sample of 1000 tokens takes more than 90% of the memory"):
        tune(Device(memory_per_token=1e-3))


def test_trial_passes_change_nothing(tmp_path: Path) -> None:
    trainer = Trainer(make_config(make_folder(tmp_path / "log")))
    before = [each.detach().clone() for each in trainer.model.parameters()]
    trainer.model.train()
    schema, autocast = trainer.config.data.schema(), trainer._train_step.autocast
    with TrialPasses(trainer.model, schema, device=CPU, autocast=autocast) as passes:
        tokens, seconds = passes.time(count=3, length=5)
    assert tokens == 15 and seconds > 0
    assert trainer.model.training and all(each.grad is None for each in trainer.model.parameters())
    assert all(map(torch.equal, before, trainer.model.parameters()))
    assert all(each["rows"] == 0 for each in trainer.tables[0].statistics()["tables"].values())


def test_tokens_of_the_context_count(tmp_path: Path) -> None:
    trainer = Trainer(make_config(make_folder(tmp_path / "log")))
    with trainer._division.trial_passes(warmups=0, rounds=1) as passes:
        assert passes.shortest == 3  # A token of context, one of history, and a target.
        assert passes.time(count=4, length=3)[0] == 12 and passes.time(count=2, length=9)[0] == 18


class FullOnRank1(ExactModel):
    def forward(self, batch: SampleBatch, *, seed: int, step: int) -> dict[str, Tensor]:
        found = super().forward(batch, seed=seed, step=step)
        if dist.get_rank() == 1 and batch.num_samples > 8:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return found


def pass_on_rank(rank: int, send: Callable[[str], None], *, folder: Path) -> None:
    trainer = Trainer(make_config(folder), model=FullOnRank1(), say=lambda line: None)
    with trainer._division.trial_passes(warmups=0, rounds=2) as passes:
        passes.time(count=8, length=4)
        try:
            passes.time(count=9, length=4)
        except PassMemoryError as error:
            send(f"{rank}: {error}")
        passes.time(count=8, length=4)  # The ranks are still in step.


def test_all_ranks_learn_that_one_has_no_memory(tmp_path: Path) -> None:
    found: list[str] = []
    work = partial(pass_on_rank, folder=make_folder(tmp_path / "log"))
    run_ranks(work, num_ranks=2, timeout_s=60, backend="headway", on_message=found.append)
    assert sorted(found) == [f"{rank}: the device of a rank has no memory for a pass" for rank in range(2)]


def test_memory_of_the_process_has_a_peak() -> None:
    memory = DeviceMemory(CPU, num_ranks=1)
    memory.reset()
    before = memory.peak_share()
    torch.ones(50_000_000)  # 200 MB, freed at once.
    after = memory.peak_share()
    memory.reset()
    assert 0 < before < after < 1 and memory.peak_share() < after
    assert DeviceMemory(CPU, num_ranks=1, extra_bytes=1 << 30).peak_share() > memory.peak_share()


def test_a_limit_of_the_container_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    free = DeviceMemory(CPU, num_ranks=1).peak_share()
    used = device_memory._process_bytes("VmRSS")
    monkeypatch.setattr(device_memory, "memory_limit_bytes", lambda: used + (256 << 20))
    assert DeviceMemory(CPU, num_ranks=1).peak_share() > max(2 * free, 0.5)


def test_a_training_measures_its_budget_once(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log")
    lines: list[str] = []
    config = make_config(folder, data={"balance": "budget"}, run={"max_steps": 1})
    result = Trainer(config, out=tmp_path / "out", say=lines.append).run()
    assert lines[0].startswith("the budget is ") and result.checkpoint is not None
    found = json.loads((result.checkpoint / "manifest.json").read_text())["budget"]
    assert found >= config.model.grm().max_length
    lines.clear()
    later = Trainer(make_config(folder, data={"balance": "budget"}), out=tmp_path / "out", say=lines.append)
    assert later.resume()
    later.run()
    assert later._division.budget == found and not any("the budget is" in line for line in lines)


def test_ranks_agree_on_a_budget(tmp_path: Path) -> None:
    config = make_config(make_folder(tmp_path / "log"), data={"balance": "budget"}, run={"max_steps": 1})
    train(2, Run(config=config, out=tmp_path / "out"))  # Ranks with different budgets would end at different steps.
    assert json.loads(next((tmp_path / "out").glob("checkpoints/*/manifest.json")).read_text())["budget"] > 0


def test_a_step_without_memory_names_its_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(make_config(make_folder(tmp_path / "log")))

    def fail(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(trainer.model, "forward", fail)
    place = "step 1 of 8, epoch 1 of 2, rank 0"
    with pytest.raises(
        BatchMemoryError, match=rf"{place}: no memory for 16 samples of \d+ tokens, the longest of"
    ):
        trainer.run()
