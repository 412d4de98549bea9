# SPDX-License-Identifier: Apache-2.0
"""Memory of small tables: a few pages each, and not more than their statistics report."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from headway.embedding import FeatureConfig, HashTableCollection, TableConfig, merging

#: Prints the resident bytes that 40 tables of 64 rows add, and the bytes that their statistics report.
MEASURE = """
import json, torch
from headway.embedding import Adam, FeatureConfig, HashTableCollection, Sgd, TableConfig

torch.set_num_threads(1)


def resident_bytes():
    return int(open("/proc/self/statm").read().split()[1]) * 4096


def make(count, optimizer):
    names = [f"t{i}" for i in range(count)]
    tables = HashTableCollection(
        tables=[TableConfig(name, dim=8 + i, optimizer=optimizer) for i, name in enumerate(names)],
        features=[FeatureConfig(name, table=name) for name in names],
    )
    batch = {name: (torch.arange(64), torch.ones(64, dtype=torch.int64)) for name in names}
    sum(embeddings.sum() for embeddings in tables(batch).values()).backward()
    tables.optimizer.step()
    return tables


warm = make(3, Sgd(lr=0.1))
before = resident_bytes()
tables = make(40, Adam(lr=0.1))
after = resident_bytes()
reported = sum(each["key_bytes"] + each["row_bytes"] for each in tables.statistics()["tables"].values())
print(json.dumps([after - before, reported]))
"""


def test_a_small_table_takes_little_memory_and_reports_it() -> None:
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True, timeout=60)
    resident, reported = json.loads(done.stdout.splitlines()[-1])
    assert resident < 40 * (1 << 20), f"{resident / 40:.0f} bytes a table"
    # Allow 8 MiB for the tensors of the batch and the heap of the process.
    assert resident < reported + (8 << 20), (resident, reported)


def test_ids_that_wait_for_a_row_are_bounded_unless_the_table_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "MOST_PENDING", 100)
    tables = HashTableCollection(
        tables=[TableConfig("t", dim=2, min_count=2), TableConfig("u", dim=2, min_count=2, max_pending=300)],
        features=[FeatureConfig("t", table="t"), FeatureConfig("u", table="u")],
    )
    for step in range(10):
        ids = torch.arange(60 * step, 60 * step + 60)
        tables({name: (ids, torch.tensor([60])) for name in ("t", "u")})
        tables.optimizer.step()
    of_tables = tables.statistics()["tables"]
    assert of_tables["t"]["pending"] <= 100 < of_tables["u"]["pending"] <= 300
    assert of_tables["t"]["forgotten"] > 400
