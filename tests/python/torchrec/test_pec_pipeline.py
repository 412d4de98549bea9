# SPDX-License-Identifier: Apache-2.0
"""Dynamic tables in ``TrainPipelinePEC``, beside static tables in a ``PECEmbeddingCollection``.

PEC is TorchRec's prioritised embedding communication. A dynamic table is a hash table for arbitrary 64-bit ids.
"""

from __future__ import annotations

import warnings
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from dynamic_models import (
    CPU,
    FEATURES,
    META,
    POOLED,
    SEQUENCE,
    STEPS,
    Batch,
    Kind,
    batches,
    make_collection,
    train_in_loop,
)
from headway.embedding import Adam, Uniform
from rank_processes import run_ranks
from torch import nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import headway.torchrec
    from headway.torchrec import DynamicTable
    from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

    pec_modules = pytest.importorskip("torchrec.modules.pec_embedding_modules", reason="TorchRec 1.6 has no PEC")
    from torchrec.distributed.pec_embedding import ShardedPECEmbeddingCollection

TABLE = DynamicTable(optimizer=Adam(lr=0.1), initializer=Uniform(-1, 1))
TABLES = {"item": TABLE, "user": TABLE}
PAGES = 20


def make_pec(device: torch.device = CPU) -> Any:
    page = EmbeddingConfig(name="page", embedding_dim=4, num_embeddings=PAGES, feature_names=["clicks"])
    return pec_modules.PECEmbeddingCollection(EmbeddingCollection(tables=[page], device=device))


class Mixed(nn.Module):
    """A dynamic collection, a static PEC collection if ``pec``, and a linear layer over both."""

    def __init__(self, kind: Kind, *, pec: bool, pec_lr: float) -> None:
        super().__init__()
        self.kind = kind
        self.dynamic = make_collection(kind, 1000, META)
        self.pec = make_pec() if pec else None
        if self.pec is not None:
            apply_optimizer_in_backward(torch.optim.SGD, self.pec.parameters(), {"lr": pec_lr})
        item, user = kind.dims
        self.over = nn.Linear(2 * item + user if kind.pooled else item, 1)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.dynamic(batch.features)
        embedded = found.values() if self.kind.pooled else torch.cat([found[name].values() for name in FEATURES])
        loss = (self.over(embedded) - batch.target_B.mean()).square().mean()
        if self.pec is not None:
            loss = loss + self.pec(batch.pages)["clicks"].values().square().mean()
        return loss, loss.detach()


class PagedBatch(Batch):
    """A batch with a second set of features, the ids of static tables."""

    def __init__(self, features: KeyedJaggedTensor, target_B: torch.Tensor, pages: KeyedJaggedTensor) -> None:
        super().__init__(features, target_B)
        self.pages = pages

    def to(self, device: torch.device, non_blocking: bool = False) -> PagedBatch:
        return PagedBatch(self.features.to(device), self.target_B.to(device), self.pages.to(device))

    def record_stream(self, stream: torch.Stream) -> None:
        super().record_stream(stream)
        self.pages.record_stream(stream)


def paged_batches(rank: int) -> list[PagedBatch]:
    found = []
    for batch in batches(rank):
        clicks = batch.features["clicks"]
        pages = KeyedJaggedTensor(keys=["clicks"], values=clicks.values() % PAGES, lengths=clicks.lengths())
        found.append(PagedBatch(batch.features, batch.target_B, pages))
    return found


def shard_mixed(kind: Kind, *, pec: bool, pec_lr: float = 0.1) -> tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(3)
    parallel = headway.torchrec.shard(Mixed(kind, pec=pec, pec_lr=pec_lr), TABLES, seed=7)
    return parallel, torch.optim.SGD(parallel.module.over.parameters(), lr=0.05)


def train_without_pipeline(rank: int, kind: Kind, pec: bool) -> list[float]:
    parallel, _ = shard_mixed(kind, pec=pec)
    return train_in_loop(parallel, iter(paged_batches(rank)))


def train_in_pipeline(rank: int, kind: Kind, pec: bool) -> list[float]:
    from torchrec.distributed.train_pipeline.pec_train_pipeline import TrainPipelinePEC

    # Its gradients of PEC collections are not divided by the number of ranks, unlike those of a loop.
    parallel, dense = shard_mixed(kind, pec=pec, pec_lr=0.1 / dist.get_world_size())
    # The pipeline is for CUDA: it orders streams by events. On the CPU there is one stream, and nothing to order.
    with (
        mock.patch.object(torch.cuda, "Event", torch.cpu.Event),
        mock.patch.object(torch.cuda, "current_stream", torch.cpu.current_stream),
        mock.patch.object(torch.Tensor, "record_stream", lambda tensor, stream: None),
    ):
        pipeline = TrainPipelinePEC(parallel, dense, CPU)
        source = iter(paged_batches(rank))
        losses = [pipeline.progress(source).item() for _ in range(STEPS)]
        with pytest.raises(StopIteration):
            pipeline.progress(source)
    names = ["dynamic", "pec"] if pec else ["dynamic"]
    assert {module.forward.name for module in pipeline._pipelined_modules} == set(names), "they are pipelined"
    assert list(pipeline._pec_modules) == [name for name in names if name == "pec"]
    return losses


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("pec", [False, True], ids=["alone", "beside_pec"])
@pytest.mark.parametrize("kind", [SEQUENCE, POOLED], ids=["sequence", "pooled"])
def test_the_pec_pipeline_trains_to_the_numbers_of_a_loop(kind: Kind, pec: bool, size: int) -> None:
    pytest.importorskip(
        "torchrec.distributed.train_pipeline.pec_train_pipeline", reason="TorchRec before 1.9 has no pipeline for PEC"
    )
    expected = run_ranks(train_without_pipeline, size, kind, pec)
    assert len(set(expected[0])) == STEPS, "the losses move"
    results = run_ranks(train_in_pipeline, size, kind, pec)
    torch.testing.assert_close(results, expected, rtol=1e-5, atol=1e-6)


def shard_pec(rank: int) -> None:
    model = nn.Sequential(make_pec())
    apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})
    assert isinstance(headway.torchrec.shard(model, {}).module[0], ShardedPECEmbeddingCollection)
    message = "the tables page cannot be dynamic in a PECEmbeddingCollection, .*: use an EmbeddingCollection$"
    with pytest.raises(ValueError, match=message):
        headway.torchrec.shard(nn.Sequential(make_pec(META)), {"page": TABLE})


@pytest.mark.parametrize("size", [1, 2])
def test_a_pec_collection_stays_with_torchrec_and_refuses_dynamic_tables(size: int) -> None:
    run_ranks(shard_pec, size)
