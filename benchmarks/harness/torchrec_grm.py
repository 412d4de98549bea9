# SPDX-License-Identifier: Apache-2.0
"""A generative recommendation model on TorchRec, with Meta's Triton kernels: the peer of ``headway.training``.

Tables are TorchRec's with managed collisions and fused Adam. A layer uses the Triton kernels of generative-recommenders
for both norms and the attention, and cuBLAS for products: their Triton product tunes itself anew for each number of
tokens. Experts and losses are those of ``headway.nn``, in plain PyTorch. ``TrainPipelineSparseDist`` copies a batch and
begins its exchanges while the one before computes. Batches are made before the steps are timed, in pinned memory, so
input costs nothing.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from headway import reference
from headway.data import SampleBatch
from headway.nn import MMoE
from headway.nn.grm import GRMConfig, log_product
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.harness.managed_collisions import make_managed_collisions, shard_managed_collisions
from benchmarks.harness.triton_kernels import import_attention_kernels

_EVICTION_INTERVAL = 10  #: Batches after which managed collisions reassign their rows.
_MOST_IDS = 1 << 54  #: Ids of a table; removal of duplicates needs a sum below 2^63 over all tables.
_ACTION = "action"  #: Feature of the history alone; the others are of all events.

#: Attention without softmax: (q, k, v, offsets, num_targets, max_length) -> (T, heads, columns)
Attention = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, int], Tensor]


@dataclass(frozen=True)
class PeerBatch:
    """A batch as TorchRec's pipeline takes it. B samples, E events, N targets.

    Attributes:
        features: KeyedJaggedTensor of all features.
        offsets: (B + 1,) int64 of events.
        num_targets: (B,) int64 targets of each sample.
        history: (H,) int64, index of each history event in all events.
        targets: (N,) int64, index of each target in all events.
        labels: (N, K) float32.
        max_length: most events of a sample, up to a multiple of 16. Triton makes faster code for multiples
            of 16, and compiles anew when a number becomes one.
    """

    features: Any
    offsets: Tensor
    num_targets: Tensor
    history: Tensor
    targets: Tensor
    labels: Tensor
    max_length: int

    @classmethod
    def of(cls, batch: SampleBatch) -> PeerBatch:
        """Arranges a batch of ``headway.data`` in pinned memory, if there is a GPU."""
        from torchrec import KeyedJaggedTensor

        lengths = batch.event_lengths
        features = {**batch.events, **batch.actions}
        of_feature = [batch.history_lengths if name == _ACTION else lengths for name in features]
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        within = torch.arange(batch.num_events) - offsets[:-1].repeat_interleave(lengths)
        is_history = within < batch.history_lengths.repeat_interleave(lengths)
        made = cls(
            KeyedJaggedTensor(keys=list(features), values=torch.cat(list(features.values())),
                              lengths=torch.cat(of_feature)),
            offsets, batch.target_lengths, is_history.nonzero()[:, 0], (~is_history).nonzero()[:, 0],
            torch.stack(list(batch.labels.values()), dim=1), -(-batch.max_tokens // 16) * 16,
        )  # fmt: skip
        return made._map(lambda value: value.pin_memory()) if torch.cuda.is_available() else made

    @property
    def num_tokens(self) -> int:
        return int(self.offsets[-1])

    def to(self, device: torch.device, non_blocking: bool = False) -> PeerBatch:
        return self._map(lambda value: value.to(device, non_blocking=non_blocking))

    def record_stream(self, stream: torch.Stream) -> None:
        self._map(lambda value: (value.record_stream(stream), value)[1])

    def _map(self, function: Callable[[Any], Any]) -> PeerBatch:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: function(value) for name, value in values.items() if not isinstance(value, int)})


def import_attention(folder: Path, *, has_tma: bool, is_sorted: bool, longest: int) -> Attention:
    """Imports Triton's kernels from a checkout of generative-recommenders.

    Args:
        folder: the checkout.
        has_tma: use tensor descriptors (``enable_tma``).
        is_sorted: start with the longest sequences (``sort_by_length``).
        longest: the only length for which the kernels tune themselves.
    Raises:
        BenchmarkError: they cannot be imported.
    """
    triton_hstu_mha, set_static_max_seq_lens = import_attention_kernels(folder)

    def attention(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, num_targets: Tensor, max_length: int) -> Tensor:
        return triton_hstu_mha(
            N=max_length, alpha=q.shape[2] ** -0.5, q=q, k=k, v=v, seq_offsets=offsets, num_targets=num_targets,
            sort_by_length=is_sorted, enable_tma=has_tma,
        )  # fmt: skip

    set_static_max_seq_lens([longest])
    return attention


def reference_attention(
    q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, num_targets: Tensor, max_length: int
) -> Tensor:
    """Attention on a CPU, to try the benchmark out."""
    return reference.hstu_attention(
        q, k, v, offsets, max_length=max_length, alpha=q.shape[2] ** -0.5, num_targets=num_targets.int()
    )


@contextlib.contextmanager
def one_rank(device: str) -> Iterator[dist.ProcessGroup]:
    """Makes a default process group of this process alone, as TorchRec needs one."""
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            yield dist.group.WORLD
        finally:
            dist.destroy_process_group()


class _Layer(nn.Module):
    """One HSTU layer: norm, projections to u, v, q and k, attention, norm times gate, projection back."""

    def __init__(self, config: GRMConfig, attention: Attention) -> None:
        super().__init__()
        self.heads, self.dim, self.attention = config.num_heads, config.head_dim, attention
        width = config.num_heads * config.head_dim
        self.norm = nn.LayerNorm(config.dim, eps=1e-6)
        self.output_norm = nn.LayerNorm(width, eps=1e-6)
        self.uvqk = nn.Parameter(torch.empty(config.dim, 4 * width))
        self.bias = nn.Parameter(torch.zeros(4 * width))
        self.output = nn.Parameter(torch.empty(width, config.dim))
        for weight in (self.uvqk, self.output):
            nn.init.xavier_uniform_(weight)

    def forward(self, x: Tensor, batch: PeerBatch) -> Tensor:
        of = x.dtype
        normed = self._normed(x)
        u, v, q, k = torch.addmm(self.bias.to(of), normed, self.uvqk.to(of)).chunk(4, dim=1)
        heads = [each.reshape(-1, self.heads, self.dim) for each in (q, k, v)]
        mixed = self.attention(*heads, batch.offsets, batch.num_targets, batch.max_length).flatten(1)
        return torch.addmm(x, self._gated(mixed, functional.silu(u)), self.output.to(of))

    def _normed(self, x: Tensor) -> Tensor:
        if not x.is_cuda:
            return functional.layer_norm(x, x.shape[1:], self.norm.weight.to(x.dtype), self.norm.bias.to(x.dtype), 1e-6)
        from generative_recommenders.ops.triton.triton_layer_norm import triton_layer_norm

        normed: Tensor = triton_layer_norm(x, self.norm.weight.to(x.dtype), self.norm.bias.to(x.dtype), 1e-6)
        return normed

    def _gated(self, x: Tensor, u: Tensor) -> Tensor:
        weight, bias = self.output_norm.weight.to(x.dtype), self.output_norm.bias.to(x.dtype)
        if not x.is_cuda:
            return functional.layer_norm(x, x.shape[1:], weight, bias, 1e-6) * u
        from generative_recommenders.ops.triton.triton_hstu_linear import triton_norm_mul_dropout

        gated: Tensor = triton_norm_mul_dropout(x, u, weight, bias, 1e-6, dropout_ratio=0.0, training=True)
        return gated


class _Dense(nn.Module):
    """Everything after the lookups. TorchRec's pipeline does not look into it."""

    def __init__(self, config: GRMConfig, features: Sequence[str], num_labels: int, attention: Attention) -> None:
        super().__init__()
        self.of_events = [name for name in features if name != _ACTION]
        self.events = nn.Linear(config.embedding_dim * len(self.of_events), config.dim)
        self.actions = nn.Linear(config.embedding_dim, config.dim, bias=False)
        self.layers = nn.ModuleList(_Layer(config, attention) for _ in range(config.num_layers))
        self.mmoe = MMoE(
            config.dim, num_tasks=num_labels, num_experts=config.num_experts, top_k=config.top_k,
            hidden=config.expert_hidden,
        )  # fmt: skip
        self.heads = nn.Parameter(torch.randn(num_labels, config.dim) * config.dim**-0.5)

    def forward(self, found: Any, batch: PeerBatch) -> tuple[Tensor, Tensor]:
        if isinstance(found, tuple):  # Managed collisions also return the remapped ids.
            found = found[0]
        dtype = torch.bfloat16 if batch.offsets.is_cuda else torch.float32
        with torch.autocast(batch.offsets.device.type, torch.bfloat16, enabled=batch.offsets.is_cuda):
            x = self.events(torch.cat([found[name].values() for name in self.of_events], dim=1))
            x = x.index_add(0, batch.history, self.actions(found[_ACTION].values()).to(x.dtype)).to(dtype)
            for layer in self.layers:
                x = layer(x, batch)
            logits = (self.mmoe(x[batch.targets]) * self.heads).sum(2).float()
        click, buy = logits.unbind(1)
        (yes, no), (yes_buy, no_buy) = log_product([click]), log_product([buy, click])
        clicked, bought = batch.labels.unbind(1)
        loss = -(clicked * yes + (1 - clicked) * no + bought * yes_buy + (1 - bought) * no_buy).mean()
        return loss, logits.detach()


class _Model(nn.Module):
    def __init__(self, embeddings: nn.Module, dense: _Dense) -> None:
        super().__init__()
        self.embeddings, self.dense = embeddings, dense

    def forward(self, batch: PeerBatch) -> tuple[Tensor, Tensor]:
        loss, logits = self.dense(self.embeddings(batch.features), batch)
        return loss, logits


class TorchRecPeer:
    """Trains the peer, one rank of ``group``.

    Args:
        config: sizes of the model.
        slots: rows of the table of each feature, over all ranks.
        num_labels: labels of a target.
        attention: of the layers.
        has_dedup: remove duplicates before ids are exchanged. It needs a GPU.
        group: ranks.
        device: of the model.
    """

    def __init__(
        self,
        config: GRMConfig,
        *,
        slots: dict[str, int],
        num_labels: int,
        attention: Attention,
        has_dedup: bool,
        group: dist.ProcessGroup,
        device: torch.device,
    ) -> None:
        from torchrec import EmbeddingConfig
        from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
        from torchrec.optim import RowWiseAdagrad
        from torchrec.streamable import Pipelineable

        Pipelineable.register(PeerBatch)
        torch.manual_seed(0)
        tables = make_managed_collisions(
            [
                EmbeddingConfig(
                    name=name, embedding_dim=config.embedding_dim, num_embeddings=rows, feature_names=[name]
                )
                for name, rows in slots.items()
            ],
            torch.optim.Adam if device.type == "cuda" else RowWiseAdagrad,  # FBGEMM has no Adam on a CPU.
            {"lr": 1e-3},
            eviction_interval=_EVICTION_INTERVAL,
            num_ids=_MOST_IDS,
            device=device,
        )
        model = _Model(tables, _Dense(config, list(slots), num_labels, attention).to(device))
        self.model = shard_managed_collisions(model, "embeddings", has_dedup=has_dedup, group=group, device=device)
        dense = [each for name, each in self.model.named_parameters() if "dense." in name]
        optimizer = torch.optim.AdamW(dense, lr=1e-3, fused=device.type == "cuda")
        self._pipeline = TrainPipelineSparseDist(self.model, optimizer, device, execute_all_batches=True)

    def steps(self, batches: Iterator[PeerBatch]) -> Iterator[None]:
        """Trains a step for each batch."""
        while True:
            try:
                self._pipeline.progress(batches)
            except StopIteration:
                return
            yield
