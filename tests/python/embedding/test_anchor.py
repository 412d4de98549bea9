# SPDX-License-Identifier: Apache-2.0
"""An anchor is a dummy parameter of a table. Its ``grad`` tells GradScaler whether the table's gradients are finite.

``grad`` is None without gradients, otherwise 1 (finite) or NaN. A scaler multiplies it in place; ``factor`` is the
product.
"""

from __future__ import annotations

import torch
from headway.embedding.anchor import Anchor


def test_an_anchor_tells_of_the_gradients_that_are_known() -> None:
    # Gradients, and the number of valid rows among them; None: all.
    new: list[tuple[torch.Tensor, torch.Tensor | None]] = []

    def new_gradients() -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        taken = new[:]
        new.clear()
        return taken

    anchor = Anchor.make(torch.device("cpu"), new_gradients)
    assert anchor.grad is None and anchor.requires_grad
    values = torch.tensor([[1.0, 2.0], [float("inf"), 0.0]])
    new.append((values, torch.tensor([1], dtype=torch.int32)))
    assert anchor.factor == 1.0, "nobody has asked"
    assert anchor.grad.tolist() == [1.0]
    anchor.grad.mul_(0.5)
    assert anchor.factor == 0.5
    new.append((values, None))
    assert anchor.grad.isnan().all()
    new.append((values, None))
    anchor.grad = None
    assert anchor.grad is None, "gradients before do not count"
