# SPDX-License-Identifier: Apache-2.0
"""The cost of a sample by its length, fitted on the device.

Idea: a pass over n samples of L tokens each takes t = c + a n (L + w L^2). c is the fixed time of a pass. a is the time
of the matrix products of a token, and a w L that of its attention, which grows with the sample. FreeScale takes the
power t = c + a n L^e instead. Both are fitted to a dozen passes, by least squares of relative errors: the second one
for each exponent of a grid.

Example: a token takes 1 us, with 0.0005 us more for each token of its sample, and a pass 2 ms beside that. Then w is
0.0005. Over lengths of 200 to 3,200 the power with the least error has the exponent 1.25, and misses times by 6%.

Invariants: all ranks take the longest time of each pass, and the fit of rank 0.
Complexity: passes over 7 times the tokens given, for each repetition.
Source: MTGRBoost, algorithm 1, counts tokens. The square term is that of causal attention. FreeScale (MLSys 2026) has
the power.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist

from headway.training.trial_passes import TrialPasses

#: Lengths are the longest divided by these, and numbers of tokens all divided by those.
_LENGTH_PARTS, _TOKEN_PARTS = (1, 2, 4, 16), (1, 2, 4)
#: Largest w. A token of a sample of L tokens then costs 1 + L, so a larger w divides work no differently, and weights
#: could leave 64 bits.
_MOST_SQUARE = 1.0
_EXPONENTS = torch.arange(100, 201, dtype=torch.float64) / 100


class Pass(NamedTuple):
    """A measured pass over ``num_samples`` samples of ``length`` tokens each."""

    num_samples: int
    length: int
    seconds: float


@dataclass(frozen=True)
class FittedCost:
    """Both fits.

    Attributes:
        square: w, from 0 to 1.
        exponent: e, from 1 to 2.
        square_error, power_error: mean error of a fit over the passes, relative to their times.
    """

    square: float
    exponent: float
    square_error: float
    power_error: float


def measure_cost(
    passes: TrialPasses, *, tokens: int, longest: int, device: torch.device, group: dist.ProcessGroup | None = None
) -> FittedCost:
    """Measures passes and fits both costs. All ranks call it.

    Args:
        passes: measures passes.
        tokens: most tokens of a timed batch.
        longest: tokens of a long sample.
        device: of numbers that are exchanged.
        group: ranks of the training; None: this rank alone.
    """
    longest = max(passes.shortest, min(longest, tokens))
    measured = []
    for length in sorted({max(passes.shortest, longest // part) for part in _LENGTH_PARTS}):
        for count in sorted({max(1, tokens // part // length) for part in _TOKEN_PARTS}):
            num_tokens, seconds = passes.time(count=count, length=length)
            measured.append(Pass(count, num_tokens // count, seconds))
    if group is None or group.size() == 1:
        return fit_cost(measured)
    times = torch.tensor([each.seconds for each in measured], dtype=torch.float64, device=device)
    dist.all_reduce(times, op=dist.ReduceOp.MAX, group=group)
    fitted = fit_cost([each._replace(seconds=s) for each, s in zip(measured, times.tolist(), strict=True)])
    # Hosts may differ in the last bit of a fit.
    of_first = torch.tensor(astuple(fitted), dtype=torch.float64, device=device)
    dist.broadcast(of_first, group_src=0, group=group)
    return FittedCost(*of_first.tolist())


def fit_cost(passes: Sequence[Pass]) -> FittedCost:
    """Fits both costs to passes with at least two lengths and two numbers of tokens."""
    num_samples, lengths, seconds = torch.tensor(passes, dtype=torch.float64).unbind(1)
    fixed = torch.ones_like(lengths)
    tokens, pairs = num_samples * lengths, num_samples * lengths.square()
    (_, of_token, of_square), square_error = _fit([fixed, tokens, pairs], seconds)
    if of_square < 0:  # Noise: long samples are cheaper.
        of_square = 0.0
        (_, of_token), square_error = _fit([fixed, tokens], seconds)
    elif of_token < of_square / _MOST_SQUARE:  # Noise: tokens of short samples cost nothing.
        of_token = of_square / _MOST_SQUARE
        _, square_error = _fit([fixed, tokens / _MOST_SQUARE + pairs], seconds)
    square = of_square / of_token if of_square > 0 else 0.0
    powers = [_fit([fixed, num_samples * lengths.pow(exponent)], seconds)[1] for exponent in _EXPONENTS]
    best = min(range(len(powers)), key=powers.__getitem__)
    return FittedCost(square, float(_EXPONENTS[best]), square_error, powers[best])


def _fit(columns: Sequence[torch.Tensor], seconds: torch.Tensor) -> tuple[list[float], float]:
    """Returns the factors of the columns with the least squares of relative errors, and the mean relative error."""
    inputs = torch.stack(list(columns), dim=1) / seconds[:, None]
    scales = inputs.abs().max(0).values  # Tokens and their squares differ by orders of magnitude.
    factors = torch.linalg.lstsq(inputs / scales, torch.ones_like(seconds)[:, None]).solution[:, 0] / scales
    return factors.tolist(), float((inputs @ factors - 1).abs().mean())
