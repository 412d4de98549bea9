# SPDX-License-Identifier: Apache-2.0
"""SASRec's encoder (Kang and McAuley 2018): pre-norm blocks of softmax self-attention and a two-layer network.

Shapes: B sequences of up to N tokens, T tokens of all sequences, E columns, H heads.
"""

from __future__ import annotations

import torch
from headway.nn import Sequences
from torch import Tensor, nn
from torch.nn import functional


class SASRec(nn.Module):
    """Maps (T, E) to (T, E). Sequences are padded inside, as in common implementations of this baseline."""

    def __init__(self, *, dim: int, num_layers: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block(dim, num_heads, dropout) for _ in range(num_layers))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, sequences: Sequences) -> Tensor:
        lengths = sequences.offsets.diff()
        in_sequence = torch.arange(sequences.max_length, device=x.device) < lengths[:, None]
        padded = x.new_zeros(*in_sequence.shape, x.shape[1])
        padded[in_sequence] = x
        for block in self.blocks:
            padded = block(padded)
        out: Tensor = self.norm(padded[in_sequence])
        return out


class _Block(nn.Module):
    """One block. Padding follows all tokens of a sequence, so the causal mask hides it."""

    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.attention_norm, self.network_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.network = nn.Sequential(
            nn.Linear(dim, dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(dim, dim), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps padded sequences (B, N, E) to (B, N, E)."""
        q, k, v = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part in self.qkv(self.attention_norm(x)).chunk(3, dim=-1)
        )
        attention_out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + functional.dropout(self.out(attention_out.transpose(1, 2).flatten(2)), self.dropout, self.training)
        out: Tensor = x + self.network(self.network_norm(x))
        return out
