# SPDX-License-Identifier: Apache-2.0
"""headway.empty(): shapes, lifetime of the memory, and rejected arguments."""

from __future__ import annotations

import mmap
from typing import Any

import headway
import numpy as np
import pytest
import torch


@pytest.mark.parametrize(
    "size", [((),), (0,), (5,), (2, 3), (0, 4), ((2, 3),), ([4],), (torch.Size([1, 2]),), (np.int64(3),)]
)
def test_the_shape_is_that_of_torch_empty(size: tuple[Any, ...]) -> None:
    tensor, expected = headway.empty(*size), torch.empty(*size)
    assert (tensor.shape, tensor.stride(), tensor.dtype) == (expected.shape, expected.stride(), expected.dtype)
    assert tensor.device == torch.device("cpu")
    assert tensor.is_leaf and not tensor.requires_grad


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.bfloat16, torch.int64, torch.complex128])
def test_the_memory_has_room_for_every_dtype(dtype: torch.dtype) -> None:
    tensor = headway.empty(7, 3, dtype=dtype, device=torch.device("cpu"))
    assert tensor.dtype == dtype
    assert tensor.untyped_storage().nbytes() == 21 * dtype.itemsize
    assert torch.equal(tensor.fill_(1), torch.ones(7, 3, dtype=dtype))


def test_the_default_dtype_is_torchs() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert headway.empty(1).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("num_bytes", [1, 100_000, 5 << 20])
def test_memory_begins_a_page_and_is_used_again_after_it_was_freed(num_bytes: int) -> None:
    tensor, other = (headway.empty(num_bytes, dtype=torch.uint8) for _ in range(2))
    address = tensor.data_ptr()
    assert address % mmap.PAGESIZE == 0
    assert other.data_ptr() != address
    del tensor
    assert headway.empty(num_bytes, dtype=torch.uint8).data_ptr() == address


def test_a_view_keeps_the_memory() -> None:
    tensor = headway.empty(4, 1000).fill_(3)
    address, view, array = tensor.data_ptr(), tensor[1:, ::2], tensor[0].numpy()
    del tensor
    others = [headway.empty(4, 1000).fill_(5) for _ in range(2)]
    assert address not in [other.data_ptr() for other in others]
    assert bool((view == 3).all()) and bool((array == 3).all())
    del view
    assert headway.empty(4, 1000).data_ptr() != address
    del array
    assert headway.empty(4, 1000).data_ptr() == address


def test_a_tensor_takes_part_in_autograd() -> None:
    weight = headway.empty(3).fill_(2).requires_grad_()
    torch.autograd.backward((weight * weight).sum())
    assert weight.grad is not None and weight.grad.tolist() == [4.0] * 3


@pytest.mark.parametrize("device", ["meta", torch.device("mps")])
def test_other_devices_are_refused_by_name(device: torch.device | str) -> None:
    with pytest.raises(NotImplementedError, match=f"on cpu and cuda, not on {device}"):
        headway.empty(2, device=device)


def test_shapes_that_mean_nothing_are_refused() -> None:
    with pytest.raises(RuntimeError, match="negative dimension -1"):
        headway.empty(2, -1)
    for wrong in ((2.5,), ("3",), (2, (3,))):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            headway.empty(*wrong)


def test_memory_that_is_not_there_is_an_error_with_its_size() -> None:
    with pytest.raises(RuntimeError, match=f"headway: empty: .*{1 << 60}"):
        headway.empty(1 << 60, dtype=torch.uint8)
