# SPDX-License-Identifier: Apache-2.0
"""Model of an all-to-all over RDMA on N nodes. Nothing here is measured on RDMA hardware.

Idea: the host thread works through messages and copies one after the other, while the port sends and receives the
bytes. An exchange takes the longer of the two. k (``max_lag``) bounds how many exchanges a rank may run ahead of its
peers. A blocking exchange (k = 0) adds the latency of one message; k > 0 hides it. A message of s bytes takes
``latency + s / bandwidth`` alone and ``overhead + s / bandwidth`` in a stream. This is LogGP with o and g merged into
one overhead.

Example: 8 nodes, 256 KiB per rank, so 7 blocks of 32 KiB leave each rank. Messages take 0.5 us + 7 * 0.4 us = 3.3 us.
Blocks of 32 KiB go from user memory in place and are copied once, out of the slot: 224 KiB at 12e9 B/s take 19.1 us.
The port takes 18.9 us. The thread is slower, so an exchange takes 22.4 us in a steady stream and 24.6 us if blocking.

Invariants: no time falls with more nodes; ``blocking_s - steady_s`` is exactly one latency; the constants equal those
of libcomm (``tests/benchmarks/test_put_model.py`` compares most of them). More bytes can take less time, namely where a
larger block saves a copy.
Complexity: O(1) per prediction. ``fit`` solves one least-squares problem with three unknowns for latency, overhead and
bandwidth, from the points of ``bench_put``. They hold where they were measured: in a guest with emulated RDMA.
``Assumptions`` holds the values for real nodes.
Source: Alexandrov et al., LogGP, SPAA 1995.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness.arguments import OneLineParser, size, whole_number
from benchmarks.harness.points import Point, read_json_lines
from dlrm_examples.support.text_table import format_bytes, format_table, format_time

DESCRIPTION = "a model of exchanges over RDMA on 8 to 512 nodes; runs nothing"

# Constants of libcomm, in libcomm/: src/transport/verbs/limits.hpp, src/channel/receive_layout.hpp and
# include/headway/comm/endpoint.hpp.
MAX_CREDITS = 256  # Messages in flight per pair of ranks.
SEND_REQUESTS = 128  # Depth of a send queue.
STAGING_BYTES = 512 << 10  # Memory per queue pair into which small messages are copied before they are sent.
MIN_IN_PLACE_BYTES = 16 << 10  # Smallest block that is sent from registered user memory without a copy.
# Windows (registered memory that a peer may access) open to a peer at a time, and bytes that describe one.
WINDOWS, WINDOW_BYTES = 64, 24
HEADER_BYTES = 64  # Header area of each slot.
P2P_SLOTS, P2P_SLOT_BYTES = 16, 8 << 10  # Receive slots per source for point-to-point messages.
RENDEZVOUS_FRAGMENTS, RENDEZVOUS_FRAGMENT_BYTES = 4, 64 << 10  # Fragments in flight of large messages, per source.
SLOT_BYTES = 256 << 10  # Largest block that goes in a receive slot; larger ones go by rendezvous.
# Assumed max_srq_wr: we believe that many devices report this value.
MAX_SHARED_RECEIVES = 32767


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Parameters fitted to the points of one system.

    Attributes:
        latency_s: seconds of a message of no bytes, from the call to its discovery by the receiver.
        overhead_s: seconds between messages of no bytes in a stream.
        bandwidth: bytes per second.
        errors: relative error of each point, model over measurement less 1, in the order of the points.
    """

    latency_s: float
    overhead_s: float
    bandwidth: float
    errors: tuple[float, ...]


def fit(points: Sequence[Point]) -> Fit:
    """Minimises the squared relative errors over the points named ``put_ping_pong`` and ``put_stream``.

    Raises:
        ValueError: fewer than three points, or only one of the two kinds.
    """
    used = [point for point in points if point.name in ("put_ping_pong", "put_stream") and point.median_s]
    if len(used) < 3 or len({point.name for point in used}) < 2:
        raise ValueError("a fit needs three points, of put_ping_pong and of put_stream")
    rows = [(point.name == "put_ping_pong", point.name == "put_stream", point.params["size_bytes"]) for point in used]
    # P points, T terms: latency, overhead and seconds per byte.
    median_P = np.array([point.median_s for point in used], dtype=np.float64)
    terms_PT = np.array(rows, dtype=np.float64) / median_P[:, None]
    latency_s, overhead_s, s_per_byte = np.linalg.lstsq(terms_PT, np.ones(len(used)), rcond=None)[0]
    errors = terms_PT @ np.array([latency_s, overhead_s, s_per_byte]) - 1.0
    return Fit(
        latency_s=float(latency_s),
        overhead_s=float(overhead_s),
        bandwidth=float(1.0 / s_per_byte),
        errors=tuple(float(error) for error in errors),
    )


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """Values for real nodes: one rank each, one thread per rank, one 100 Gbit/s port, full bisection bandwidth.

    Attributes:
        latency_s: 0.6 us (ConnectX-5 EN product brief: sub-600 ns), three switches of 0.3 us each (assumed) and 0.7 us
            for doorbell, PCIe and poll (assumed).
        send_overhead_s, receive_overhead_s: thread time per message: 300 instructions each (counted for transport shm,
            see docs/design/measurements.md) and 0.1 us for a doorbell or a completion (assumed).
        call_overhead_s: thread time per operation: 1900 instructions (counted for shm).
        bandwidth: payload bytes per second: 12.5e9 less the headers of RoCE v2 over IPv6 in packets of 4096 B, 2.6%.
        message_bytes: bytes on the wire besides the payload: header area (64) and one packet's headers (110).
        copy_bandwidth: bytes per second that the thread copies. 12e9: memcpy of 2 MiB per rank, 8 ranks at once
            (benchmarks/results, machine B: 11.5e9 and 12.8e9).
    """

    latency_s: float = 2.2e-6
    send_overhead_s: float = 0.2e-6
    receive_overhead_s: float = 0.2e-6
    call_overhead_s: float = 0.5e-6
    bandwidth: float = 12.5e9 * (1 - 0.026)
    message_bytes: int = HEADER_BYTES + 110
    copy_bandwidth: float = 12e9

    def __post_init__(self) -> None:
        if min(self.latency_s, self.bandwidth, self.copy_bandwidth) <= 0:
            raise ValueError("latency and bandwidths must be above 0")


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Parts of one rank's exchange, in seconds.

    Attributes:
        messages_s: thread time for messages, including those that return credits.
        copies_s: thread time for copies.
        wire_s: time in which the port sends the bytes. It receives as many at the same time.
        latency_s: latency of one message.
    """

    messages_s: float
    copies_s: float
    wire_s: float
    latency_s: float

    @property
    def steady_s(self) -> float:
        """Seconds per exchange with k > 0, which keeps the thread and the port busy."""
        return max(self.messages_s + self.copies_s, self.wire_s)

    @property
    def blocking_s(self) -> float:
        """Seconds of an exchange with k = 0."""
        return self.steady_s + self.latency_s

    @property
    def bounded_by(self) -> str:
        """Name of the largest part."""
        parts = {
            "messages": self.messages_s,
            "copies": self.copies_s,
            "wire": self.wire_s,
            "latency": self.latency_s,
        }
        return max(parts, key=parts.__getitem__)


def predict(nodes: int, bytes_per_rank: int, assumed: Assumptions) -> Prediction:
    """Predicts an even all-to-all.

    Args:
        nodes: number of nodes, at least 2.
        bytes_per_rank: total over all destinations, a rank's own block included.
        assumed: parameters of the nodes.
    Raises:
        ValueError: fewer than 2 nodes.
    """
    if nodes < 2:
        raise ValueError(f"an exchange needs 2 nodes, not {nodes}")
    peers = nodes - 1
    remote_bytes = bytes_per_rank * peers / nodes
    credit_messages = peers / (credits(nodes) / 2)  # One message returns half of a pair's credits.
    return Prediction(
        messages_s=assumed.call_overhead_s
        + peers * (assumed.send_overhead_s + assumed.receive_overhead_s)
        + credit_messages * assumed.send_overhead_s,
        copies_s=copies_of_a_byte(bytes_per_rank / nodes) * remote_bytes / assumed.copy_bandwidth,
        wire_s=(remote_bytes + peers * assumed.message_bytes) / assumed.bandwidth,
        latency_s=assumed.latency_s,
    )


def copies_of_a_byte(block_bytes: float) -> int:
    """Copies of each byte by the thread if source and output come from ``headway.empty()``.

    Two: into staging memory and out of the slot. One: out of the slot alone. None: neither.
    """
    return (block_bytes < MIN_IN_PLACE_BYTES) + (block_bytes <= SLOT_BYTES)


def credits(nodes: int) -> int:
    """Messages in flight from one node to another. The receives of the device's shared queue limit them."""
    return min(MAX_CREDITS, MAX_SHARED_RECEIVES // (nodes - 1))


def credit_rate(nodes: int, assumed: Assumptions) -> float:
    """Messages per second that one pair can carry. In the worst case half of its credits are on their way back."""
    return credits(nodes) / 2 / (2 * assumed.latency_s)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one rank's memory. Staging and receive memory are registered: pinned and resident from the start."""

    receives: int  #: Entries of the shared receive queue.
    completions: int  #: Entries of the completion queues.
    send_queues: int
    staging: int  #: Memory into which small messages are copied before they are sent.
    receive_buffer: int  #: Slots that peers write.

    @property
    def total(self) -> int:
        return self.receives + self.completions + self.send_queues + self.staging + self.receive_buffer


def memory(nodes: int, *, slot_bytes: int = SLOT_BYTES, max_lag: int = 0) -> Memory:
    """Memory of the verbs transport on each rank of ``nodes``, for one all-to-all channel.

    Sizes of queue entries are assumed, as in mlx5: 32 B for a receive of the shared queue, 64 B for a completion, 320 B
    for a send request with 256 B inline.
    """
    peers = nodes - 1
    slots = 2 * (max_lag + 1) * (HEADER_BYTES + slot_bytes)
    p2p = P2P_SLOTS * (HEADER_BYTES + P2P_SLOT_BYTES)
    rendezvous = RENDEZVOUS_FRAGMENTS * (HEADER_BYTES + RENDEZVOUS_FRAGMENT_BYTES)
    return Memory(
        receives=peers * credits(nodes) * 32,
        completions=peers * (credits(nodes) + SEND_REQUESTS) * 64,
        send_queues=peers * SEND_REQUESTS * 320,
        staging=nodes * STAGING_BYTES,
        # 64: a cache line with the claim words of the slots, enough for max_lag up to 3. Sender and receiver use the
        # word of a slot to decide which of them moves a large block.
        receive_buffer=nodes * (slots + p2p + rendezvous + 64 + WINDOWS * WINDOW_BYTES),
    )


def waiting_for_the_last(nodes: int) -> float:
    """Expected lateness of the last of ``nodes``, in units of the mean, for independent exponential lateness each
    time.

    k = 0 waits for the last rank each time. k > 0 hides at most all of it but one mean.
    """
    return sum(1.0 / i for i in range(1, nodes + 1))


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = OneLineParser(prog="put_model", description=DESCRIPTION)
    parser.add_argument("--ranks", type=whole_number(2), nargs="+", default=[8, 16, 32, 64, 128, 256, 512], metavar="N",
                        help="nodes, one rank on each (default: 8 to 512)")  # fmt: skip
    parser.add_argument("--sizes", type=size, nargs="+", default=[8 << 10, 256 << 10, 2 << 20, 16 << 20],
                        metavar="BYTES",
                        help="bytes per rank, the total over all destinations (default: 8K 256K 2M 16M)")  # fmt: skip
    parser.add_argument("--slot-bytes", type=size, default=256 << 10, metavar="BYTES",
                        help="largest block that lags, for the memory (default: 256K)")  # fmt: skip
    parser.add_argument("--points", type=Path, metavar="FILE", help="fit the points of bench_put there first")
    options = parser.parse_args(argv)
    if options.points is not None:
        try:
            print(format_fits(read_json_lines(options.points)) + "\n")
        except (OSError, ValueError) as error:
            print(f"{parser.prog}: {error}", file=sys.stderr)
            return 1
    assumed = Assumptions()
    print(format_predictions(options.ranks, options.sizes, assumed))
    rates = (f"{credit_rate(nodes, assumed) / 1e6:.1f} on {nodes} nodes" for nodes in options.ranks)
    print(f"\nmillion messages/s that one pair carries by its credits: {', '.join(rates)}\n")
    print(format_memory(options.ranks, options.slot_bytes))
    return 0


def format_fits(points: Sequence[Point]) -> str:
    """Formats one line per system and boot of the guest: the speed may differ between boots."""
    rows = []
    programs = [point for point in points if point.system in ("headway", "libibverbs")]
    for system, boot in sorted({(point.system, point.extra.get("boot", 1)) for point in programs}):
        found = fit([point for point in programs if (point.system, point.extra.get("boot", 1)) == (system, boot)])
        worst = max(abs(error) for error in found.errors)
        mean = sum(abs(error) for error in found.errors) / len(found.errors)
        rows.append(
            (
                f"{system}, boot {boot}",
                format_time(found.latency_s),
                format_time(found.overhead_s),
                f"{found.bandwidth / 1e6:.0f} MB/s",
                f"{100 * mean:.0f}%",
                f"{100 * worst:.0f}%",
                str(len(found.errors)),
            )
        )
    return format_table(("fitted", "latency", "overhead", "bandwidth", "mean error", "worst", "points"), rows)


def format_predictions(nodes: Sequence[int], sizes: Sequence[int], assumed: Assumptions) -> str:
    """Formats one line per size and number of nodes. Percentages are shares of the time for k = 0."""
    rows = []
    for size_bytes in sizes:
        for count in nodes:
            found = predict(count, size_bytes, assumed)
            rows.append(
                (
                    format_bytes(size_bytes),
                    str(count),
                    format_time(found.blocking_s),
                    format_time(found.steady_s),
                    found.bounded_by,
                    f"{found.messages_s / found.blocking_s:.0%}",
                    f"{found.copies_s / found.blocking_s:.0%}",
                    f"{found.wire_s / found.blocking_s:.0%}",
                )
            )
    headings = ("per rank", "nodes", "k = 0", "k > 0", "largest part", "messages", "copies", "wire")
    return format_table(headings, rows)


def format_memory(nodes: Sequence[int], slot_bytes: int) -> str:
    """Formats one line per number of nodes.

    ``posted`` counts the receives in the shared queue. ``last is late`` is ``waiting_for_the_last()``.
    """
    rows = []
    for count in nodes:
        found = memory(count, slot_bytes=slot_bytes)
        parts = (found.receives, found.completions, found.send_queues, found.staging, found.receive_buffer)
        late = waiting_for_the_last(count)
        rows.append((str(count), *map(format_bytes, parts), str((count - 1) * credits(count)), f"{late:.1f}"))
    headings = (
        "nodes",
        "receives",
        "completions",
        "send queues",
        "staging",
        "receive buffer",
        "posted",
        "last is late",
    )
    return format_table(headings, rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
