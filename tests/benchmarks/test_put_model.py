# SPDX-License-Identifier: Apache-2.0
"""The model that predicts the time of exchanges over RDMA: fit, predictions and memory.

A bound is the ``max_lag`` of a group. ``steady_s`` is the time per exchange if ranks may lag.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import put_model
from benchmarks.harness.points import Point
from benchmarks.put_model import Assumptions, copies_of_a_byte, credit_rate, fit, memory, predict, waiting_for_the_last

ROOT = Path(__file__).resolve().parents[2]


def make_point(name: str, size_bytes: int, median_s: float) -> Point:
    return Point(
        name=name, params={"ranks": 2, "size_bytes": size_bytes}, system="headway", median_s=median_s, p5_s=None,
        p95_s=None, samples=1, rate=None, unit="GB/s",
    )  # fmt: skip


def test_a_fit_finds_the_parameters_that_made_the_points() -> None:
    points = [make_point("put_ping_pong", size, 11e-6 + size / 1.5e8) for size in (8, 512, 32768)]
    points += [make_point("put_stream", size, 4e-6 + size / 1.5e8) for size in (8, 4096, 65536)]
    found = fit(points)
    assert found.latency_s == pytest.approx(11e-6)
    assert found.overhead_s == pytest.approx(4e-6)
    assert found.bandwidth == pytest.approx(1.5e8)
    assert max(map(abs, found.errors)) < 1e-9


def test_a_fit_reports_the_error_of_each_point_in_order() -> None:
    points = [make_point("put_ping_pong", 8, 10e-6), make_point("put_ping_pong", 16, 20e-6),
              make_point("put_stream", 8, 5e-6), make_point("put_stream", 16, 5e-6)]  # fmt: skip
    found = fit(points)
    assert len(found.errors) == 4
    assert found.errors[0] > 0.1
    assert found.errors[1] < -0.1


def test_one_kind_of_points_is_too_few() -> None:
    with pytest.raises(ValueError, match="three points"):
        fit([make_point("put_stream", size, 1e-6) for size in (8, 16, 32)])


def test_messages_take_most_of_a_small_exchange_and_bytes_most_of_a_large_one() -> None:
    assert predict(512, 8 << 10, Assumptions()).bounded_by == "messages"
    assert predict(8, 512, Assumptions()).bounded_by == "messages"
    assert predict(8, 256 << 10, Assumptions()).bounded_by == "copies"
    assert predict(8, 256 << 10, Assumptions(copy_bandwidth=1e12)).bounded_by == "wire"


def test_large_blocks_are_copied_less() -> None:
    assert [copies_of_a_byte(block) for block in (8, (16 << 10) - 1, 16 << 10, 256 << 10, (256 << 10) + 1)] == [
        2, 2, 1, 1, 0,
    ]  # fmt: skip
    assert predict(8, 16 << 20, Assumptions()).bounded_by == "wire"


def test_an_exchange_takes_no_less_with_more_nodes_or_bytes() -> None:
    for size_bytes in (512, 32 << 10, 2 << 20):
        times = [predict(nodes, size_bytes, Assumptions()).blocking_s for nodes in (2, 8, 64, 512)]
        assert times == sorted(times)
    assert predict(8, 2048, Assumptions()).blocking_s > predict(8, 1024, Assumptions()).blocking_s


def test_a_bound_hides_the_latency_and_no_more() -> None:
    found = predict(64, 32 << 10, Assumptions())
    assert found.blocking_s - found.steady_s == pytest.approx(Assumptions().latency_s)


def test_one_node_is_refused() -> None:
    with pytest.raises(ValueError, match="2 nodes"):
        predict(1, 8, Assumptions())


# A pair of 8 nodes has 256 credits, the messages that may be in flight. So 128 go out per round trip of 2 us.
def test_a_pair_has_half_its_credits_for_each_round_trip() -> None:
    assert credit_rate(8, Assumptions(latency_s=1e-6)) == pytest.approx(64e6)


# Lateness is exponential, so the last of n is 1 + 1/2 + ... + 1/n means late.
def test_the_last_of_two_is_one_and_a_half_means_late() -> None:
    assert waiting_for_the_last(1) == 1.0
    assert waiting_for_the_last(2) == 1.5


def test_the_shared_queue_has_256_receives_for_each_peer_or_what_the_device_has() -> None:
    assert memory(8).receives == 7 * 256 * 32  # Peers, receives of each, bytes of a receive.
    assert memory(512).receives == 511 * 64 * 32  # 64 is 32767 // 511: the device's limit of the queue.
    assert memory(8).total == sum(
        (memory(8).receives, memory(8).completions, memory(8).send_queues, memory(8).staging, memory(8).receive_buffer)
    )


def test_the_constants_are_those_of_the_transport() -> None:
    limits = (ROOT / "libcomm/src/transport/verbs/limits.hpp").read_text()
    layout = (ROOT / "libcomm/src/channel/receive_layout.hpp").read_text()
    options = (ROOT / "libcomm/include/headway/comm/group_options.hpp").read_text()
    for text, name, value in (
        (limits, "kMaxCredits", put_model.MAX_CREDITS),
        (limits, "kSendRequests", put_model.SEND_REQUESTS),
        (limits, "kStagingBytes", put_model.STAGING_BYTES),
        (limits, "kWindows", put_model.WINDOWS),
        (limits, "kMinInPlaceBytes", put_model.MIN_IN_PLACE_BYTES),
        (layout, "kP2PSlots", put_model.P2P_SLOTS),
        (options, "message_slot_bytes", put_model.P2P_SLOT_BYTES),
        (layout, "kRendezvousFragments", put_model.RENDEZVOUS_FRAGMENTS),
        (layout, "kRendezvousFragmentBytes", put_model.RENDEZVOUS_FRAGMENT_BYTES),
    ):
        found = re.search(rf"\b{name} = ([\d* ]+);", text)
        assert found is not None, name
        product = 1
        for factor in found.group(1).split("*"):
            product *= int(factor)
        assert product == value, name


def test_the_program_prints_predictions_without_points(capsys: pytest.CaptureFixture[str]) -> None:
    assert put_model.main(["--ranks", "8", "512", "--sizes", "512"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("512 B") and "messages" in line for line in lines)
