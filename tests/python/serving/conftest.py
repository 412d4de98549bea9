# SPDX-License-Identifier: Apache-2.0
"""The package of the click model, compiled once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click_model import BUCKETS, DENSE, FEATURES, ClickModel, make_tables
from headway.embedding import HashTableCollection
from headway.serving import Predictor, export


@pytest.fixture(scope="session")
def tables() -> HashTableCollection:
    return make_tables()


@pytest.fixture(scope="session")
def package(tables: HashTableCollection, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package") / "v1"
    threads = torch.get_num_threads()
    torch.set_num_threads(3)  # That the compiled parts have no threads of their own is a test.
    try:
        export(folder, ClickModel(), tables, features=FEATURES, dense_features=DENSE, buckets=BUCKETS, version="v1")
    finally:
        torch.set_num_threads(threads)
    return folder


@pytest.fixture(scope="session")
def predictor(package: Path) -> Predictor:
    return Predictor(package)
