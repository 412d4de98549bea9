"""What makes autograd call tables, and tells GradScaler of their gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch


class Anchor(torch.Tensor):
    """A parameter of one number that is no weight.

    Its gradient is None where there are none of the tables, 1 where they are finite, and else not a number. It is
    worked out when somebody asks for it: a scaler, which may divide it. Nobody else pays for it.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    _shown: torch.Tensor | None  #: what was asked for
    #: gradients that it does not tell of yet
    _unseen: list[tuple[Callable[[], torch.Tensor], torch.Tensor | None]]

    @staticmethod
    def make(device: torch.device) -> Anchor:
        anchor: Anchor = torch.Tensor._make_subclass(Anchor, torch.zeros(1, device=device), True)
        anchor.grad = None
        return anchor

    def add_gradient(self, values_of: Callable[[], torch.Tensor], num_known: torch.Tensor | None = None) -> None:
        """Tables have the gradients that ``values_of`` gives, (W, D); the first ``num_known`` rows if that is given."""
        self._unseen.append((values_of, num_known))

    @property
    def grad(self) -> torch.Tensor | None:
        for values_of, num_known in self._unseen:
            mark = mark_of(values_of(), num_known)
            self._shown = mark if self._shown is None else self._shown * mark
        self._unseen.clear()
        return self._shown

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        self._shown, self._unseen = value, []

    @property
    def factor(self) -> float:
        """What the gradient was multiplied by since. Waits for the device only if somebody asked for the gradient."""
        return 1.0 if self._shown is None else float(self._shown)


def mark_of(values_WD: torch.Tensor, num_known: torch.Tensor | None = None) -> torch.Tensor:
    """(1,): 1 if the first ``num_known`` rows, or all, are finite; else not a number."""
    if values_WD.numel() == 0:
        return values_WD.new_ones(1)
    if num_known is not None:
        is_beyond = torch.arange(len(values_WD), device=values_WD.device) >= num_known
        values_WD = values_WD.masked_fill(is_beyond.unsqueeze(1), 0)
    # Which are not a number if any value is none, and need no memory.
    lowest, highest = torch.aminmax(values_WD)
    return (1 + 0 * lowest + 0 * highest).view(1)
