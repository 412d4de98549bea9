# SPDX-License-Identifier: Apache-2.0
"""Configuration of HSTU layers. Implementations of HSTU differ, for example in scale and gate; see the options."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

Norm = Literal["layer", "rms"]
Activated = Literal["all", "gate"]
Scale = float | Literal["max_length", "batch_length", "length"]
Gate = Literal["norm_then_gate", "gate_then_norm", "concat", "concat_norm"]
Recompute = Literal["none", "norm_and_gate", "projection", "all"]
Attention = Literal["kernel", "reference"]
FinalNorm = Literal["layer", "rms", "l2"]


@dataclass(frozen=True, kw_only=True)
class HSTUConfig:
    """A layer: ``x + dropout(gate(attention(q, k, v), u)) W_out``, with ``u, v, q, k = silu(norm(x) W_uvqk)``.

    With ``activated`` "gate", SiLU applies to u only.

    The authors of HSTU (Zhai et al. 2024) use two definitions: ``HSTUConfig.research()`` in the paper and its
    experiments, ``HSTUConfig.production()`` in their production code.

    Attributes:
        dim: columns of the input and output.
        max_length: upper bound of tokens per sequence, including targets and contextual tokens.
        num_heads: heads of the attention.
        qk_dim: columns of queries and keys per head.
        v_dim: columns of values and of the gate u per head.
        norm: norm of the input and of the attention output: LayerNorm or RMSNorm.
        affine: norms have learned weights (LayerNorm: and biases).
        norm_eps: added to the variance or mean square.
        projection_bias: u, v, q and k have a learned bias.
        activated: columns of the projection that go through SiLU: "all", or only u ("gate").
        alpha: factor of (q k' + relative bias) inside SiLU.
        scale: factor of SiLU(...): a number; 1 / ``max_length`` of this config ("max_length"); 1 / longest sequence of
            the batch ("batch_length"); 1 / tokens of the sequence ("length").
        gate: input of the output projection, for the attention output A of all heads:
            "norm_then_gate": norm(A) u; "gate_then_norm": norm(A u) (MTGRBoost, equation 3);
            "concat": A, u and norm(A) u side by side; "concat_norm": norm(A), u and norm(A) u side by side.
        output_bias: the output projection has a bias.
        causal: a token attends to no later token. For window and full_attention_tail see
            :func:`headway.reference.hstu_mask`.
        position_bias: add a learned bias for each distance between two tokens.
        num_time_buckets: add a learned bias for each bucket of time differences. This is the number of bounds between
            buckets, so there is one bucket more. 0: no such bias.
        time_bucket_width: width of a bucket in ln(time difference). The difference has the unit of the timestamps.
        dropout: dropout probability of the output projection's input.
        recompute: activations that the backward pass recomputes instead of saving them; :class:`HSTULayer` has the
            sizes.
        attention: "kernel" is the compiled operator; "reference" is plain PyTorch: slow, for checking the operator.
        deterministic: the operator's backward pass gives the same bits in every call.
    """

    dim: int
    max_length: int
    num_heads: int = 1
    qk_dim: int = 64
    v_dim: int = 64
    norm: Norm = "layer"
    affine: bool = False
    norm_eps: float = 1e-6
    projection_bias: bool = False
    activated: Activated = "all"
    alpha: float = 1.0
    scale: Scale = "max_length"
    gate: Gate = "norm_then_gate"
    output_bias: bool = True
    causal: bool = True
    window: int = 0
    full_attention_tail: int = 0
    position_bias: bool = False
    num_time_buckets: int = 0
    time_bucket_width: float = 0.301
    dropout: float = 0.0
    recompute: Recompute = "norm_and_gate"
    attention: Attention = "kernel"
    deterministic: bool = False

    def __post_init__(self) -> None:
        for name in ("dim", "max_length", "num_heads", "qk_dim", "v_dim"):
            _expect(getattr(self, name) >= 1, f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("window", "full_attention_tail", "num_time_buckets"):
            _expect(getattr(self, name) >= 0, f"{name} must be at least 0, not {getattr(self, name)}")
        for name in ("norm_eps", "time_bucket_width"):
            _expect(getattr(self, name) > 0, f"{name} must be above 0, not {getattr(self, name)}")
        for name, choices in _CHOICES.items():
            _expect(getattr(self, name) in choices, f"{name} must be one of {choices}, not {getattr(self, name)!r}")
        _expect(
            not isinstance(self.scale, str) or self.scale in _SCALES,
            f"scale must be a number or one of {_SCALES}, not {self.scale!r}",
        )
        _expect(0 <= self.dropout < 1, f"dropout must be from 0 to below 1, not {self.dropout}")
        _expect(self.window > 0 or self.full_attention_tail == 0, "full_attention_tail needs a window")
        _expect(not self.deterministic or self.attention == "kernel", "deterministic is an option of the kernel")

    @classmethod
    def research(cls, **changes: Any) -> HSTUConfig:
        """Definition of the paper and its experiments: SiLU(q k' + bias) / max_length, norm(A) u."""
        return cls(**{"position_bias": True, "num_time_buckets": 128} | changes)

    @classmethod
    def production(cls, **changes: Any) -> HSTUConfig:
        """Definition of the production code: SiLU(q k' / sqrt(qk_dim)) / longest of the batch, gate "concat"."""
        qk_dim = changes.get("qk_dim", cls.qk_dim)
        definition: dict[str, Any] = {
            "affine": True,
            "projection_bias": True,
            "activated": "gate",
            "alpha": 1 / math.sqrt(qk_dim),
            "scale": "batch_length",
            "gate": "concat",
            "output_bias": False,
        }
        return cls(**definition | changes)

    @property
    def gate_width(self) -> int:
        """Columns of u and of the attention output, over all heads."""
        return self.num_heads * self.v_dim

    @property
    def projection_widths(self) -> tuple[int, int, int, int]:
        """Columns of u, v, q and k, over all heads."""
        return (self.gate_width, self.gate_width, self.num_heads * self.qk_dim, self.num_heads * self.qk_dim)

    @property
    def output_width(self) -> int:
        """Columns of the output projection's input."""
        return self.gate_width * (3 if self.gate in ("concat", "concat_norm") else 1)


@dataclass(frozen=True, kw_only=True)
class HSTUStackConfig:
    """A stack of equal layers.

    Attributes:
        layer: config of each layer.
        num_layers: number of layers.
        final_norm: LayerNorm or RMSNorm without learned weights, or division of each token by its L2 norm ("l2"), which
            the research code uses; None: no norm.
    """

    layer: HSTUConfig
    num_layers: int
    final_norm: FinalNorm | None = "layer"

    def __post_init__(self) -> None:
        _expect(self.num_layers >= 1, f"num_layers must be at least 1, not {self.num_layers}")
        choices = (None, *get_args(FinalNorm))
        _expect(self.final_norm in choices, f"final_norm must be one of {choices}, not {self.final_norm!r}")


_CHOICES: dict[str, tuple[str, ...]] = {
    "norm": get_args(Norm),
    "activated": get_args(Activated),
    "gate": get_args(Gate),
    "recompute": get_args(Recompute),
    "attention": get_args(Attention),
}
_SCALES = ("max_length", "batch_length", "length")


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
