# SPDX-License-Identifier: Apache-2.0
"""The model: weights do not depend on the owners of tables, and the interaction matches one computed by hand."""

from __future__ import annotations

import pytest
import torch

from dlrm_examples.dlrm_inference.model import Dlrm, DlrmConfig, EmbeddingShard, pool_rows


def test_the_sizes_are_those_of_criteo_kaggle() -> None:
    config = DlrmConfig(table_rows=(10,) * 26)
    assert config.bottom_widths == (13, 512, 256, 64, 16)
    assert config.top_widths == (16 + 27 * 26 // 2, 512, 256, 1)


def test_a_tables_weights_do_not_depend_on_who_holds_it() -> None:
    config = DlrmConfig(table_rows=(3, 5, 8, 2), seed=9)
    whole = EmbeddingShard(config, range(4))
    split = [EmbeddingShard(config, tables) for tables in ((2, 0), (), (3, 1))]
    # Weights of a shard are in its order of tables: table 2 has 8 rows, and table 3 has 2.
    by_table = torch.cat([split[0].weight[8:], split[2].weight[2:], split[0].weight[:8], split[2].weight[:2]])
    assert torch.equal(whole.weight, by_table)
    assert not torch.equal(whole.weight, EmbeddingShard(DlrmConfig(table_rows=(3, 5, 8, 2), seed=8), range(4)).weight)


def test_bags_are_summed() -> None:
    shard = EmbeddingShard(DlrmConfig(table_rows=(6,), dim=2), range(1))
    indices, offsets = torch.tensor([0, 1, 2, 5]), torch.tensor([0, 3])
    expected = torch.stack([shard.weight[0] + shard.weight[1] + shard.weight[2], shard.weight[5]])
    assert torch.equal(shard.lookup(indices, offsets), expected)
    assert torch.equal(pool_rows(shard.lookup(indices, None), offsets), expected)


def test_the_top_mlp_sees_the_dense_output_and_each_pair_once() -> None:
    config = DlrmConfig(table_rows=(4, 4), num_dense=2, dim=2, bottom_hidden=(), top_hidden=())
    model = Dlrm(config)
    dense = torch.tensor([[1.0, 2.0]])
    pooled = [torch.tensor([[3.0, 4.0]]), torch.tensor([[5.0, 6.0]])]
    ((weight, bias),) = model._top
    seen = torch.tensor([[1.0, 2.0, 1 * 3 + 2 * 4, 1 * 5 + 2 * 6, 3 * 5 + 4 * 6]])
    assert torch.allclose(model.predict(dense, pooled), torch.sigmoid(seen @ weight.T + bias).squeeze(1))


def test_a_model_without_tables_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one table"):
        DlrmConfig(table_rows=())
