# SPDX-License-Identifier: Apache-2.0
"""Packages predict what the model does in ``eval()``, with the same bits whatever else is in a batch."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from click_model import BUCKETS, DENSE, DIM, FEATURES, ClickModel, request_of
from headway.embedding import LOCAL, FeatureConfig, HashTableCollection, Sgd, TableConfig
from headway.serving import (
    Bucket,
    Manifest,
    PackageError,
    Predictor,
    Request,
    RequestError,
    ServedFeature,
    export,
)
from headway.serving.export import _expect_rows_apart, _Flat, _served_tables
from headway.serving.unloadable_code import compiler_settings
from torch import Tensor, nn


def test_predictions_are_those_of_the_model(predictor: Predictor, tables: HashTableCollection) -> None:
    request = request_of(torch.tensor([5, 99, 1234567, 0, 7, 7, -3]))
    tables.eval()
    with torch.no_grad():
        expected = ClickModel().eval()(tables(dict(request.features)), {}, request.dense, None)
    found = predictor.predict(request)
    assert set(found) == {"click", "logits"} and found["logits"].shape == (7, 2)
    for name, wanted in expected.items():
        torch.testing.assert_close(found[name], wanted, rtol=1e-6, atol=1e-6)


def test_neighbours_and_places_do_not_change_a_bit(predictor: Predictor) -> None:
    for count in (5, 13):  # Not a multiple of the width of vectors.
        some = predictor.predict(request_of(torch.arange(count)), bucket=Bucket(16))["logits"]
        single = predictor.predict(request_of(torch.arange(count - 1, count)), bucket=Bucket(16))["logits"]
        assert torch.equal(some[-1:], single)
    ids = torch.arange(90, 106)
    alone = [predictor.predict(request_of(ids[i : i + 1]), bucket=Bucket(16))["logits"] for i in range(16)]
    together = predictor.predict(request_of(ids))["logits"]
    assert torch.equal(torch.cat(alone), together)
    order = torch.randperm(16)
    assert torch.equal(predictor.predict(request_of(ids[order]))["logits"], together[order])


def test_the_smallest_bucket_is_taken(predictor: Predictor) -> None:
    manifest = predictor.manifest
    assert [part.bucket for part in manifest.parts] == BUCKETS and manifest.version == "v1"
    found = [manifest.bucket_for(items, 0, 0) for items in (0, 4, 5, 16, 17)]
    assert [each and each.bucket for each in found] == [Bucket(4), Bucket(4), Bucket(16), Bucket(16), None]


def test_compiled_loops_leave_the_number_of_threads_to_the_server(predictor: Predictor, package: Path) -> None:
    for part in predictor.manifest.parts:
        with zipfile.ZipFile(package / part.file) as archive:
            sources = [archive.read(name) for name in archive.namelist() if name.endswith(".cpp")]
        assert sources and not any(b"omp parallel" in source for source in sources)


def test_a_request_without_items_has_no_predictions(predictor: Predictor) -> None:
    assert predictor.predict(request_of(torch.arange(0)))["logits"].shape == (0, 2)


ITEM = torch.tensor([1, 2])
ONES = torch.tensor([1, 1])
SHOPS = (torch.tensor([3]), torch.tensor([0, 1]))
PRICE = torch.zeros(2, 2)
REFUSALS: dict[str, tuple[Request, str]] = {
    "a missing feature": (Request(features={"item": (ITEM, ONES)}, dense={"price": PRICE}), "feature shops is missing"),
    "an unknown feature": (
        Request(features={"item": (ITEM, ONES), "shops": SHOPS, "colour": SHOPS}, dense={"price": PRICE}),
        "there is no feature colour, only item, shops",
    ),
    "a missing dense feature": (
        Request(features={"item": (ITEM, ONES), "shops": SHOPS}),
        "dense feature price is missing",
    ),
    "another dtype": (
        Request(features={"item": (ITEM.int(), ONES), "shops": SHOPS}, dense={"price": PRICE}),
        r"item.ids must be torch.int64 \(2,\), not torch.int32",
    ),
    "another width": (
        Request(features={"item": (ITEM, ONES), "shops": SHOPS}, dense={"price": torch.zeros(2, 3)}),
        r"price must be torch.float32 \(2, 2\)",
    ),
    "a negative length": (
        Request(features={"item": (ITEM, ONES), "shops": (SHOPS[0], torch.tensor([-1, 2]))}, dense={"price": PRICE}),
        "shops.lengths: a number is negative",
    ),
    "lengths that do not add up": (
        Request(features={"item": (ITEM, ONES), "shops": (SHOPS[0], torch.tensor([1, 1]))}, dense={"price": PRICE}),
        "shops.lengths add up to 2, and there are 1 ids",
    ),
    "users without features": (
        Request(features={"item": (ITEM, ONES), "shops": SHOPS}, dense={"price": PRICE}, items=torch.tensor([2])),
        "items is given, and the model has no features of users",
    ),
    "too many items": (request_of(torch.arange(17)), r"items=17, users=0, tokens=0\): no bucket holds it, only Bucket"),
    "lengths that wrap around": (
        Request(
            features={"item": (ITEM, ONES), "shops": (SHOPS[0], torch.tensor([1 << 62, 1 << 62]))},
            dense={"price": PRICE},
        ),
        "shops.lengths: 4611686018427387904 is above",
    ),
    "weights": (
        Request(features={"item": (ITEM, ONES, PRICE), "shops": SHOPS}, dense={"price": PRICE}),  # type: ignore[dict-item]
        "feature item must be a pair of tensors",
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_a_request_that_does_not_fit_is_refused_by_name(predictor: Predictor, what: str) -> None:
    request, message = REFUSALS[what]
    with pytest.raises(RequestError, match=message):
        predictor.predict(request)


def test_a_damaged_package_is_refused_by_name(package: Path, tmp_path: Path) -> None:
    def copy(name: str) -> Path:
        return Path(shutil.copytree(package, tmp_path / name))

    cut = copy("cut")
    part = cut / Manifest.read(cut).parts[0].file
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(PackageError, match=r"dense_4_0_0\.pt2 was truncated or altered"):
        Predictor(cut)
    lost = copy("lost")
    (lost / Manifest.read(lost).parts[1].file).unlink()
    with pytest.raises(PackageError, match=r"dense_16_0_0.pt2 cannot be read: No such file"):
        Predictor(lost)
    altered = copy("altered")
    text = (altered / "manifest.json").read_text()
    (altered / "manifest.json").write_text(text.replace("click", "clock"))
    with pytest.raises(PackageError, match="it has another format, or was altered"):
        Predictor(altered)
    other = copy("other")
    manifest = Manifest.read(other)
    Manifest(**{**vars(manifest), "torch_version": "1.0"}).write(other)
    with pytest.raises(PackageError, match=r"compiled by torch 1\.0, and this is"):
        Predictor(other)
    with pytest.raises(PackageError, match="is not the manifest of a model for serving"):
        Predictor(tmp_path)


def test_a_bucket_must_be_one_of_the_package(predictor: Predictor) -> None:
    with pytest.raises(RequestError, match=r"there is no Bucket\(items=17"):
        predictor.predict(request_of(ITEM), bucket=Bucket(17))
    with pytest.raises(RequestError, match="does not hold it"):
        predictor.predict(request_of(torch.arange(5)), bucket=Bucket(4))


def test_rows_that_have_expired_are_absent(tmp_path: Path) -> None:
    tables = HashTableCollection(
        tables=[TableConfig("item", dim=DIM, optimizer=Sgd(lr=1.0), time_to_live=2)],
        features=[FeatureConfig("item", table="item")],
        process_group=LOCAL,
    )
    one = torch.ones(1, dtype=torch.int64)
    for step in range(7):
        tables({"item": (torch.tensor([5 if step == 0 else 1000 + step]), one)})["item"].sum().backward()  # type: ignore[no-untyped-call]
        tables.optimizer.step()
        tables.optimizer.zero_grad()
    tables.eval()
    features = {"item": (torch.tensor([5, 1006]), torch.ones(2, dtype=torch.int64))}
    with torch.no_grad():
        expected = tables(features)["item"]
    export(tmp_path / "package", Passing(), tables, features=FEATURES[:1], buckets=[Bucket(2)])
    found = Predictor(tmp_path / "package").predict(Request(features=features))["item"]
    assert torch.equal(found, expected * 2)


class Passing(nn.Module):
    """Doubles the embeddings."""

    def forward(self, embeddings: Mapping[str, Tensor], *_: object) -> dict[str, Tensor]:
        return {"item": embeddings["item"] * 2}


class InBatch(ClickModel):
    """Subtracts the mean of the batch."""

    def forward(self, *inputs: object) -> dict[str, Tensor]:
        logits = super().forward(*inputs)["logits"]  # type: ignore[arg-type]
        return {"logits": logits - logits.mean(0)}


class OfUsers(nn.Module):
    """Gives each item the sum of a feature of its user; ``leaks`` says how it is wrong."""

    def __init__(self, leaks: str = "") -> None:
        super().__init__()
        self.leaks = leaks

    def forward(
        self, embeddings: Mapping[str, Tensor], lengths: object, dense: object, items: Tensor
    ) -> dict[str, Tensor]:
        sums = embeddings["shops"].sum(1)
        ends = items.cumsum(0)
        user = torch.searchsorted(ends, torch.arange(len(embeddings["item"])), right=self.leaks != "off by one")
        out = sums[user.clamp(max=len(items) - 1)] + embeddings["item"].sum(1)
        if self.leaks == "mean":
            out = out - out.mean()
        return {"out": out.cumsum(0) if self.leaks == "rows before" else out}


@pytest.mark.parametrize("bucket", [Bucket(16, users=8), Bucket(64, users=5), Bucket(4, users=8)])
def test_a_leak_between_users_is_found(tables: HashTableCollection, tmp_path: Path, bucket: Bucket) -> None:
    features = [ServedFeature(name="item", table="item"), ServedFeature(name="shops", table="shop", axis="user")]
    draft = Manifest(
        version="", torch_version="", seed=0, tables=_served_tables(tables, features), features=features,
        dense_features=[], longest=None, outputs=[], parts=[],
    )  # fmt: skip
    assert _expect_rows_apart(_Flat(OfUsers(), draft, torch.float32), draft, bucket) == ["out"]
    for leak in ("mean", "rows before", "off by one"):
        with pytest.raises(PackageError, match="with the other items of its batch"):
            _expect_rows_apart(_Flat(OfUsers(leak), draft, torch.float32), draft, bucket)


def test_what_cannot_be_served_is_refused(tables: HashTableCollection, tmp_path: Path) -> None:
    def refuse(message: str, **changes: object) -> None:
        arguments: dict[str, object] = {"features": FEATURES, "dense_features": DENSE, "buckets": BUCKETS} | changes
        dense = arguments.pop("dense", ClickModel())
        with pytest.raises(PackageError, match=message):
            export(tmp_path / "new", dense, tables, **arguments)  # type: ignore[arg-type]
        assert not (tmp_path / "new").exists()

    refuse("output logits of an item changes by .* with the other items of its batch", dense=InBatch())
    refuse("feature item: there is no table goods", features=[ServedFeature(name="item", table="goods")])
    refuse("users must be 0", buckets=[Bucket(4, users=1)])
    refuse("tokens must be 0", buckets=[Bucket(4, tokens=1)])
    refuse("a package needs a bucket", buckets=[])
    refuse("feature item is there twice", features=[FEATURES[0], FEATURES[0]])
    assert not list(tmp_path.iterdir()), "a failed export leaves nothing"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("mine")
    with pytest.raises(PackageError, match="full is not empty"):
        export(tmp_path / "full", ClickModel(), tables, features=FEATURES, dense_features=DENSE, buckets=BUCKETS)
    assert (tmp_path / "full" / "notes").read_text() == "mine"


def test_names_and_axes_of_features_are_checked() -> None:
    with pytest.raises(ValueError, match="axis must be user or item, not 'shop'"):
        ServedFeature(name="a", table="t", axis="shop")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="without pooling needs the name of a sequence"):
        ServedFeature(name="a", table="t", axis="user", pooling=None)
    with pytest.raises(ValueError, match="sequences belong to users"):
        ServedFeature(name="a", table="t", pooling=None, sequence="s")


def test_the_manifest_is_plain_json(package: Path) -> None:
    body = json.loads(json.loads((package / "manifest.json").read_text())["manifest"])
    assert body["tables"][0] == {
        "name": "item",
        "dim": DIM,
        "time_to_live": 0,
        "unknown": "initial",
        "initializer": {"kind": "uniform", "low": -0.05, "high": 0.05},
    }
    assert body["seed"] == 7


def test_a_compiler_whose_code_would_crash_is_refused(tmp_path: Path) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text('#!/bin/sh\nexec g++ -static-libstdc++ "$@"\n')
    compiler.chmod(0o755)
    with (
        torch._inductor.config.patch({"cpp.cxx": (None, str(compiler))}),
        pytest.raises(PackageError, match="links the C\\+\\+ library statically"),
    ):
        compiler_settings()
