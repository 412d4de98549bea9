# SPDX-License-Identifier: Apache-2.0
"""Initial embeddings as a pure function of seed, table, id and column, in torch.

Idea: a counter-based generator maps (id, table, column) to random bits. An id therefore starts with the same embedding
on every rank and in every order of arrival. The counter is (low id, high id, CRC-32 of the table's name, call); the key
is the seed. One call yields four 32-bit words, for four columns. A word w becomes span * (2 * (w >> 8) / 2**24 - 1).

Example: dim = 6 takes two calls per id; the last two words of the second call are unused.

Invariants: the bits equal those of ``headway.embedding.Uniform(-span, span)``: static and dynamic tables start equal.
Complexity: 10 rounds for each id and four columns.
Source: Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

Shapes: M ids, D columns, W = ceil(D / 4) generator calls per id.
"""

from __future__ import annotations

import zlib

import torch

_MASK = (1 << 32) - 1
_FIRST, _SECOND = 0xD2511F53, 0xCD9E8D57
_FIRST_WEYL, _SECOND_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


def uniform_embeddings(table: str, id_M: torch.Tensor, *, dim: int, span: float, seed: int) -> torch.Tensor:
    """Initial embeddings, uniform in [-span, span); all 0 if ``span`` is 0.

    Args:
        table: name of the table.
        id_M: (M,) int64, on the CPU.
        dim: D.
        span: at least 0.
        seed: 0 to 2**64 - 1.
    Returns:
        (M, D) float32, on the CPU.
    """
    call_W = torch.arange((dim + 3) // 4)
    shape = (len(id_M), len(call_W))
    counter = [
        (id_M & _MASK)[:, None].expand(shape),
        (id_M >> 32 & _MASK)[:, None].expand(shape),
        torch.full(shape, zlib.crc32(table.encode())),
        call_W.expand(shape),
    ]
    words = torch.stack(_philox(counter, seed), dim=2).flatten(1)[:, :dim]
    low = torch.tensor(-span, dtype=torch.float32)
    return ((words >> 8).double() * 2.0**-24 * (-2 * low).double() + low.double()).float()


def _philox(counter: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """Maps a counter of four 32-bit words (int64 tensors) to four random words.

    Products may overflow int64; they wrap around, and the 64 bits used are right.
    """
    keys = [seed & _MASK, seed >> 32]
    for _ in range(_ROUNDS):
        first, second = counter[0] * _FIRST, counter[2] * _SECOND
        counter = [
            (second >> 32 & _MASK) ^ counter[1] ^ keys[0],
            second & _MASK,
            (first >> 32 & _MASK) ^ counter[3] ^ keys[1],
            first & _MASK,
        ]
        keys = [(keys[0] + _FIRST_WEYL) & _MASK, (keys[1] + _SECOND_WEYL) & _MASK]
    return counter
