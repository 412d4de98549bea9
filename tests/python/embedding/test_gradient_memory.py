# SPDX-License-Identifier: Apache-2.0
"""Memory of embeddings' gradients: when it may be reused, and when changes are an error."""

from __future__ import annotations

import pytest
import torch
from headway.embedding import Constant, FeatureConfig, HashTableCollection, Sgd, TableConfig

BATCH = {"f": (torch.tensor([1, 2, 1]), torch.tensor([2, 1]))}  #: Two bags: ids 1 and 2, and id 1.


def one_table() -> HashTableCollection:
    table = TableConfig("t", dim=2, optimizer=Sgd(lr=1), initializer=Constant(0.0))
    return HashTableCollection(tables=[table], features=[FeatureConfig("f", table="t", pooling="sum")])


def test_memory_of_gradients_may_be_used_again_once_the_next_batch_is_looked_up() -> None:
    tables = one_table()
    gradients = torch.ones(2, 2)
    for value in (1, 10):
        outputs = tables(BATCH)["f"]
        gradients.data.fill_(value)  # No version counter changes, as in CUDA-graph replay.
        outputs.backward(gradients)
    tables.optimizer.step()
    assert tables(BATCH)["f"].tolist() == [[-33.0, -33.0], [-22.0, -22.0]]


def test_a_step_with_changed_gradients_updates_nothing() -> None:
    tables = one_table()
    gradients = torch.ones(2, 2)
    tables(BATCH)["f"].backward(gradients)
    gradients.zero_()
    with pytest.raises(RuntimeError, match="changed in place between backward"):
        tables.optimizer.step()
    tables.optimizer.zero_grad()
    assert tables.step == 0
    assert tables(BATCH)["f"].tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_gradients_that_share_memory_with_others_may_change_with_these() -> None:
    tables = one_table()
    others = torch.nn.Parameter(torch.zeros(3, 2))
    torch.cat([tables(BATCH)["f"], others]).sum().backward()
    gradients = torch.ones(5, 2)
    torch.autograd.backward([tables(BATCH)["f"]], [gradients[:2]])
    gradients.zero_()  # Clipping other gradients in the same storage would do this.
    tables.optimizer.step()
    assert tables(BATCH)["f"].tolist() == [[-6.0, -6.0], [-4.0, -4.0]]


def test_memory_of_gradients_may_be_used_again_for_another_lookup() -> None:
    tables = one_table()
    outputs = [tables(BATCH)["f"] for _ in range(2)]
    gradients = torch.ones(2, 2)
    for value, each in zip((1, 10), outputs, strict=True):
        gradients.data.fill_(value)
        each.backward(gradients)
    tables.optimizer.step()
    assert tables(BATCH)["f"].tolist() == [[-33.0, -33.0], [-22.0, -22.0]]
