# SPDX-License-Identifier: Apache-2.0
"""Checks of ids and embeddings that users pass to a table."""

from __future__ import annotations

import torch


def expect_ids(table: str, ids_K: torch.Tensor) -> None:
    """Raises ValueError if the ids are not (K,) int64."""
    if ids_K.dim() != 1 or ids_K.dtype != torch.int64:
        raise ValueError(f"table {table}: ids must be (K,) int64, not {tuple(ids_K.shape)} {ids_K.dtype}")


def expect_rows(table: str, ids_K: torch.Tensor, embeddings_KD: torch.Tensor, *, dim: int) -> None:
    """Checks ids with their embeddings, (K, dim) float32.

    Raises:
        ValueError: shapes or types do not fit, or an id occurs twice.
    """
    expect_ids(table, ids_K)
    if embeddings_KD.shape != (len(ids_K), dim) or embeddings_KD.dtype != torch.float32:
        raise ValueError(
            f"table {table}: the embeddings of {len(ids_K)} ids must be ({len(ids_K)}, {dim}) float32, not "
            f"{tuple(embeddings_KD.shape)} {embeddings_KD.dtype}"
        )
    if len(torch.unique(ids_K)) < len(ids_K):
        raise ValueError(f"table {table}: an id is there twice, so it is not known which embedding it gets")
