# SPDX-License-Identifier: Apache-2.0
"""``MMoE``: multi-gate mixture of experts (Ma et al. 2018; MTGRBoost, Meituan 2025, equation 4).

Shapes: N rows, E columns, X experts, K tasks, H hidden columns.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class MMoE(nn.Module):
    """Mixes the outputs of experts for each task, by a gate of its own that keeps the ``top_k`` largest weights.

    An expert is Linear, SiLU, Linear. A gate is a softmax over its ``top_k`` experts; the others have weight 0.

    Args:
        dim: columns of inputs and outputs.
        num_tasks: number of gates.
        num_experts: experts, which all tasks share.
        top_k: experts that a row uses for each task.
        hidden: hidden columns of an expert.
    """

    def __init__(self, dim: int, *, num_tasks: int, num_experts: int, top_k: int, hidden: int) -> None:
        super().__init__()
        if not 1 <= top_k <= num_experts:
            raise ValueError(f"top_k must be from 1 to the {num_experts} experts, not {top_k}")
        self.top_k = top_k
        self.hidden_weight = nn.Parameter(torch.empty(num_experts, dim, hidden))
        self.hidden_bias = nn.Parameter(torch.zeros(num_experts, 1, hidden))
        self.output_weight = nn.Parameter(torch.empty(num_experts, hidden, dim))
        self.output_bias = nn.Parameter(torch.zeros(num_experts, 1, dim))
        self.gates = nn.Linear(dim, num_tasks * num_experts)
        for weight in (self.hidden_weight, self.output_weight):
            for of_expert in weight:
                nn.init.xavier_uniform_(of_expert)

    def forward(self, x: Tensor) -> Tensor:
        """Computes (N, K, E) for x (N, E)."""
        num_experts = self.hidden_weight.shape[0]
        hidden = functional.silu(x @ self.hidden_weight + self.hidden_bias)  # (X, N, H)
        outputs = hidden @ self.output_weight + self.output_bias  # (X, N, E)
        logits = self.gates(x).unflatten(1, (-1, num_experts))
        largest, experts = logits.topk(self.top_k, dim=2)
        shares = largest.softmax(dim=2)  # Under autocast its dtype differs from that of the logits.
        weights = torch.zeros_like(logits, dtype=shares.dtype).scatter(2, experts, shares)  # (N, K, X)
        return torch.einsum("nkx,xne->nke", weights.to(outputs.dtype), outputs)
