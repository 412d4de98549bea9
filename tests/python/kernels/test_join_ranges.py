# SPDX-License-Identifier: Apache-2.0
"""``join_ranges`` matches the reference, and refuses what does not fit by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from headway import ops, reference
from torch import Tensor

SOURCES = [torch.arange(7), torch.arange(0), torch.arange(100, 104)]


def indices(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool, torch.int16])
def test_values_are_those_of_the_ranges(dtype: torch.dtype) -> None:
    sources = [each.to(dtype) for each in SOURCES]
    ranges = (indices(2, 0, 1, 0, 2, 0), indices(1, 0, 0, 3, 0, 2), indices(4, 7, 0, 3, 1, 5))
    out = ops.join_ranges(sources, *ranges)
    assert out.dtype == dtype and torch.equal(out, reference.join_ranges(sources, *ranges))
    assert len(ops.join_ranges(sources, indices(), indices(), indices())) == 0


def test_sources_are_not_written() -> None:
    out = ops.join_ranges(SOURCES, indices(0), indices(0), indices(7))
    out.zero_()
    assert torch.equal(SOURCES[0], torch.arange(7))


def test_shapes_are_known_to_compilers() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with FakeTensorMode(shape_env=ShapeEnv()):
        numbers = torch.empty(3, dtype=torch.int64)
        out = ops.join_ranges([torch.empty(5)], numbers, numbers, numbers)
        assert out.dim() == 1 and out.dtype == torch.float32


REFUSALS: dict[str, tuple[Callable[[], Tensor], str]] = {
    "no sources": (lambda: ops.join_ranges([], indices(), indices(), indices()), "there are no sources"),
    "another source": (
        lambda: ops.join_ranges(SOURCES, indices(0, 3), indices(0, 0), indices(1, 1)),
        "range 1 is of source 3, and there are 3",
    ),
    "an end behind the source": (
        lambda: ops.join_ranges(SOURCES, indices(2), indices(0), indices(5)),
        "range 0 goes from 0 to 5, and its source has 4 values",
    ),
    "a range that ends before it begins": (
        lambda: ops.join_ranges(SOURCES, indices(0), indices(3), indices(2)),
        "range 0 goes from 3 to 2",
    ),
    "fewer ends": (lambda: ops.join_ranges(SOURCES, indices(0, 0), indices(0, 1), indices(1)), "ends"),
    "numbers of another type": (
        lambda: ops.join_ranges(SOURCES, indices(0).int(), indices(0), indices(1)),
        "source_of must be one contiguous dimension of int64",
    ),
    "sources of two types": (
        lambda: ops.join_ranges([SOURCES[0], SOURCES[2].float()], indices(0), indices(0), indices(1)),
        "a source must be",
    ),
    "a source of two dimensions": (
        lambda: ops.join_ranges([SOURCES[2].view(2, 2)], indices(0), indices(0), indices(1)),
        "a source must be",
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_does_not_fit_is_refused_by_name(what: str) -> None:
    call, message = REFUSALS[what]
    with pytest.raises(ValueError, match=message):
        call()
