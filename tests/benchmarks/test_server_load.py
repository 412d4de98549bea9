# SPDX-License-Identifier: Apache-2.0
"""The load that the benchmark computes is that of real parameter servers, and a hot group spreads over all of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from headway import hybrid
from headway.embedding import FeatureConfig, Sgd, TableConfig
from parameter_servers import parameter_servers

from benchmarks.server_load import SYSTEMS, Feature, count_load, draw_batch, main, make_features, place

SERVERS = 3


def test_the_counts_are_those_of_parameter_servers() -> None:
    features = make_features(groups=2, features=2, dims=[8], hot=20)
    batch = draw_batch(np.random.default_rng(3), features, samples=64, num_ids=5_000, exponent=1.05)
    load = count_load([batch], features, num_servers=SERVERS, system="buckets")
    with parameter_servers(SERVERS) as addresses:
        values = {"mode": "sync", "servers": {"addresses": addresses}, "job": {"timeout_s": 30}}
        tables = hybrid.connect(
            hybrid.HybridConfig.of(values),
            tables=[TableConfig(each.name, dim=each.dim, optimizer=Sgd(lr=1)) for each in features],
            features=[FeatureConfig(each.name, table=each.name, pooling="sum") for each in features],
        )
        assert isinstance(tables, hybrid.HybridTables)
        inputs = {
            each.name: (batch[each.name], torch.full((64,), each.lookups, dtype=torch.int64)) for each in features
        }
        for each in hybrid.batches(tables, [hybrid.Batch(inputs, torch.empty(64, 0), torch.empty(64, 1))]):
            sum(found.sum() for found in tables(each.features).values()).backward()  # type: ignore[union-attr]
            tables.optimizer.step()
        status = tables.status()
    # All ids are new, so each key became a row.
    assert [each.rows for each in status] == load.keys[0].tolist()
    for each, size in zip(status, load.bytes[0].tolist(), strict=True):
        sent = each.plain_id_bytes + each.plain_value_bytes
        assert size < sent < size + 500, "a request has a few numbers beside its keys"


def test_a_hot_group_spreads_over_servers_and_a_hot_id_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    features = make_features(groups=4, features=2, dims=[4, 8], hot=50)
    random = np.random.default_rng(1)
    batches = [draw_batch(random, features, samples=256, num_ids=1_000_000, exponent=1.2) for _ in range(3)]
    loads = {each: count_load(batches, features, num_servers=4, system=each) for each in SYSTEMS}
    over = {system: load.over(load.bytes)[0] for system, load in loads.items()}
    assert over["buckets"] < 1.1 < over["buckets_no_dedup"]
    assert over["buckets"] < over["by_table"] < over["by_group"]
    # Placement moves keys and loses none.
    assert loads["buckets"].keys.sum() == loads["by_table"].keys.sum() == loads["by_group"].keys.sum()
    assert loads["buckets_no_dedup"].keys.sum() == 3 * 256 * (2 * 50 + 6)
    with pytest.raises(ValueError, match="system must be one of"):
        count_load(batches, features, num_servers=4, system="by_rank")
    assert main(["--exponent", "1"]) == 1
    assert "--exponent must be above 0 and not 1" in capsys.readouterr().err


def test_the_largest_unit_is_placed_first_and_a_unit_stays_together() -> None:
    assert place([0, 1, 2, 3], [5, 9, 4, 2], num_servers=2) == {1: 0, 0: 1, 2: 1, 3: 0}
    # The units have loads of 7 and 6.
    assert place([0, 0, 1], [3, 4, 6], num_servers=3) == {0: 0, 1: 1}


def test_the_busiest_server_is_compared_with_the_mean() -> None:
    features = [Feature(name="a", group=0, dim=1, lookups=1), Feature(name="b", group=1, dim=3, lookups=1)]
    batch = {"a": torch.arange(10), "b": torch.arange(4)}
    load = count_load([batch], features, num_servers=2, system="by_group")
    # A key has 16 bytes and two rows: 24 for a and 40 for b. So a goes to server 0, with 240 of 400 bytes.
    assert load.keys.tolist() == [[10, 4]] and load.bytes.tolist() == [[240, 160]]
    assert load.over(load.bytes) == (pytest.approx(1.2), pytest.approx(1.2))
