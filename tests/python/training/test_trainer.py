# SPDX-License-Identifier: Apache-2.0
"""Training does not depend on how samples are divided, and goes on where it stopped.

A step has ``global_batch`` samples (16 here) over all ranks. Each rank divides its samples into micro-batches, whose
gradients are added up. ``same_bits`` and ``most_difference`` compare all weights and rows after two runs.
"""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from headway.checkpoints import TrainingCheckpointError
from headway.comm.rank_processes import RankFailedError
from headway.data import DataError
from headway.embedding import HashTableCollection
from headway.training import ConfigError, Trainer
from headway.training.trainer import LossError
from parquet_samples import make_rows, write_folder
from training_cases import ExactModel, Run, make_config, make_folder, most_difference, same_bits, train


def test_exact_sums_have_the_same_bits_for_any_ranks_and_micro_batches(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log", targets=2)

    def run(micro_batches: int) -> Run:
        return Run(config=make_config(folder, data={"micro_batches": micro_batches}), model=ExactModel)

    alone, *others = train(1, run(1), run(4))
    assert alone["step"] == 8 and alone["rows"]
    others += train(3, run(1), run(2)) + train(4, run(1), run(3))
    assert all(same_bits(other, alone) for other in others)


def test_a_model_learns_the_same_on_any_number_of_ranks(tmp_path: Path) -> None:
    """With clipping and dropout, and a last step of fewer samples than ranks."""
    folder = make_folder(tmp_path / "log", 65)
    optimizer = {"clip_norm": 0.5, "lr": 0.01, "warmup_steps": 3}

    def run(micro_batches: int) -> Run:
        data = {"micro_batches": micro_batches}
        return Run(config=make_config(folder, data=data, model={"dropout": 0.3}, optimizer=optimizer))

    alone, *others = train(1, run(1), run(3))
    others += train(4, run(1), run(2))
    for other in others:
        assert most_difference(other, alone) < 2e-4
        assert other["result"].losses == pytest.approx(alone["result"].losses, rel=1e-4)


@pytest.mark.parametrize(
    "data",
    [{}, {"balance": "budget", "budget": 40}, {"balance": "fixed", "scope": "global", "square_weight": 0.1}],
)
def test_a_training_that_is_beyond_its_last_step_ends_at_once(tmp_path: Path, data: dict[str, Any]) -> None:
    folder = make_folder(tmp_path / "log")
    if data.get("balance") != "budget":
        data = data | {"global_batch": 16}
    (before,) = train(1, Run(config=make_config(folder, data=dict(data), run={"max_steps": 3}), out=tmp_path / "out"))
    shorter = make_config(folder, data=dict(data), run={"max_steps": 2})
    (after,) = train(1, Run(config=shorter, out=tmp_path / "out", resume=True))
    assert after["step"] == 3 and same_bits(after, before)


def test_a_new_training_in_a_used_folder_sets_the_earlier_one_aside(tmp_path: Path) -> None:
    folder, out, lines = make_folder(tmp_path / "log"), tmp_path / "out", []
    longer, shorter = make_config(folder, run={"max_steps": 4}), make_config(folder, run={"max_steps": 2})
    Trainer(longer, out=out, say=lines.append).run()
    assert not any("earlier" in line for line in lines)
    Trainer(shorter, out=out, say=lines.append).run()
    assert any("an earlier training are in" in line and "earlier_1 now" in line for line in lines)
    assert [path.name for path in (out / "earlier_1" / "checkpoints").iterdir()] == ["step_00000004"]
    resumed = Trainer(make_config(folder, run={"max_steps": 3}), out=out, say=lines.append)
    assert resumed.resume() and resumed.step == 2
    assert any("step_00000002: run.max_steps is 3, and was 2" in line for line in lines)
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert max(row["step"] for row in rows) == 2


def steps_in(folder: Path) -> list[int]:
    return sorted(int(path.parent.name.removeprefix("step_")) for path in folder.glob("step_*/manifest.json"))


def result_steps(out: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (out / "results.jsonl").read_text().splitlines()]


def test_a_resume_from_an_older_checkpoint_sets_later_ones_aside(tmp_path: Path) -> None:
    folder, out, lines = make_folder(tmp_path / "log"), tmp_path / "out", []

    def config(last: int, keep: int) -> Any:
        return make_config(folder, run={"max_steps": last, "log_every": 1}, checkpoint={"every": 2, "keep": keep})

    whole = Trainer(config(8, 3), out=out, say=lines.append)
    whole.run()
    assert steps_in(out / "checkpoints") == [4, 6, 8]
    other = Trainer(config(5, 1), out=out, say=lines.append)
    assert other.resume(out / "checkpoints/step_00000004")
    result = other.run()
    assert any(f"checkpoints and results after step 4 are in {out / 'earlier_1'} now" in line for line in lines)
    assert result.checkpoint is not None and result.checkpoint.name == "step_00000005"
    assert steps_in(out / "checkpoints") == [5] and steps_in(out / "earlier_1/checkpoints") == [6, 8]
    assert result_steps(out) == [1, 2, 3, 4, 5] and result_steps(out / "earlier_1") == [5, 6, 7, 8]
    again = Trainer(config(6, 1), out=out, say=lines.append)
    assert again.resume() and again.step == 5


def test_a_checkpoint_of_another_folder_begins_a_folder_anew(tmp_path: Path) -> None:
    folder, one, other = make_folder(tmp_path / "log"), tmp_path / "one", tmp_path / "other"
    for out, last in ((one, 2), (other, 3)):
        Trainer(make_config(folder, run={"max_steps": last}), out=out, say=lambda line: None).run()
    trainer = Trainer(make_config(folder, run={"max_steps": 2}), out=other, say=lambda line: None)
    assert trainer.resume(one / "checkpoints/step_00000002")
    result = trainer.run()
    assert steps_in(other / "earlier_1/checkpoints") == [3] and steps_in(other / "checkpoints") == [2]
    assert result.checkpoint is not None and result.checkpoint.parent == other / "checkpoints"


def test_a_new_training_sets_all_files_of_an_earlier_one_aside(tmp_path: Path) -> None:
    folder, out = make_folder(tmp_path / "log"), tmp_path / "out"
    config = make_config(folder, run={"max_steps": 1})
    Trainer(config, out=out, say=lambda line: None, trace=range(1)).run()
    for name in ("not_finite_step_3_rank_0.json", "notes.txt"):
        (out / name).write_text("{}")
    before = {path.name for path in out.iterdir()} - {"notes.txt"}
    assert {"trace", "trace.json", "report.html", "results.jsonl", "checkpoints"} < before
    Trainer(config, out=out, say=lambda line: None).run()
    assert {path.name for path in (out / "earlier_1").iterdir()} == before
    assert (out / "notes.txt").exists() and not (out / "trace.json").exists()


def test_a_finished_training_that_is_started_again_writes_nothing_again(tmp_path: Path) -> None:
    folder, out = make_folder(tmp_path / "log", targets=2), tmp_path / "out"
    config = make_config(folder, data={"evaluation": str(folder)}, run={"max_steps": 2})
    first = Trainer(config, out=out, say=lambda line: None).run()
    assert first.checkpoint is not None
    manifest = first.checkpoint / "manifest.json"
    saved, lines = manifest.stat().st_mtime_ns, (out / "results.jsonl").read_text()
    trainer = Trainer(config, out=out, say=lambda line: None)
    assert trainer.resume()
    again = trainer.run()
    assert again.checkpoint == first.checkpoint and again.quality == first.quality
    assert manifest.stat().st_mtime_ns == saved and (out / "results.jsonl").read_text() == lines


def test_a_resumed_training_has_the_bits_of_one_that_was_not_stopped(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log", 70)
    runs = [Run(config=make_config(folder))]
    for last in (1, 4, 5, 7):  # An epoch has five steps.
        out = tmp_path / f"out-{last}"
        runs.append(Run(config=make_config(folder, run={"max_steps": last}), out=out))
        runs.append(Run(config=make_config(folder), out=out, resume=True))
    whole, *others = train(3, *runs)
    assert [same_bits(other, whole) for other in others] == [False, True] * 4


def test_another_number_of_ranks_resumes_with_the_same_samples(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log", targets=2)
    first = Run(config=make_config(folder, run={"max_steps": 3}), model=ExactModel)
    second = Run(config=make_config(folder), resume=True, model=ExactModel)
    (whole,) = train(1, Run(config=make_config(folder), model=ExactModel))
    for before, after in ((1, 3), (4, 2)):
        out = tmp_path / f"{before}-{after}"
        train(before, replace(first, out=out))
        (resumed,) = train(after, replace(second, out=out))
        assert same_bits(resumed, whole)


def signal_in_step(trainer: Trainer, *, step: int, number: signal.Signals) -> None:
    """Makes rank 1 send itself a signal when it begins a step."""
    plain = trainer._step

    def with_signal(*arguments: Any) -> None:
        if trainer.step == step and trainer.rank == 1:
            os.kill(os.getpid(), number)
        plain(*arguments)

    trainer._step = with_signal  # type: ignore[method-assign]


def test_sigterm_to_one_rank_saves_and_stops_all(tmp_path: Path) -> None:
    config, out = make_config(make_folder(tmp_path / "log")), tmp_path / "out"
    stopping = partial(signal_in_step, step=3, number=signal.SIGTERM)
    stopped, resumed, whole = train(
        2,
        Run(config=config, out=out, before=stopping),
        Run(config=config, out=out, resume=True),
        Run(config=config),
    )
    # The other rank learns of the signal when it prepares a step. Steps that are prepared by then are computed.
    assert stopped["result"].stopped and stopped["step"] in (4, 5)
    assert not resumed["result"].stopped and same_bits(resumed, whole)


def test_a_rank_that_is_killed_is_named_and_its_training_resumes(tmp_path: Path) -> None:
    config, out = make_config(make_folder(tmp_path / "log"), checkpoint={"every": 2}), tmp_path / "out"
    dying = partial(signal_in_step, step=3, number=signal.SIGKILL)
    with pytest.raises(RankFailedError, match="rank 1 was killed by SIGKILL"):
        train(3, Run(config=config, out=out, before=dying))
    resumed, whole = train(3, Run(config=config, out=out, resume=True), Run(config=config))
    assert same_bits(resumed, whole)


def test_old_checkpoints_are_removed_and_half_of_one_is_ignored(tmp_path: Path) -> None:
    folder, out = make_folder(tmp_path / "log"), tmp_path / "out"
    Trainer(make_config(folder, checkpoint={"every": 2, "keep": 2}), out=out, say=lambda line: None).run()
    saved = sorted(path.name for path in (out / "checkpoints").iterdir())
    assert saved == ["step_00000006", "step_00000008"]
    (out / "checkpoints/step_00000008/manifest.json").unlink()
    trainer = Trainer(make_config(folder), out=out, say=lambda line: None)
    assert trainer.resume() and trainer.step == 6


def test_what_differs_is_told_at_resume(tmp_path: Path) -> None:
    folder, out = make_folder(tmp_path / "log"), tmp_path / "out"
    Trainer(make_config(folder, run={"max_steps": 1}), out=out, say=lambda line: None).run()

    def refusal(config: Any) -> str:
        return refusal_of(config, None)

    def refusal_of(config: Any, model: torch.nn.Module | None) -> str:
        with pytest.raises(TrainingCheckpointError) as error:
            Trainer(config, model=model, out=out).resume()
        return str(error.value)

    assert "model.num_layers is 3, and was 2" in refusal(make_config(folder, model={"num_layers": 3}))
    assert "run.seed is 4, and was 0" in refusal(make_config(folder, run={"seed": 4}))
    assert "data.global_batch is 8, and was 16" in refusal(make_config(folder, data={"global_batch": 8}))
    other = make_folder(tmp_path / "other", 40)
    assert f"the data in {other} differs from that of the checkpoint" in refusal(make_config(other))
    assert "does not fit the model" in refusal_of(make_config(folder), ExactModel())
    dense = out / "checkpoints/step_00000001/dense.pt"
    dense.write_bytes(dense.read_bytes()[:100])
    assert "dense.pt cannot be read" in refusal(make_config(folder))
    assert not Trainer(make_config(folder), out=tmp_path / "none").resume()


def test_the_same_size_by_preset_default_or_number_is_no_difference(tmp_path: Path) -> None:
    folder, out, lines = make_folder(tmp_path / "log"), tmp_path / "out", []
    Trainer(make_config(folder, run={"max_steps": 1}), out=out, say=lines.append).run()
    same = {"num_layers": 2, "embedding_dim": 2, "dimension_factor": 2, "preset": "grm_4g",
            "recompute": "norm_and_gate", "expert_hidden": 64}  # fmt: skip
    assert Trainer(make_config(folder, run={"max_steps": 1}, model=same), out=out, say=lines.append).resume()
    assert not any("settings that differ" in line for line in lines)


def test_settings_of_the_optimizer_may_change_at_resume(tmp_path: Path) -> None:
    folder, out = make_folder(tmp_path / "log"), tmp_path / "out"
    Trainer(make_config(folder, run={"max_steps": 2}), out=out, say=lambda line: None).run()
    changed = make_config(folder, optimizer={"weight_decay": 0.5, "betas": (0.5, 0.9), "lr": 0.25})
    trainer = Trainer(changed, out=out, say=lambda line: None)
    assert trainer.resume()
    trainer.run()
    (group,) = trainer.optimizer.param_groups
    assert (group["weight_decay"], group["betas"], group["lr"]) == (0.5, (0.5, 0.9), 0.25)


class Diverging(ExactModel):
    """A model with an infinite loss from step 2 on."""

    def forward(self, batch: Any, *, seed: int, step: int) -> dict[str, torch.Tensor]:
        losses = super().forward(batch, seed=seed, step=step)
        return losses if step < 2 else losses | {"buy": losses["buy"] * torch.inf}


def test_a_loss_that_is_not_finite_ends_all_ranks_before_the_update(tmp_path: Path) -> None:
    folder, out = make_folder(tmp_path / "log"), tmp_path / "out"
    message = r"rank \d failed: LossError: step 3 of 8, epoch 1 of 2: the loss of buy is -?(inf|nan)"
    with pytest.raises(RankFailedError, match=message):
        train(2, Run(config=make_config(folder), model=Diverging, out=out))
    trainer = Trainer(make_config(folder), model=Diverging(), out=out, say=lambda line: None)
    with pytest.raises(LossError, match=r"its samples are in .*not_finite_step_3_rank_0.json"):
        trainer.run()
    assert trainer.step == 2
    assert len(json.loads((out / "not_finite_step_3_rank_0.json").read_text())["samples"]) == 16


def test_lines_tell_losses_and_speed(tmp_path: Path) -> None:
    folder, lines = make_folder(tmp_path / "log"), []
    config = make_config(folder, run={"log_every": 3}, data={"evaluation": str(folder)})
    result = Trainer(config, out=tmp_path / "out", say=lines.append).run()
    assert len(lines) == 3 and re.match(r"step 3 of 8, epoch 1 of 2: loss of click \d", lines[0])
    assert lines[2].startswith("step 8 of 8, epoch 2 of 2: ")
    assert "tokens/s" in lines[0] and "GFLOP/s" in lines[0]
    rows = [json.loads(line) for line in (tmp_path / "out/results.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["progress"] * 3 + ["quality"] * 2
    assert result.quality["click"].num_targets > 64 and rows[-1]["label"] == "buy"


def test_evaluation_has_the_same_value_on_any_number_of_ranks(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log", targets=2)
    config = make_config(folder, data={"evaluation": str(folder)})
    alone, other = (train(num_ranks, Run(config=config))[0]["result"].quality for num_ranks in (1, 3))
    assert alone["click"].num_targets == other["click"].num_targets == 128
    assert other["click"].auc == pytest.approx(alone["click"].auc, abs=2e-3)


def test_an_evaluation_may_have_fewer_samples_than_ranks(tmp_path: Path) -> None:
    few = make_folder(tmp_path / "few", 1, targets=5)
    config = make_config(make_folder(tmp_path / "log"), data={"evaluation": str(few)}, run={"max_steps": 1})
    (found,) = train(2, Run(config=config))
    assert found["result"].quality["click"].num_targets == 5


def test_a_bad_sample_of_the_evaluation_leaves_checkpoint_and_report(tmp_path: Path) -> None:
    rows = make_rows(8)
    rows["click"][5][0] = 2
    bad = write_folder(tmp_path / "bad", rows, row_group=4)
    config = make_config(make_folder(tmp_path / "log"), data={"evaluation": str(bad)}, run={"max_steps": 1})
    out = tmp_path / "out"
    message = r"evaluation: .*bad/part-0.parquet, row group 1, row 1: label click is 2, not 0 or 1; step 1 is saved in"
    with pytest.raises(DataError, match=message):
        Trainer(config, out=out, say=lambda line: None).run()
    assert steps_in(out / "checkpoints") == [1] and "Step 1 of 1" in (out / "report.html").read_text()


class Wrong(ExactModel):
    """A model with one mistake: in the names of its losses, or in label, size or sign of its predictions."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self._mistake = mistake

    def forward(self, batch: Any, *, seed: int, step: int) -> dict[str, torch.Tensor]:
        losses = super().forward(batch, seed=seed, step=step)
        return losses if self._mistake != "heads" else {"other": losses["click"]}

    def predict(self, batch: Any) -> dict[str, torch.Tensor]:
        found = {name: torch.full((batch.num_targets,), -1.0) for name in ("click", "buy")}
        if self._mistake == "label":
            del found["buy"]
        elif self._mistake == "size":
            found["click"] = found["click"][1:]
        elif self._mistake == "sign":
            found["click"][3] = 1.5
        elif self._mistake == "nan":
            found["buy"][4] = torch.nan
        return found


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("heads", r"forward\(\) has the heads other, and the counts click, buy"),
        ("label", r"predict\(\) returned nothing for the label buy, only click"),
        ("size", r"predict\(\) returned \(31,\) for click, and the batch has 32 targets"),
        ("sign", r"predict\(\) returned 1.5 for click of sample 1: it returns log-probabilities"),
        ("nan", r"predict\(\) returned nan for buy of sample 2: it returns log-probabilities"),
    ],
)
def test_mistakes_of_a_model_are_told(tmp_path: Path, mistake: str, message: str) -> None:
    folder = make_folder(tmp_path / "log", targets=2)
    config = make_config(folder, data={"evaluation": str(folder)}, run={"max_steps": 1})
    with pytest.raises(ValueError, match=message):
        Trainer(config, model=Wrong(mistake), out=str(tmp_path / "out"), say=lambda line: None).run()


class Idle(ExactModel):
    """A model with a layer that no loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(2, 2)


def test_parameters_without_a_loss_are_named(tmp_path: Path) -> None:
    config = make_config(make_folder(tmp_path / "log"), run={"max_steps": 2})
    found = "no loss depends on the parameters head.weight, head.bias"
    with pytest.raises(RankFailedError, match=f"{found}: leave them out"):
        train(2, Run(config=config, model=Idle))
    lines: list[str] = []
    Trainer(config, model=Idle(), say=lines.append).run()  # One rank trains it, as batches need no gradient of all.
    assert [line for line in lines if "no loss" in line] == [f"{found}: several ranks would refuse the model"]


def test_tables_that_average_gradients_are_refused_on_one_rank_too(tmp_path: Path) -> None:
    model = ExactModel(make_tables=partial(HashTableCollection, gradient_reduction="mean"))
    with pytest.raises(ConfigError, match='tables of a model need gradient_reduction="sum"'):
        Trainer(make_config(make_folder(tmp_path / "log")), model=model)


def test_a_model_without_a_method_or_ranks_without_a_group_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(make_folder(tmp_path / "log"))
    with pytest.raises(ConfigError, match=r"the model has no count_terms\(\)"):
        Trainer(config, model=torch.nn.Linear(1, 1))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="WORLD_SIZE is 2, and there is no process group"):
        Trainer(config)


def test_what_cannot_be_trained_is_told(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log", 1)
    with pytest.raises(RankFailedError, match=r"2 ranks share 1 sample of .*log: use fewer ranks"):
        train(2, Run(config=make_config(folder)))
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match=r"run\.device is cuda, and torch finds no GPU"):
            Trainer(make_config(folder, run={"device": "cuda"}))


def test_a_missing_evaluation_folder_is_refused_before_the_training(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log")
    with pytest.raises(DataError, match="there is no folder"):
        Trainer(make_config(folder, data={"evaluation": str(tmp_path / "nothing")}))
