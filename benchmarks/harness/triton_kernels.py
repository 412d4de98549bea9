# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels of a checkout of generative-recommenders, Meta's code of HSTU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness.errors import BenchmarkError


def import_attention_kernels(folder: Path) -> tuple[Callable[..., Any], Callable[[list[int]], None]]:
    """Imports the attention.

    Args:
        folder: the checkout, whose package can be imported afterwards.
    Returns:
        ``triton_hstu_mha``, and ``set_static_max_seq_lens``, which names the lengths for which the kernels tune.
    Raises:
        BenchmarkError: they cannot be imported.
    """
    sys.path.insert(0, str(folder))
    try:
        import triton.language

        # Newer Triton compilers look up these names even in branches that are not taken.
        for name in ("_experimental_descriptor_load", "_experimental_descriptor_store"):
            if not hasattr(triton.language, name):
                setattr(triton.language, name, None)
        from generative_recommenders.common import set_static_max_seq_lens
        from generative_recommenders.ops.triton.triton_hstu_attention import triton_hstu_mha
    except ImportError as error:
        raise BenchmarkError(f"Triton's kernels cannot be imported from {folder}: {error}") from error
    return triton_hstu_mha, set_static_max_seq_lens
