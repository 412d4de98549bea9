# SPDX-License-Identifier: Apache-2.0
"""Counters of keys and bytes add up what the host knows and what only the device knows."""

from __future__ import annotations

import torch
from headway.embedding.traffic import TrafficCounts


def test_numbers_of_the_device_are_added_to_those_of_the_host() -> None:
    counts = TrafficCounts()
    number = torch.tensor([3], dtype=torch.int32)
    for _ in range(1000):
        counts.add("keys_found", number)
    counts.add("keys_found", 5)
    counts.add("keys", 7)
    number.zero_()  # The caller may write to its tensor again.
    assert counts.totals()["keys_found"] == 3005
    assert counts.totals()["keys"] == 7
    assert counts.totals()["id_bytes"] == 0


def test_a_sum_may_exceed_the_type_of_the_numbers() -> None:
    counts = TrafficCounts()
    for _ in range(3):
        counts.add("keys_routed", torch.tensor([2**31 - 1], dtype=torch.int32))
    assert counts.totals()["keys_routed"] == 3 * (2**31 - 1)


def test_numbers_of_inference_mode_and_of_training_are_added() -> None:
    counts = TrafficCounts()
    with torch.inference_mode():
        counts.add("keys_found", torch.tensor([1], dtype=torch.int32))
    counts.add("keys_found", torch.tensor([2], dtype=torch.int32))
    with torch.inference_mode():
        counts.add("keys_found", torch.tensor([4], dtype=torch.int32))
    assert counts.totals()["keys_found"] == 7
