# SPDX-License-Identifier: Apache-2.0
"""The cost of a sample by its length, fitted on the device.

Idea: a pass over a batch of T tokens in samples of L tokens each takes t = c + a T (1 + w L). c is the fixed time of a
pass. a is the time of the matrix products of a token, and a w L that of its attention, which grows with the sample.
Three passes give w: half of T short tokens, all of T in short samples, and all of T in long ones.

Example: 10,000 tokens take 12 ms in samples of 100 tokens and 20 ms in samples of 2,000; 5,000 tokens in short samples
take 7 ms. Then c is 2 ms, so a (1 + 100 w) is 1 us and a (1 + 2,000 w) is 1.8 us, and w is 0.00044.

Invariants: all ranks take the largest w of any.
Source: MTGRBoost, algorithm 1, counts tokens. The square term is that of causal attention.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from headway.training.trial_passes import TrialPasses

_SHORT_PART = 16  #: Short samples have 1/16 of the length of long ones.


def fit_square_weight(
    passes: TrialPasses, *, tokens: int, longest: int, device: torch.device, group: dist.ProcessGroup | None = None
) -> float:
    """Returns w: a sample of L tokens costs L + w L^2 times as much as a token without attention.

    All ranks call it.

    Args:
        passes: measures passes.
        tokens: tokens of a timed batch.
        longest: tokens of a long sample.
        device: of numbers that are exchanged.
        group: ranks of the training; None: this rank alone.
    """
    long = max(2, min(longest, tokens))
    short = max(2, long // _SHORT_PART)
    few, many, in_long = (
        passes.time(count=max(1, size // length), length=length)
        for size, length in ((tokens // 2, short), (tokens, short), (tokens, long))
    )
    weight = square_weight((few, many, in_long), short=short, long=long)
    if group is not None and group.size() > 1:
        of_ranks = torch.tensor([weight], dtype=torch.float64, device=device)
        dist.all_reduce(of_ranks, op=dist.ReduceOp.MAX, group=group)
        weight = float(of_ranks)
    return weight


def square_weight(
    times: tuple[tuple[int, float], tuple[int, float], tuple[int, float]], *, short: int, long: int
) -> float:
    """Solves for w.

    Args:
        times: (tokens, seconds) of a pass of few short samples, of many short ones, and of long ones.
        short, long: tokens of a sample.
    Returns:
        at least 0, also if noise makes long samples cheaper.
    """
    (few, few_s), (many, many_s), (in_long, in_long_s) = times
    a_token_in_short = max((many_s - few_s) / max(many - few, 1), 1e-12)
    fixed_s = max(many_s - many * a_token_in_short, 0.0)
    a_token_in_long = (in_long_s - fixed_s) / in_long
    slope = max(a_token_in_long - a_token_in_short, 0.0) / max(long - short, 1)
    alone = a_token_in_short - short * slope  # A token without attention.
    return slope / max(alone, a_token_in_short * 1e-3)
