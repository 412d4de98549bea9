# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of ``headway train`` is exported as it is, and predicts what its model does in ``eval()``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_ranks import NEEDS_GPU
from headway.data import BatchReader, ParquetFolder, SampleSchema
from headway.data.sample_batch import SampleBatch
from headway.embedding import LOCAL
from headway.nn import GRM, GRMConfig
from headway.serving import Bucket, DenseGRM, PackageError, Predictor, Request, RequestError, export_grm
from headway.serving.command_line import main
from headway.training import Trainer, TrainingConfig
from parquet_samples import SCHEMA, make_rows, write_folder

BUCKET = Bucket(40, users=8, tokens=96)
SIZES = {"dim": 16, "num_layers": 2, "num_heads": 2, "head_dim": 8, "max_length": 64, "embedding_dim": 8,
         "expert_hidden": 8}  # fmt: skip


def config_of(folder: Path) -> TrainingConfig:
    data = {"train": str(folder), "context": list(SCHEMA.context), "events": list(SCHEMA.events),
            "actions": list(SCHEMA.actions), "labels": list(SCHEMA.labels), "global_batch": 8}  # fmt: skip
    return TrainingConfig.of(
        {
            "data": data,
            "model": SIZES | {"wide": True, "deep": [8, 4]},
            "run": {"device": "cpu", "max_steps": 4, "log_every": 4},
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("rows"), make_rows(40))


@pytest.fixture(scope="module")
def trained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    trainer = Trainer(config_of(folder), out=tmp_path_factory.mktemp("out"), say=lambda line: None)
    trainer.run()
    trainer.model.eval()
    return trainer


@pytest.fixture(scope="module")
def batches(folder: Path) -> list[SampleBatch]:
    reader = BatchReader(ParquetFolder(folder, SCHEMA), global_batch=6)
    return [batch for step in reader for batch in step.batches]


@pytest.fixture(scope="module")
def predictor(trained: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    package = tmp_path_factory.mktemp("packages") / "first"
    manifest = export_grm(trained.out, package, buckets=[BUCKET])
    assert manifest.version == "step_00000004" and manifest.outputs == list(SCHEMA.labels)
    return Predictor(package)


def request_of(batch: SampleBatch, schema: SampleSchema = SCHEMA) -> Request:
    """The users, histories and targets of a batch as a request."""
    ones, of_items = torch.ones_like(batch.history_lengths), torch.ones(batch.num_targets, dtype=torch.int64)
    ends = batch.event_lengths.cumsum(0)
    is_target = torch.cat(
        [
            torch.cat([torch.zeros(int(h), dtype=torch.bool), torch.ones(int(t), dtype=torch.bool)])
            for h, t in zip(batch.history_lengths, batch.target_lengths, strict=True)
        ]
    )
    assert int(ends[-1]) == len(is_target)
    features = {name: (ids, ones) for name, ids in batch.context.items()}
    features |= {name: (ids[~is_target], batch.history_lengths) for name, ids in batch.events.items()}
    features |= {name: (ids, batch.history_lengths) for name, ids in batch.actions.items()}
    features |= {f"target_{name}": (ids[is_target], of_items) for name, ids in batch.events.items()}
    return Request(features=features, items=batch.target_lengths)


def test_predictions_are_those_of_the_trained_model(
    predictor: Predictor, trained: Trainer, batches: list[SampleBatch]
) -> None:
    for batch in batches[:4]:
        found = predictor.predict(request_of(batch))
        with torch.no_grad():
            expected = trained.model.predict(batch)
        for name in SCHEMA.labels:
            torch.testing.assert_close(found[name], expected[name].exp(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 2e-2), ("float16", 2e-3)])
def test_a_package_in_16_bits_predicts_what_the_model_does_under_autocast(
    trained: Trainer, batches: list[SampleBatch], tmp_path: Path, dtype: Any, tolerance: float, device: Any
) -> None:
    export_grm(trained.out, tmp_path / dtype, buckets=[BUCKET], dtype=dtype, device=device)
    predictor = Predictor(tmp_path / dtype)
    differs = False
    for batch in batches[:4]:
        found = predictor.predict(request_of(batch))
        with torch.no_grad(), torch.autocast("cpu", dtype=getattr(torch, dtype)):
            in_16_bits = trained.model.predict(batch)
        with torch.no_grad():
            in_32_bits = trained.model.predict(batch)
        for name in SCHEMA.labels:
            assert found[name].dtype == torch.float32
            torch.testing.assert_close(found[name], in_16_bits[name].exp(), rtol=tolerance, atol=tolerance)
            differs |= not torch.allclose(found[name], in_32_bits[name].exp(), rtol=1e-5, atol=1e-5)
    assert differs, "the products were computed in float32"


def test_other_users_of_a_batch_do_not_change_a_bit(predictor: Predictor, batches: list[SampleBatch]) -> None:
    request = request_of(batches[0])
    together = predictor.predict(request)
    assert request.items is not None
    begin = 0
    for user, count in enumerate(request.items.tolist()):
        alone = predictor.predict(of_user(request, user))
        for name, values in together.items():
            assert torch.equal(alone[name], values[begin : begin + count]), (name, user)
        begin += count


def of_user(request: Request, user: int) -> Request:
    """The part of one user."""
    assert request.items is not None
    items = slice(int(request.items[:user].sum()), int(request.items[: user + 1].sum()))
    features: dict[str, Any] = {}
    for name, (ids, lengths) in request.features.items():
        rows = items if name.startswith("target_") else slice(user, user + 1)
        begin = int(lengths[: rows.start].sum())
        features[name] = (ids[begin : begin + int(lengths[rows].sum())], lengths[rows])
    return replace(request, features=features, items=request.items[user : user + 1])


def test_histories_of_unequal_lengths_are_refused(predictor: Predictor, batches: list[SampleBatch]) -> None:
    request = request_of(batches[0])
    name = SCHEMA.events[0]
    ids, lengths = request.features[name]
    swapped = lengths.clone()
    swapped[0], swapped[1] = lengths[0] + 1, lengths[1] - 1
    last = (*SCHEMA.events, *SCHEMA.actions)[-1]
    wrong = replace(request, features={**request.features, last: (request.features[last][0], swapped)})
    with pytest.raises(RequestError, match=f"{last}.lengths differ from those of another feature of history"):
        predictor.predict(wrong)
    longest = predictor.manifest.longest
    assert longest == SIZES["max_length"] - 1
    user, num_ids = torch.tensor([1]), torch.tensor([longest])
    events = (torch.arange(longest), num_ids)
    long = {"user": (user, user)} | dict.fromkeys((*SCHEMA.events, *SCHEMA.actions), events)
    long |= {f"target_{each}": (user, user) for each in SCHEMA.events}
    with pytest.raises(RequestError, match="user 0 has 63 values and 1 items, and 63 are allowed together"):
        predictor.predict(Request(features=long, items=user))
    both = torch.tensor([2] + [1] * (len(request.features["target_item"][1]) - 2) + [0])
    doubled = {**request.features, "target_item": (torch.arange(int(both.sum())), both)}
    with pytest.raises(RequestError, match=r"target_item\.lengths: each list has exactly one id"):
        predictor.predict(replace(request, features=doubled))
    with pytest.raises(RequestError, match=r"items: \d+ is above"):
        predictor.predict(replace(request, items=torch.full_like(request.items, (1 << 63) - 1)))
    with pytest.raises(RequestError, match="items is missing"):
        predictor.predict(replace(request, items=None))
    assert len(ids) == int(lengths.sum())


def test_the_command_exports_a_checkpoint(
    trained: Trainer, tmp_path: Path, capsys: pytest.CaptureFixture[str], batches: list[SampleBatch]
) -> None:
    package = tmp_path / "package"
    arguments = [str(trained.out / "checkpoints" / "step_00000004"), str(package), "--bucket", "20,6,40"]
    assert main([*arguments, "--version", "blue"]) == 0
    assert "dense_20_6_40.pt2: 20 items, 6 users, 40 tokens" in capsys.readouterr().out
    predictor = Predictor(package)
    assert predictor.manifest.version == "blue"
    with torch.no_grad():
        expected = trained.model.predict(batches[0])["click"].exp()
    torch.testing.assert_close(predictor.predict(request_of(batches[0]))["click"], expected, rtol=1e-6, atol=1e-6)

    assert main(arguments) == 1
    assert f"headway export: {package} is not empty" in capsys.readouterr().err
    assert main([str(tmp_path / "nothing"), str(tmp_path / "other")]) == 1
    assert "nothing is no checkpoint of a training" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--bucket", "20,6"])
    assert ended.value.code == 2 and "--bucket" in capsys.readouterr().err


def test_a_model_with_times_is_refused() -> None:
    model = GRM(GRMConfig(**SIZES, num_time_buckets=4), SCHEMA, process_group=LOCAL)  # type: ignore[arg-type]
    with pytest.raises(PackageError, match="time buckets cannot be exported"):
        DenseGRM(model)
