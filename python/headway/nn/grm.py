# SPDX-License-Identifier: Apache-2.0
"""``GRM``: a generative recommendation model for ranking (MTGRBoost, section 2 and figure 3).

Idea: ``TokenEncoder`` makes tokens of context, history and targets. A stack of HSTU layers runs over all of them at
once, so one pass scores all targets of a user. ``MMoE`` mixes experts for each task, and a linear head gives a logit.

Example: labels click and buy, where buy is given click. The probability of a click is s(a), that of a purchase
s(a) s(b), with the logits a and b and the logistic function s. The loss of buy uses log s(a) + log s(b), so it does not
underflow.

Invariants: no logit depends on a label. A target does not see other targets. Losses are sums over targets, so they may
be added over micro-batches and ranks.
Complexity: see ``GRM.flops()``.
Source: MTGRBoost (Meituan 2025), equations 1 to 4 and table 1. The product s(a) s(b), called CTCVR, is that of ESMM
(Ma et al. 2018).

Shapes: N targets, T tokens, E columns, K tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from headway.data.sample_batch import SampleBatch
from headway.data.schema import SampleSchema
from headway.embedding import Adam, Optimizer, PendingBatch
from headway.embedding.process_groups import GroupOrLocal
from headway.nn.config import HSTUConfig, HSTUStackConfig, Recompute
from headway.nn.hstu_stack import HSTUStack
from headway.nn.mmoe import MMoE
from headway.nn.row_padding import pad_rows, padded_rows
from headway.nn.token_encoder import TokenEncoder


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True, kw_only=True)
class GRMConfig:
    """Sizes of a model.

    Attributes:
        dim: columns of a token.
        num_layers, num_heads, head_dim: the HSTU stack; queries, keys and values have ``head_dim`` columns per head.
        max_length: most tokens of a sample: contextual ones, history and targets.
        embedding_dim: columns of an embedding in the tables.
        num_experts, top_k, expert_hidden: the mixture of experts.
        given: label -> the label that must be 1 before, such as buy -> click.
        position_bias, num_time_buckets: relative biases of the attention.
        dropout: probability of dropout in HSTU layers.
        recompute: what their backward pass computes again instead of saving it (``headway.nn.HSTULayer``). ``none`` is
            fastest and takes most memory.
        wide: add a linear function of the target's embeddings to each logit, beside the stack (Cheng et al. 2016). It
            learns fast how often a single id is clicked.
        deep: hidden columns of a perceptron beside the stack; empty: none. With a linear function of the same inputs it
            is added to each logit (Cheng et al. 2016, "wide and deep"). Its inputs are the embeddings of a target, of
            its context, and the mean of its history's first event feature. The heads of the stack then begin at 0, so
            that a stack that has learned nothing yet adds no noise.
    """

    dim: int = 64
    num_layers: int = 2
    num_heads: int = 2
    head_dim: int = 32
    max_length: int = 256
    embedding_dim: int = 32
    num_experts: int = 4
    top_k: int = 2
    expert_hidden: int = 64
    given: Mapping[str, str] = field(default_factory=dict)
    position_bias: bool = False
    num_time_buckets: int = 0
    dropout: float = 0.0
    recompute: Recompute = "norm_and_gate"
    wide: bool = False
    deep: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Checks the sizes; ValueError names the first that is wrong."""
        for name in ("dim", "num_layers", "num_heads", "head_dim", "max_length", "embedding_dim", "num_experts",
                     "expert_hidden"):  # fmt: skip
            _expect(getattr(self, name) >= 1, f"{name} must be at least 1, not {getattr(self, name)}")
        _expect(
            1 <= self.top_k <= self.num_experts,
            f"top_k must be from 1 to num_experts, which is {self.num_experts}, not {self.top_k}",
        )
        _expect(all(columns >= 1 for columns in self.deep), f"deep must have numbers from 1, not {list(self.deep)}")
        _expect(self.num_time_buckets >= 0, f"num_time_buckets must be at least 0, not {self.num_time_buckets}")
        _expect(0 <= self.dropout < 1, f"dropout must be from 0 to below 1, not {self.dropout}")

    @classmethod
    def preset(cls, name: str, **changes: Any) -> GRMConfig:
        """Returns the sizes of table 1 of MTGRBoost: ``grm_4g`` or ``grm_110g``.

        A name states the FLOPs of the projections to u, v, q and k at 600 tokens: 8 E^2 per token and layer.

        Raises:
            ValueError: there is no such preset.
        """
        if name not in _PRESETS:
            raise ValueError(f"there is no preset {name}, only {', '.join(_PRESETS)}")
        return replace(_PRESETS[name], **changes)

    def layer(self) -> HSTUConfig:
        return HSTUConfig(
            dim=self.dim,
            max_length=self.max_length,
            num_heads=self.num_heads,
            qk_dim=self.head_dim,
            v_dim=self.head_dim,
            gate="gate_then_norm",
            scale="max_length",
            position_bias=self.position_bias,
            num_time_buckets=self.num_time_buckets,
            dropout=self.dropout,
            recompute=self.recompute,
        )


_PRESETS = {
    "grm_4g": GRMConfig(
        dim=512, num_layers=3, num_heads=2, head_dim=256, max_length=3200, embedding_dim=64, expert_hidden=512
    ),
    "grm_110g": GRMConfig(
        dim=1024, num_layers=22, num_heads=4, head_dim=256, max_length=3200, embedding_dim=64, expert_hidden=1024
    ),
}


class GRM(nn.Module):
    """The model. It has the interface of ``headway.training.TrainableModel``.

    Args:
        config: sizes and options.
        schema: features and labels of a sample.
        optimizer: optimizer of the tables.
        tables: name of the table of each feature; others have a table of their own name.
        seed: seed of initial embeddings.
        process_group: ranks that share the tables.
        device: device of model and tables.
        prioritized: allow ``read_ahead()``.
        make_tables: see ``TokenEncoder``.

    Raises:
        ValueError: ``config.given`` names no label, or labels depend on each other in a circle.
    """

    def __init__(
        self,
        config: GRMConfig,
        schema: SampleSchema,
        *,
        optimizer: Optimizer | None = None,
        tables: Mapping[str, str] | None = None,
        seed: int = 0,
        process_group: GroupOrLocal = None,
        device: torch.device | str | None = None,
        prioritized: bool = False,
        make_tables: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__()
        self.config, self.schema = config, schema
        self._chains = label_chains(schema.labels, config.given)
        self.encoder = TokenEncoder(
            schema,
            dim=config.dim,
            embedding_dim=config.embedding_dim,
            optimizer=Adam(lr=1e-3) if optimizer is None else optimizer,
            tables=tables,
            seed=seed,
            process_group=process_group,
            device=device,
            has_times=config.num_time_buckets > 0,
            has_dropout_keys=config.dropout > 0,
            has_deep_inputs=bool(config.deep),
            prioritized=prioritized,
            make_tables=make_tables,
        )
        self.stack = HSTUStack(HSTUStackConfig(layer=config.layer(), num_layers=config.num_layers))
        self.mmoe = MMoE(
            config.dim,
            num_tasks=len(schema.labels),
            num_experts=config.num_experts,
            top_k=config.top_k,
            hidden=config.expert_hidden,
        )
        self.heads = nn.Parameter(torch.empty(len(schema.labels), config.dim))
        self.head_bias = nn.Parameter(torch.zeros(len(schema.labels)))
        nn.init.normal_(self.heads, std=config.dim**-0.5)
        num_inputs = config.embedding_dim * (len(schema.events) + len(schema.context) + 1)
        self.deep = WideAndDeep([num_inputs, *config.deep, len(schema.labels)]) if config.deep else None
        if config.deep:
            nn.init.zeros_(self.heads)
        width = config.embedding_dim * len(schema.events)  # A target has these features.
        self.wide = nn.Linear(width, len(schema.labels), bias=False) if config.wide else None
        self.to(self.encoder.tables.device)

    def start_lookups(self, batch: SampleBatch) -> PendingBatch:
        """Begins the lookups of a batch, to be passed to ``forward()``."""
        return self.encoder.start_lookups(batch)

    def read_ahead(self, lookups: Sequence[PendingBatch]) -> None:
        """Reads rows of the next step; see ``HashTableCollection.read_ahead()``. The model needs ``prioritized``."""
        self.encoder.tables.read_ahead(lookups)

    def forward(
        self, batch: SampleBatch, *, seed: int = 0, step: int = 0, lookups: PendingBatch | None = None
    ) -> dict[str, Tensor]:
        """Returns the sum of the losses of each label, () float32.

        Args:
            batch: samples of this rank, maybe none.
            seed, step: determine the dropout masks, together with the samples.
            lookups: of the batch, from ``start_lookups()``; None: they begin here.
        """
        log_probabilities = self.log_probabilities(self.logits(batch, seed=seed, step=step, lookups=lookups))
        return {
            name: -(batch.labels[name] * yes + (1 - batch.labels[name]) * no).sum()
            for name, (yes, no) in log_probabilities.items()
        }

    def count_terms(self, batch: SampleBatch) -> dict[str, int]:
        """Returns the number of terms in the loss of each label."""
        return dict.fromkeys(self.schema.labels, batch.num_targets)

    def predict(self, batch: SampleBatch) -> dict[str, Tensor]:
        """Returns the logarithm of the probability of each label, (N,) float32."""
        return {name: yes for name, (yes, _) in self.log_probabilities(self.logits(batch)).items()}

    def logits(
        self, batch: SampleBatch, *, seed: int = 0, step: int = 0, lookups: PendingBatch | None = None
    ) -> Tensor:
        """Returns the logits of all tasks, (N, K) float32."""
        tokens = self.encoder(batch, seed=seed, step=step, lookups=lookups)
        if tokens.sequences.max_length > self.config.max_length:
            raise ValueError(
                f"a sample has {tokens.sequences.max_length} tokens, and max_length is {self.config.max_length}"
            )
        return self.score(
            self.stack(tokens.x, tokens.sequences).index_select(0, tokens.targets),
            tokens.target_embeddings,
            tokens.deep_inputs,
        )

    def score(self, encoded: Tensor, target_embeddings: Tensor, deep_inputs: Tensor | None) -> Tensor:
        """Returns the logits of all tasks, (N, K) float32.

        Args:
            encoded: (N, E) outputs of the stack for the targets.
            target_embeddings, deep_inputs: as in ``EncodedTokens``.
        """
        num_targets = len(encoded)
        mixed = self.mmoe(pad_rows(encoded, padded_rows(num_targets, encoded.device)))[:num_targets]
        logits: Tensor = (mixed * self.heads).sum(2) + self.head_bias
        if self.wide is not None:
            logits = logits + self.wide(target_embeddings)
        if self.deep is not None:
            logits = logits + self.deep(deep_inputs)
        return logits if logits.dtype == torch.float64 else logits.float()

    def flops(self, batch: SampleBatch, *, backward: bool = False) -> float:
        """Counts the floating-point operations of a forward pass: matrix products, and causal attention.

        With ``backward`` also those of the backward pass: twice as many for products, 2.5 times for attention, whose
        scores are computed again.

        A token costs 2 E (P + G) for the projections of a layer, with P columns of u, v, q and k and G of the input of
        the output projection. A sequence of L tokens costs H (D + V) L^2 for the scores and values that the mask
        leaves. A target costs the experts, and the deep part.
        """
        layer, num_context = self.config.layer(), len(self.schema.context)
        lengths = (batch.event_lengths + num_context).double()
        per_token = 2 * layer.dim * (sum(layer.projection_widths) + layer.output_width)
        attention = layer.num_heads * (layer.qk_dim + layer.v_dim) * float(lengths.square().sum())
        experts = 4 * self.config.num_experts * layer.dim * self.config.expert_hidden * batch.num_targets
        deep = 0 if self.deep is None else 2 * sum(each.numel() for each in self.deep.parameters() if each.dim() == 2)
        products = self.config.num_layers * per_token * float(lengths.sum()) + experts + deep * batch.num_targets
        of_attention = self.config.num_layers * attention
        return 3 * products + 3.5 * of_attention if backward else products + of_attention

    def log_probabilities(self, logits: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Returns log p and log(1 - p) of each label, (N,) each, for logits (N, K)."""
        columns = dict(zip(self.schema.labels, logits.unbind(1), strict=True))
        return {name: log_product([columns[each] for each in chain]) for name, chain in self._chains.items()}


class WideAndDeep(nn.Module):
    """A perceptron with rectified linear units, plus a linear function of the same inputs (Cheng et al. 2016).

    Args:
        widths: columns of the inputs, of each hidden layer, and of the outputs.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])
        self.linear = nn.Linear(widths[0], widths[-1])

    def forward(self, x: Tensor) -> Tensor:
        """Returns (N, outputs) for x (N, inputs)."""
        out: Tensor = self.layers(x) + self.linear(x)
        return out


def label_chains(labels: Sequence[str], given: Mapping[str, str]) -> dict[str, list[str]]:
    """Returns for each label itself and the labels that it depends on.

    Example: buy -> click gives {"click": ["click"], "buy": ["buy", "click"]}.

    Raises:
        ValueError: ``given`` names no label, or labels depend on each other in a circle.
    """
    for name in (*given, *given.values()):
        if name not in labels:
            raise ValueError(f"given names {name}, which is none of the labels {', '.join(labels)}")
    chains = {}
    for label in labels:
        chain = [label]
        while (before := given.get(chain[-1])) is not None:
            if before in chain:
                raise ValueError(f"given has labels in a circle: {' -> '.join([*chain, before])}")
            chain.append(before)
        chains[label] = chain
    return chains


def log_product(logits: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Returns log p and log(1 - p) for the product p of probabilities.

    With q_i = 1 - p_i, 1 - p_1 p_2 = q_1 + p_1 q_2, whose terms are all positive: no digits cancel.
    """
    yes = functional.logsigmoid(logits[0])
    no = functional.logsigmoid(-logits[0])
    for logit in logits[1:]:
        no = torch.logaddexp(no, yes + functional.logsigmoid(-logit))
        yes = yes + functional.logsigmoid(logit)
    return yes, no
