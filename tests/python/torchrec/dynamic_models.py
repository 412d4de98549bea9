# SPDX-License-Identifier: Apache-2.0
"""Models with dynamic tables, their batches, and the reference: a dense model that one process trains on them.

A dynamic table is a hash table for arbitrary 64-bit ids, in place of a dense table of TorchRec. Tables of equal
configuration are merged: they share one hash table per rank, which TorchRec sees as one kernel.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import headway.torchrec
    from headway.embedding import Adagrad, Adam, Optimizer, RowWiseAdagrad, Sgd, Uniform
    from headway.torchrec import DynamicTable
    from torchrec import (
        EmbeddingBagCollection,
        EmbeddingBagConfig,
        EmbeddingCollection,
        EmbeddingConfig,
        KeyedJaggedTensor,
        PoolingType,
    )
    from torchrec.distributed.model_parallel import DataParallelWrapper
    from torchrec.optim import RowWiseAdagrad as TheirRowWiseAdagrad
    from torchrec.streamable import Pipelineable

#: Arbitrary 64-bit ids, some of which row-wise sharding by range would lose.
IDS = torch.tensor([5, -1, -(2**63), 2**63 - 1, 2**62 + 3, 0, 7, 8, 1000, -77, 2**40, 3])
FEATURES = ["clicks", "views", "user"]
TABLE_OF = {"clicks": "item", "views": "item", "user": "user"}
BATCH, STEPS, DIM = 5, 6, 4
META, CPU = torch.device("meta"), torch.device("cpu")

#: Optimizers by name: those of a dense model (THEIRS) and those of tables (OURS).
THEIRS: dict[str, Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1),
    "adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.1),
    "row_wise_adagrad": lambda weights: TheirRowWiseAdagrad(weights, lr=0.1),
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.1),
}
OURS: dict[str, Optimizer] = {
    "sgd": Sgd(lr=0.1),
    "adagrad": Adagrad(lr=0.1),
    "row_wise_adagrad": RowWiseAdagrad(lr=0.1),
    "adam": Adam(lr=0.1),
}


class Batch(Pipelineable):
    """Sparse features of one rank and their target; B samples."""

    def __init__(self, features: KeyedJaggedTensor, target_B: torch.Tensor) -> None:
        self.features, self.target_B = features, target_B

    def to(self, device: torch.device, non_blocking: bool = False) -> Batch:
        return Batch(self.features.to(device, non_blocking), self.target_B.to(device, non_blocking=non_blocking))

    def record_stream(self, stream: torch.Stream) -> None:
        self.features.record_stream(stream)
        self.target_B.record_stream(stream)

    def pin_memory(self) -> Batch:
        return self


def make_batch(rank: int, step: int, *, weighted: bool = False, everything: bool = False) -> Batch:
    """Makes a batch. With ``everything`` each feature also has a list of all IDS, so each id gets a gradient."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    lengths = torch.randint(0, 5, (len(FEATURES), BATCH), generator=generator)
    if everything:
        lengths[:, -1] = len(IDS)
    rows = [IDS[torch.randint(0, len(IDS), (int(n),), generator=generator)] for n in lengths.flatten()]
    if everything:
        rows[BATCH - 1 :: BATCH] = [IDS] * len(FEATURES)
    values = torch.cat(rows)
    weights = torch.rand(len(values), generator=generator) if weighted else None
    features = KeyedJaggedTensor(keys=FEATURES, values=values, weights=weights, lengths=lengths.flatten())
    return Batch(features, torch.rand(BATCH, generator=generator))


def batches(rank: int, *, device: torch.device = CPU, **kind: bool) -> Iterator[Batch]:
    for step in range(STEPS):
        yield make_batch(rank, step, **kind).to(device)


@dataclass(frozen=True)
class Kind:
    """Variant of a model: pooled bags or sequences. Dimensions and poolings are given by table (item, user)."""

    pooled: bool
    dims: tuple[int, int] = (DIM, DIM)
    poolings: tuple[str, str] = ("SUM", "SUM")
    weighted: bool = False


SEQUENCE = Kind(pooled=False)
POOLED = Kind(pooled=True, dims=(4, 8), poolings=("SUM", "MEAN"))
WEIGHTED = Kind(pooled=True, weighted=True)


class Model(nn.Module):
    """A collection, and a linear layer (``over``) over its output."""

    def __init__(self, kind: Kind, *, num_embeddings: int = 1000, device: torch.device = META) -> None:
        super().__init__()
        self.kind = kind
        self.embeddings = make_collection(kind, num_embeddings, device)
        item, user = kind.dims
        self.over = nn.Linear(2 * item + user if kind.pooled else DIM, 1)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        embeddings = self.embeddings(batch.features)
        if self.kind.pooled:
            loss = (self.over(embeddings.values()).squeeze(1) - batch.target_B).square().mean()
        else:
            sums = [self.over(embeddings[name].values()).square().sum() for name in FEATURES]
            loss = (torch.stack(sums) - batch.target_B.mean()).square().mean() * 0.01
        return loss, loss.detach()


def make_collection(kind: Kind, num_embeddings: int, device: torch.device) -> nn.Module:
    features = {"item": ["clicks", "views"], "user": ["user"]}
    configs: list[Any] = []
    for table, dim, pooling in zip(features, kind.dims, kind.poolings, strict=True):
        config = {"name": table, "embedding_dim": dim, "num_embeddings": num_embeddings,
                  "feature_names": features[table]}  # fmt: skip
        configs.append(
            EmbeddingBagConfig(**config, pooling=PoolingType[pooling]) if kind.pooled else EmbeddingConfig(**config)
        )
    if kind.pooled:
        return EmbeddingBagCollection(tables=configs, is_weighted=kind.weighted, device=device)
    return EmbeddingCollection(tables=configs, device=device)


def shard_model(
    kind: Kind, optimizer: Optimizer | None = None, *, device: torch.device = CPU, strict: bool = False, **settings: Any
) -> Any:
    """Shards a model over the ranks of the default group. Each call makes the same model.

    With ``strict`` an id that gets no row raises an error. ``settings`` are those of ``DynamicTable``.
    """
    torch.manual_seed(3)
    table = DynamicTable(optimizer=optimizer, initializer=Uniform(-1, 1), **settings)
    tables = {"item": table, "user": table}
    wrapper = ReduceOnHost() if device.type == "cuda" and dist.get_world_size() > torch.cuda.device_count() else None
    return headway.torchrec.shard(
        Model(kind), tables, device=device, seed=7, strict=strict, data_parallel_wrapper=wrapper
    )


class ReduceOnHost(DataParallelWrapper):  # type: ignore[misc]
    """Replaces DDP if ranks share a GPU, which NCCL does not support in reductions: reduces gradients on the host."""

    def wrap(self, dmp: Any, env: Any, device: torch.device) -> None:
        group = dist.new_group(backend="gloo")
        dmp._dmp_wrapped_module.to(device)

        def reduce(parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            gradient = parameter.grad.cpu()
            dist.all_reduce(gradient, group=group)
            parameter.grad.copy_(gradient / dist.get_world_size())

        for name, parameter in dmp._dmp_wrapped_module.named_parameters():
            if name.startswith("over."):
                parameter.register_post_accumulate_grad_hook(reduce)


def sharded_collection(parallel: Any) -> Any:
    return parallel.module.embeddings


def device_of(parallel: Any) -> torch.device:
    return next(parallel.module.over.parameters()).device


def vectors_of(parallel: Any, ids: torch.Tensor = IDS) -> dict[str, torch.Tensor]:
    """Looks up the embeddings of ids in each table without inserting. All ranks must call it."""
    collection, kind = sharded_collection(parallel), parallel.module.kind
    found: dict[str, torch.Tensor] = {}
    collection.eval()
    ones = torch.ones(len(FEATURES) * len(ids), dtype=torch.int64)
    weights = torch.ones(len(ones)) if kind.weighted else None
    features = KeyedJaggedTensor(
        keys=FEATURES, values=ids.repeat(len(FEATURES)), lengths=ones, weights=weights, stride=len(ids)
    )
    result = collection(features.to(device_of(parallel)))
    for feature in FEATURES:
        value = result[feature] if kind.pooled else result[feature].values()
        found[TABLE_OF[feature]] = value.detach().cpu().clone()
    collection.train()
    return found


def as_lists(embeddings: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Converts tensors to lists for the pipe between processes, which would pass tensors in shared memory."""
    return {table: tensor.tolist() for table, tensor in embeddings.items()}


def as_tensors(embeddings: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {table: torch.tensor(values) for table, values in embeddings.items()}


def train_in_loop(parallel: Any, source: Iterator[Batch]) -> list[float]:
    """Trains one step per batch. Returns the losses."""
    dense = torch.optim.SGD(parallel.module.over.parameters(), lr=0.05)
    losses = []
    for batch in source:
        dense.zero_grad()
        loss, _ = parallel(batch)
        loss.backward()
        dense.step()
        losses.append(loss.item())
    return losses


#: Embeddings before training, losses, embeddings after training, and numbers of rows and kernels of this rank.
Trained = tuple[dict[str, Any], list[float], dict[str, Any], dict[str, int]]


def train_sharded(
    rank: int, kind: Kind, optimizer: str, batch_kind: dict[str, bool], device: torch.device = CPU
) -> Trained:
    parallel = shard_model(kind, OURS[optimizer], device=device)
    initial = as_lists(vectors_of(parallel))
    losses = train_in_loop(parallel, batches(rank, device=device, **batch_kind))
    rows = [kernel.table.size()["rows"] for kernel in sharded_collection(parallel).kernels()]
    return initial, losses, as_lists(vectors_of(parallel)), {"rows": sum(rows), "kernels": len(rows)}


def expect_dense(results: Sequence[Trained], kind: Kind, optimizer: str, **batch_kind: bool) -> None:
    """Checks that the results of ``train_sharded()`` on all ranks match a dense model."""
    initial, final = (as_tensors(results[0][index]) for index in (0, 2))
    losses, expected = train_densely(kind, initial, THEIRS[optimizer], len(results), **batch_kind)
    torch.testing.assert_close([result[1] for result in results], losses, rtol=2e-5, atol=1e-6)
    for table, embeddings in expected.items():
        torch.testing.assert_close(final[table], embeddings, rtol=2e-4, atol=2e-5)
        assert not torch.equal(initial[table], embeddings), "they have moved"


def dense_batch(batch: Batch) -> Batch:
    """Replaces each id by its index in IDS, for a dense model."""
    features = batch.features
    indices = (features.values()[:, None] == IDS).int().argmax(1)
    dense = KeyedJaggedTensor(
        keys=FEATURES, values=indices, lengths=features.lengths(), weights=features.weights_or_none()
    )
    return Batch(dense, batch.target_B)


def train_densely(
    kind: Kind,
    initial: dict[str, torch.Tensor],
    make_optimizer: Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer],
    num_ranks: int,
    dense_lr: float = 0.05,
    **batch_kind: bool,
) -> tuple[list[list[float]], dict[str, torch.Tensor]]:
    """Trains the unsharded collection on the mean of the ranks' losses. Returns losses by rank and final embeddings."""
    torch.manual_seed(3)
    over = Model(kind).over
    model = Model(kind, num_embeddings=len(IDS), device=CPU)
    model.over = over
    weights = {name.split(".")[1]: weight for name, weight in model.embeddings.named_parameters()}
    with torch.no_grad():
        for table, weight in weights.items():
            weight.copy_(initial[table])
    optimizers = [make_optimizer(list(weights.values())), torch.optim.SGD(over.parameters(), lr=dense_lr)]
    losses: list[list[float]] = [[] for _ in range(num_ranks)]
    for step in range(STEPS):
        of_ranks = [model(dense_batch(make_batch(rank, step, **batch_kind)))[0] for rank in range(num_ranks)]
        for optimizer in optimizers:
            optimizer.zero_grad()
        torch.stack(of_ranks).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
        for rank, loss in enumerate(of_ranks):
            losses[rank].append(loss.item())
    return losses, {table: weight.detach() for table, weight in weights.items()}
