# SPDX-License-Identifier: Apache-2.0
"""Dummy parameter that connects a merged table (merging.py) to autograd and to GradScaler."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

#: Returns new gradients: pairs of values, (W, D), W rows and D columns, and the number of valid rows among them, (1,)
#: int32; None: all rows.
NewGradients = Callable[[], Sequence[tuple[torch.Tensor, torch.Tensor | None]]]
#: Returns the gradient that a scaler sees, given that of this rank.
Agree = Callable[[torch.Tensor | None], torch.Tensor | None]


class Anchor(torch.Tensor):
    """Dummy parameter of shape (1,). Autograd reaches a merged table through it.

    ``torch.amp.GradScaler`` reads its gradient: None (the table has no gradient), 1 (finite) or NaN. The scaler may
    multiply it in place. The gradient is computed when it is read, so training without a scaler does not pay for it.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    _shown: torch.Tensor | None  #: The gradient as it was last read; None: not read since it was set to None.
    _new_gradients: NewGradients
    _agree: Agree | None
    _has_agreed: bool  #: The gradient was read since it was set to None.

    @staticmethod
    def make(device: torch.device, new_gradients: NewGradients, agree: Agree | None = None) -> Anchor:
        """Makes an anchor on ``device`` without a gradient.

        Args:
            new_gradients: returns the gradients of the table that it has not returned before.
            agree: called at the first read of a gradient; None: this rank judges by its own gradients.
        """
        anchor: Anchor = torch.Tensor._make_subclass(Anchor, torch.zeros(1, device=device), True)
        anchor._shown, anchor._new_gradients = None, new_gradients
        anchor._agree, anchor._has_agreed = agree, False
        return anchor

    @property
    def grad(self) -> torch.Tensor | None:
        """None, or (1,): 1 (finite) or NaN, times the factors of scalers. Computed on first access."""
        for values_WD, num_known in self._new_gradients():
            mark = mark_of(values_WD, num_known)
            self._shown = mark if self._shown is None else self._shown * mark
        if self._agree is not None and not self._has_agreed:
            self._shown, self._has_agreed = self._agree(self._shown), True
        return self._shown

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        self._new_gradients()  # Gradients from before no longer count.
        self._shown, self._has_agreed = value, False

    @property
    def factor(self) -> float:
        """Factor by which a scaler multiplied the gradient; 1 if nobody read the gradient, NaN if it is not finite.

        Waits for the device only if the gradient was read.
        """
        return 1.0 if self._shown is None else float(self._shown)


def mark_of(values_WD: torch.Tensor, num_known: torch.Tensor | None = None) -> torch.Tensor:
    """Returns (1,): 1 if the first ``num_known`` rows (None: all rows) are finite, else NaN."""
    if values_WD.numel() == 0:
        return values_WD.new_ones(1)
    if num_known is not None:
        is_beyond = torch.arange(len(values_WD), device=values_WD.device) >= num_known
        values_WD = values_WD.masked_fill(is_beyond.unsqueeze(1), 0)
    # aminmax() returns NaN if a value is NaN, and allocates nothing of the size of the values.
    lowest, highest = torch.aminmax(values_WD)
    return (1 + 0 * lowest + 0 * highest).view(1)
