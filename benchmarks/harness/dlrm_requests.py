# SPDX-License-Identifier: Apache-2.0
"""Requests for the served DLRM, drawn by the laws of ``headway load``, and their answers by the model in eager mode.

MLPerf's DLRM-v2 has 100 to 700 rows a query. Its distribution is a list of sizes of which each is as likely as the
others (``recommendation/dlrm_v2/pytorch/tools/dist_quantile.txt`` of mlcommons/inference).

Shapes: T tables, N rows of a request, F dense inputs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

DLRM_V2 = "dlrm-v2"  #: Names the sizes of MLPerf's queries on the command line.
DLRM_V2_ROWS = (100,) * 2 + (200,) * 12 + (300,) * 2 + (400, 500, 600, 700)


@dataclass(frozen=True)
class RowLaw:
    """Law of the number of rows of a request: an entry of a list, each as likely as the others."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError(f"a request has at least one row, not {self.sizes}")

    @property
    def mean(self) -> float:
        """Mean number of rows."""
        return sum(self.sizes) / len(self.sizes)

    def draw(self, random: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
        """(count,) sizes of requests."""
        return random.choice(np.array(self.sizes, dtype=np.int64), count)

    @property
    def label(self) -> int | str:
        """The law in files of results."""
        if len(self.sizes) == 1:
            return self.sizes[0]
        return DLRM_V2 if self.sizes == DLRM_V2_ROWS else self.argument

    @property
    def argument(self) -> str:
        """The law as ``headway load --rows`` takes it."""
        return ",".join(map(str, self.sizes))


def row_law(text: str) -> RowLaw:
    """Parses ``dlrm-v2``, a size such as ``64``, or sizes such as ``100,200,200``.

    Raises:
        argparse.ArgumentTypeError: the text is none of these.
    """
    if text == DLRM_V2:
        return RowLaw(DLRM_V2_ROWS)
    try:
        return RowLaw(tuple(map(int, text.split(","))))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of rows: 64, 100,200,200 and {DLRM_V2} are"
        ) from None


@dataclass(frozen=True)
class IdLaw:
    """Law of the ids of a feature, with the density x^-zipf on [1, num_ids + 1), as ``headway load`` has it."""

    num_ids: int
    zipf: float = 1.05

    @cached_property
    def _scale(self) -> float:
        return float((self.num_ids + 1) ** (1 - self.zipf) - 1)

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
        """Ids in ``[0, num_ids)``, by the inverse of the distribution."""
        values = (1 + random.random(shape) * self._scale) ** (1 / (1 - self.zipf)) - 1
        return np.clip(values, 0, self.num_ids - 1).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class DlrmRequest:
    """One request.

    Attributes:
        ids_TN: (T, N) int64, one id for each table and row.
        dense_NF: (N, F) float32.
    """

    ids_TN: npt.NDArray[np.int64]
    dense_NF: npt.NDArray[np.float32]

    @property
    def num_rows(self) -> int:
        """N, the number of rows."""
        return int(self.ids_TN.shape[1])


def draw_requests(
    count: int,
    *,
    rows: RowLaw,
    ids: IdLaw,
    num_tables: int,
    num_dense: int,
    seed: int,
    table_rows: Sequence[int] | None = None,
) -> list[DlrmRequest]:
    """Draws requests.

    Args:
        count: number of requests.
        rows, ids: laws.
        num_tables, num_dense: T and F.
        seed: decides all of them.
        table_rows: (T,) if given, ids are taken modulo the rows of their table, so that each has a row.
    """
    random = np.random.default_rng(seed)
    requests = []
    for size in rows.draw(random, count).tolist():
        ids_TN = ids.draw(random, (num_tables, size))
        if table_rows is not None:
            ids_TN %= np.array(table_rows, dtype=np.int64)[:, None]
        requests.append(DlrmRequest(ids_TN=ids_TN, dense_NF=random.random((size, num_dense), dtype=np.float32)))
    return requests
