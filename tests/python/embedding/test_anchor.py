# SPDX-License-Identifier: Apache-2.0
"""An anchor reports whether the gradients of a lookup are finite."""

from __future__ import annotations

import torch
from headway.embedding.anchor import Anchor


def test_an_anchor_tells_of_the_gradients_that_are_known() -> None:
    anchor = Anchor.make(torch.device("cpu"))
    assert anchor.grad is None and anchor.requires_grad
    values = torch.tensor([[1.0, 2.0], [float("inf"), 0.0]])
    anchor.add_gradient(lambda: values, torch.tensor([1], dtype=torch.int32))
    assert anchor.factor == 1.0, "nobody has asked"
    assert anchor.grad.tolist() == [1.0]
    anchor.grad.mul_(0.5)
    assert anchor.factor == 0.5
    anchor.add_gradient(lambda: values)
    assert anchor.grad.isnan().all()
    anchor.grad = None
    assert anchor.grad is None
