# SPDX-License-Identifier: Apache-2.0
"""Lookups in exported programs, and in a C++ program, have the bits of ``HashTableCollection``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from headway.embedding import ExportableLookup, FeatureConfig, HashTableCollection, Sgd, TableConfig
from headway.embedding.merging import table_id_of
from headway.ops import OPERATOR_LIBRARY
from torch import nn

ROOT = Path(__file__).parents[3]
DIM = 8
Jagged = tuple[torch.Tensor, torch.Tensor]


def trained() -> HashTableCollection:
    """Makes two merged tables, with rows of ids 0 to 99."""
    torch.manual_seed(1)
    tables = HashTableCollection(
        tables=[TableConfig(name, dim=DIM, optimizer=Sgd(lr=0.3)) for name in ("items", "users")],
        features=[
            FeatureConfig("item", table="items", pooling="sum"),
            FeatureConfig("user", table="users"),
        ],
    )
    features = {name: (torch.arange(100), torch.full((20,), 5)) for name in ("item", "user")}
    losses = [(embedding * torch.randn_like(embedding)).sum() for embedding in tables(features).values()]
    torch.stack(losses).sum().backward()
    tables.optimizer.step()
    return tables.eval()


class Scorer(nn.Module):
    def __init__(self, tables: HashTableCollection, name: str) -> None:
        super().__init__()
        self.lookup = ExportableLookup(tables, name)
        self.head = nn.Linear(DIM, 1)

    def forward(self, item: Jagged, user: Jagged) -> tuple[torch.Tensor, torch.Tensor]:
        embeddings = self.lookup({"item": item, "user": user})
        return embeddings["item"], self.head(embeddings["user"])


#: Ids 100 and more have no row.
BATCH = (
    (torch.tensor([3, 5, 3, 120, 99]), torch.tensor([2, 0, 3])),
    (torch.tensor([7, 101, 8, 7]), torch.tensor([1, 1, 2])),
)


def export(model: nn.Module) -> Any:
    ids_of_items, ids_of_users, bags = (torch.export.Dim(name) for name in ("items", "users", "bags"))
    example = (torch.arange(4), torch.tensor([1, 3])), (torch.arange(5), torch.tensor([1, 4]))
    shapes = (({0: ids_of_items}, {0: bags}), ({0: ids_of_users}, {0: bags}))
    return torch.export.export(model, example, dynamic_shapes=shapes, strict=False)


def same(first: Any, second: Any) -> bool:
    return all(map(torch.equal, first, second))


def test_an_exported_program_has_the_bits_of_the_collection_for_any_batch_size(tmp_path: Path) -> None:
    tables = trained()
    model = Scorer(tables, "exported").eval()
    expected = tables({"item": BATCH[0], "user": BATCH[1]})
    program = export(model)
    assert same(model(*BATCH)[:1], [expected["item"]]) and same(program.module()(*BATCH), model(*BATCH))
    assert sum("headway.look_up" in str(node.target) for node in program.graph.nodes) == 1
    torch.export.save(program, tmp_path / "program.pt2")
    assert same(torch.export.load(tmp_path / "program.pt2").module()(*BATCH), model(*BATCH))
    with torch.no_grad():  # A program sees what the tables learn later.
        tables.insert_rows("items", torch.tensor([120]), torch.ones(1, DIM))
    assert same(program.module()(*BATCH), model(*BATCH)) and not torch.equal(model(*BATCH)[0], expected["item"])


def test_a_lookup_counts_and_inserts_nothing() -> None:
    tables = trained()
    before = tables.statistics()["tables"]
    Scorer(tables, "reads only").train()(*BATCH)
    assert tables.statistics()["tables"] == before


def test_names_of_lookups_are_unique_while_they_live() -> None:
    tables = trained()
    lookup = ExportableLookup(tables, "unique")
    with pytest.raises(ValueError, match="another lookup is registered as 'unique'"):
        ExportableLookup(trained(), "unique")
    with pytest.raises(ValueError, match="registered as 'unique' already"):
        ExportableLookup(tables, "second name")
    del lookup, tables
    ExportableLookup(trained(), "unique")


def test_a_process_without_the_lookup_refuses_a_saved_program(tmp_path: Path) -> None:
    torch.export.save(export(Scorer(trained(), "elsewhere")), tmp_path / "program.pt2")
    load = "import sys, torch, headway.embedding; torch.export.load(sys.argv[1])"
    command = [sys.executable, "-c", load, tmp_path / "program.pt2"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode != 0 and "no lookup is registered as 'elsewhere'" in finished.stderr


def test_a_missing_feature_is_named() -> None:
    with pytest.raises(ValueError, match="feature user is missing"):
        ExportableLookup(trained(), "features")({"item": BATCH[0]})


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds examples/torch_consumer."""
    folder: Path = tmp_path_factory.mktemp("consumer")
    cmake = shutil.which("cmake") or pytest.skip("there is no cmake")
    torch_root = next(iter(torch.__path__))
    source = ROOT / "examples/torch_consumer"
    configure = [cmake, "-S", source, "-B", folder, f"-DTORCH_ROOT={torch_root}", "-DCMAKE_BUILD_TYPE=Release"]
    for command in (configure, [cmake, "--build", folder]):
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    return folder / "look_up"


def run(program: Path, folder: Path, tables: HashTableCollection, *arguments: Path) -> torch.Tensor:
    """Looks the items of BATCH up in the C++ program."""
    ids, lengths = BATCH[0]
    records = tables.state_dict()["items.records"].read()
    half = 1 << 13  # Half of the virtual buckets of the ids' hash.
    pieces = [records.read(each).encode() for each in ((0, half), (half, 2 * half))]
    number = torch.tensor(table_id_of("items"))
    values = {"table": number, "dim": DIM, "seed": 0, "records": pieces, "ids": ids, "lengths": lengths}
    torch.save(values, folder / "input.pt")
    command = [program, OPERATOR_LIBRARY, folder / "input.pt", folder / "output.pt", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run(command, check=True, timeout=120, env=environment)
    output: torch.Tensor = torch.load(folder / "output.pt")
    return output


def test_a_cpp_program_has_the_bits_of_the_collection(program: Path, tmp_path: Path) -> None:
    tables = trained()
    libraries = subprocess.run(["ldd", OPERATOR_LIBRARY], capture_output=True, text=True, check=True).stdout
    assert "libtorch_python" not in libraries and "libpython" not in libraries
    expected = tables({"item": BATCH[0], "user": BATCH[1]})["item"]
    assert torch.equal(run(program, tmp_path, tables), expected)


class ItemSum(nn.Module):
    """Twice the embeddings of items: a model of one input that AOTInductor compiles."""

    def __init__(self, tables: HashTableCollection) -> None:
        super().__init__()
        self.lookup = ExportableLookup(tables, "items")

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self.lookup({"item": (ids, lengths)})["item"] * 2


def test_a_compiled_program_looks_up_in_the_tables_of_a_cpp_process(program: Path, tmp_path: Path) -> None:
    tables = HashTableCollection(
        tables=[TableConfig("items", dim=DIM, optimizer=Sgd(lr=0.3))],
        features=[FeatureConfig("item", table="items", pooling="sum")],
    )
    tables.insert_rows("items", torch.arange(50), torch.randn(50, DIM))
    model = ItemSum(tables.eval()).eval()
    ids, bags = torch.export.Dim("ids"), torch.export.Dim("bags")
    example = torch.arange(4), torch.tensor([1, 3])
    exported = torch.export.export(model, example, dynamic_shapes=({0: ids}, {0: bags}), strict=False)
    package = tmp_path / "model.pt2"
    torch._inductor.aoti_compile_and_package(exported, package_path=str(package))
    assert torch.equal(run(program, tmp_path, tables, package), model(*BATCH[0]))
