# SPDX-License-Identifier: Apache-2.0
"""One rank of the overlap benchmark: work on one stream, exchanges on another. Both are timed.

Started by ``benchmarks.cuda_overlap`` with the fields of ``OverlapSettings``.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import headway
import pynvml
import torch
import torch.distributed as dist

from benchmarks.torch_ranks.cuda_ranks import (
    NCCL_COPY_ENGINES,
    connect,
    device_of,
    exchange_by_copy_engines,
    symmetric_zeros,
)


@dataclass(frozen=True, kw_only=True)
class OverlapSettings:
    """Settings of one rank; see the options of ``benchmarks.cuda_overlap``.

    Attributes:
        systems: names that ``make_exchange()`` takes.
        works: names that ``make_work()`` takes.
    """

    rank: int
    ranks: int
    systems: list[str]
    works: list[str]
    bytes_per_rank: int
    rounds: int
    timeout_s: int

    @property
    def device(self) -> torch.device:
        """This rank's GPU."""
        return device_of(self.rank)


class ClockLog:
    """Samples the clock rate of a GPU's multiprocessors."""

    def __init__(self, device: torch.device) -> None:
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(device.index)
        self._mhz: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> ClockLog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._stop.wait(0.002):
            self._mhz.append(pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM))

    def median_mhz(self) -> float:
        """Returns the median of all samples in MHz."""
        return statistics.median(self._mhz)


def make_work(name: str, device: torch.device) -> Callable[[], None]:
    """Makes about 10 ms of work: bf16 products of 8192 x 8192, or fused causal attention over 32 sequences of 4096."""
    if name == "products":
        left, right = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
        out = torch.empty_like(left)

        def multiply() -> None:
            for _ in range(8):
                torch.mm(left, right, out=out)

        return multiply
    query, key, value = (torch.randn(32, 4, 4096, 128, device=device, dtype=torch.bfloat16) for _ in range(3))

    def attend() -> None:
        for _ in range(8):
            torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    return attend


def make_exchange(system: str, settings: OverlapSettings, groups: dict[str, Any]) -> Callable[[], None]:
    """Makes a function that does one even exchange of a rank's bytes.

    Args:
        system: ``none``; ``copies``: bare copies between devices; ``headway_slots``: the receive buffer is the output;
            ``headway_empty``: peers write the output directly; NCCL's copy engines; or the name of a backend.
        settings: settings of this rank.
        groups: group of each system.
    """
    if system == "none":
        return lambda: None
    block = settings.bytes_per_rank // settings.ranks
    source = torch.ones(settings.bytes_per_rank, dtype=torch.uint8, device=settings.device)
    if system == "headway_slots":
        ring = headway.slots.Ring(
            capacity=block, dtype=torch.uint8, device=settings.device, group=groups["headway"], num_slots=3
        )
        splits = [block] * settings.ranks
        inputs = list(source.split(splits))

        def exchange() -> None:
            ring.take().exchange(inputs, splits)

        return exchange
    if system == "copies":
        return make_copies(source.split(block), settings)
    if system == NCCL_COPY_ENGINES:
        group = groups[system]
        outgoing, incoming = (symmetric_zeros(len(source), settings.device, group) for _ in range(2))
        return lambda: exchange_by_copy_engines(incoming, outgoing, group)
    make_output = headway.empty if system == "headway_empty" else torch.empty
    output = make_output(settings.bytes_per_rank, dtype=torch.uint8, device=settings.device)
    return lambda: dist.all_to_all_single(output, source, group=groups[system])


def make_copies(blocks: Sequence[torch.Tensor], settings: OverlapSettings) -> Callable[[], None]:
    """Makes a function that does the exchange's copies between devices, without local copies and without waiting."""
    peers = [(settings.rank + step) % settings.ranks for step in range(1, settings.ranks)]
    outputs = [torch.empty_like(blocks[peer], device=device_of(peer)) for peer in peers]

    for peer, output in zip(peers, outputs, strict=True):
        output.copy_(blocks[peer])  # torch enables peer access between the devices.
    driver = ctypes.CDLL("libcuda.so.1")
    contexts = {}
    for rank in {settings.rank, *peers}:
        contexts[rank] = ctypes.c_void_p()
        check_driver(driver.cuDevicePrimaryCtxRetain(ctypes.byref(contexts[rank]), device_of(rank).index))

    def copy() -> None:
        # The driver copies: torch's copies between devices may be kernels.
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        for peer, output in zip(peers, outputs, strict=True):
            to, source = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (output, blocks[peer]))
            size = ctypes.c_size_t(output.nbytes)
            check_driver(driver.cuMemcpyPeerAsync(to, contexts[peer], source, contexts[settings.rank], size, stream))

    return copy


def check_driver(result: int) -> None:
    """Raises an error unless the driver's result is 0."""
    if result != 0:
        raise RuntimeError(f"libcuda: error {result}")


def time_alone(run: Callable[[], None], count: int) -> float:
    """Returns the mean seconds of ``count`` runs in a row."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / count


def time_beside(
    work: Callable[[], None], exchange: Callable[[], None], exchanges: int, stream: torch.cuda.Stream
) -> tuple[float, float]:
    """Returns the seconds of the work while exchanges run on ``stream``, and the seconds of an exchange."""
    begin, end, first, last = (torch.cuda.Event(enable_timing=True) for _ in range(4))
    torch.cuda.synchronize()
    dist.barrier()
    with torch.cuda.stream(stream):
        first.record()
        for _ in range(3):  # Exchanges are under way when the work begins.
            exchange()
    begin.record()
    work()
    end.record()
    with torch.cuda.stream(stream):
        for _ in range(exchanges):
            exchange()
        last.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3, first.elapsed_time(last) / 1e3


def measure(settings: OverlapSettings, groups: dict[str, Any], work_name: str) -> None:
    """Prints one point per round, system and rank, at rank 0."""
    work = make_work(work_name, settings.device)
    exchanges = {system: make_exchange(system, settings, groups) for system in settings.systems}
    stream = torch.cuda.Stream()
    work()
    alone_s = time_alone(work, 5)
    counts = {}
    for system, exchange in exchanges.items():
        exchange()
        torch.cuda.synchronize()
        dist.barrier()
        each_s = time_alone(exchange, 10)
        per_work = torch.tensor([alone_s / each_s if system != "none" else 0.0])
        dist.all_reduce(per_work, op=dist.ReduceOp.MAX)
        counts[system] = int(1.3 * float(per_work)) + 1  # Enough to last longer than the work, the same on all ranks.
    for index in range(settings.rounds):
        order = settings.systems if index % 2 == 0 else list(reversed(settings.systems))
        for system in order:
            time.sleep(0.02)
            with ClockLog(settings.device) as clock:
                work_s, exchange_s = time_beside(work, exchanges[system], counts[system], stream)
            print_point(settings, work_name, system, index, work_s, exchange_s, counts[system] + 3, clock.median_mhz())


def print_point(
    settings: OverlapSettings,
    work: str,
    system: str,
    index: int,
    work_s: float,
    exchange_s: float,
    exchanges: int,
    clock_mhz: float,
) -> None:
    """Gathers the points of all ranks. Rank 0 prints one JSON line for each."""
    point = {
        "name": "cuda_overlap",
        "params": {"ranks": settings.ranks, "bytes_per_rank": settings.bytes_per_rank, "work": work},
        "system": system,
        "median_s": work_s,
        "samples": 1,
        "unit": "s",
        # A rank's point is a round of its own, so that ratios compare times of one rank.
        "round": index * settings.ranks + settings.rank,
        "clock_mhz": clock_mhz,
        # Exchanges ran during all of the work.
        "covered": system == "none" or exchange_s > work_s,
        "exchange_s": exchange_s / exchanges if system != "none" else 0.0,
    }
    gathered: list[Any] = [None] * settings.ranks
    dist.all_gather_object(gathered, point)
    if settings.rank == 0:
        for each in gathered:
            print(json.dumps(each), flush=True)


def main(fields: Mapping[str, Any]) -> None:
    """Measures everything."""
    settings = OverlapSettings(**fields)
    groups = connect(settings)
    for work in settings.works:
        measure(settings, groups, work)
    dist.barrier()  # Leave together.
