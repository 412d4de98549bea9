# SPDX-License-Identifier: Apache-2.0
"""Time buckets of the relative bias, and query times: a token asks at the time of the next one.

Two tokens that are t >= 1 apart are in bucket floor(log(t) / width). A bound is the first float32 time of a bucket.
"""

from __future__ import annotations

import math

import pytest
import torch
from headway.nn import RelativeBias, log_time_bounds, next_times
from headway.nn.key_value_cache import joined_places


@pytest.mark.parametrize("width", [0.301, 0.05, 1.7])
def test_bounds_give_the_bucket_of_the_formula_in_float64(width: float) -> None:
    num_buckets = 40
    bounds = log_time_bounds(num_buckets, width=width)
    beside = [torch.nextafter(bounds, torch.tensor(limit)) for limit in (0.0, math.inf)]
    times = torch.cat([torch.arange(5000), (torch.rand(20_000) * 24 * math.log(2)).exp()])
    apart = torch.cat([times.to(torch.float32), bounds, *beside])
    expected = [min(math.floor(math.log(max(t, 1.0)) / width), num_buckets) for t in apart.tolist()]
    assert torch.bucketize(apart, bounds, right=True).tolist() == expected


def test_bounds_beyond_float32_are_refused() -> None:
    with pytest.raises(ValueError, match=r"bucket 296 of width 0\.3 begins beyond"):
        log_time_bounds(400, width=0.3)


@pytest.mark.parametrize("width", [0.0, -1.0])
def test_bounds_of_buckets_without_a_width_are_refused(width: float) -> None:
    with pytest.raises(ValueError, match="width must be above 0"):
        log_time_bounds(5, width)


def test_bounds_keep_their_type_when_the_module_changes_its_own() -> None:
    bias = RelativeBias(max_length=3, position=True, num_time_buckets=128, time_bucket_width=0.301).half()
    assert bias.time_weights is not None and bias.time_weights.dtype == torch.float16
    torch.testing.assert_close(bias.time_bounds, log_time_bounds(128), rtol=0, atol=0)


def test_bounds_are_there_once_a_module_of_the_meta_device_gets_memory() -> None:
    with torch.device("meta"):
        bias = RelativeBias(max_length=3, position=True, num_time_buckets=128, time_bucket_width=0.301)
        bias.to_empty(device="cpu")
    torch.testing.assert_close(bias.time_bounds, log_time_bounds(128), rtol=0, atol=0)


def test_bounds_are_there_where_torchrec_gives_buffers_memory() -> None:
    with torch.device("meta"):
        bias = RelativeBias(max_length=3, position=True, num_time_buckets=128, time_bucket_width=0.301)
    # DistributedModelParallel does the same, without to_empty().
    for name, parameter in bias.named_parameters():
        setattr(bias, name, torch.nn.Parameter(torch.empty_like(parameter, device="cpu")))
    for name, buffer in bias.named_buffers():
        bias._buffers[name] = torch.zeros_like(buffer, device="cpu")
    bias.reset_parameters()
    torch.testing.assert_close(bias.time_bounds, log_time_bounds(128), rtol=0, atol=0)


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_bounds_do_not_depend_on_the_default_type(default: torch.dtype) -> None:
    expected = log_time_bounds(2)
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        bias = RelativeBias(max_length=3, position=True, num_time_buckets=2, time_bucket_width=0.301).to("cpu")
        torch.testing.assert_close(log_time_bounds(2), expected, rtol=0, atol=0)
        torch.testing.assert_close(bias.time_bounds, expected, rtol=0, atol=0)
    finally:
        torch.set_default_dtype(before)


def test_a_module_of_inference_mode_can_be_moved_outside() -> None:
    with torch.inference_mode():
        bias = RelativeBias(max_length=3, position=True, num_time_buckets=8, time_bucket_width=0.301)
    torch.testing.assert_close(bias.to("cpu").time_bounds, log_time_bounds(8), rtol=0, atol=0)


def test_tokens_ask_at_the_time_of_the_next_one() -> None:
    times, offsets = torch.tensor([1, 5, 9, 2, 7]), torch.tensor([0, 3, 3, 5, 5])
    assert next_times(times, offsets).tolist() == [5, 9, 9, 7, 7]
    assert next_times(times, offsets, torch.tensor([20, 0, 30, 0])).tolist() == [5, 9, 20, 7, 30]
    assert next_times(times[:0], torch.tensor([0, 0])).tolist() == []


def test_tokens_behind_the_last_offset_change_no_time_before() -> None:
    times = torch.tensor([5, 9, 3, 1, 1])
    offsets = torch.tensor([0, 2, 3])
    assert next_times(times, offsets)[:3].tolist() == [9, 9, 3]
    assert next_times(times, offsets, torch.tensor([20, 30]))[:3].tolist() == [9, 20, 30]
    assert next_times(times, torch.tensor([0]), torch.tensor([]).long()).shape == (5,)


def test_cached_tokens_behind_the_last_offset_come_behind_all_others() -> None:
    left, right = joined_places(torch.tensor([0, 2, 3]), torch.tensor([0, 0, 1]), 5, 3)
    assert left.tolist() == [0, 1, 2, 4, 5]
    assert right.tolist() == [3, 6, 7]
