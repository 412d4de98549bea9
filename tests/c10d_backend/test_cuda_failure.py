# SPDX-License-Identifier: Apache-2.0
"""Exchanges of CUDA tensors with mismatched arguments, invalid arguments, or a lost peer."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import headway
import pytest
import torch
import torch.distributed as dist
from cuda_ranks import NEEDS_GPU, num_gpus, run_on_gpus, take_device
from rank_processes import DIED, kill_self

pytestmark = NEEDS_GPU


def disagree(rank: int, what: str) -> str:
    device = take_device(rank)
    dist.all_to_all_single(torch.empty(2, device=device), torch.ones(2, device=device))
    sizes = {"size": (4, 4 - 2 * rank), "type": (4, 4)}[what]
    dtype = torch.int32 if what == "type" and rank == 1 else torch.float32
    try:
        for _ in range(2):
            dist.all_to_all_single(
                torch.empty(sizes[1], device=device, dtype=dtype), torch.ones(sizes[1], device=device, dtype=dtype)
            )
            torch.cuda.synchronize()
            time.sleep(1.5)
    except dist.DistBackendError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("what", ["size", "type"])
def test_a_disagreement_names_both_ranks_and_what_each_meant(what: str) -> None:
    # Sizes of a block: half of 4 or of 2 floats.
    meant = {"size": ("8 bytes", "4 bytes"), "type": ("int32", "float32")}[what]
    for text in run_on_gpus(disagree, 2, what):
        assert all(part in text for part in ("rank 0", "rank 1", *meant)), text


def capture(rank: int) -> str:
    device = take_device(rank)
    output, source = torch.empty(2, device=device), torch.ones(2, device=device)
    dist.all_to_all_single(output, source)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            dist.all_to_all_single(output, source)
    except ValueError as error:
        text = str(error)
    dist.all_to_all_single(output, source)
    assert output.tolist() == [1, 1]
    return text


def test_capture_in_a_graph_is_refused() -> None:
    assert all("CUDA graph" in text for text in run_on_gpus(capture, 2))


def lose_a_peer(rank: int, length: int) -> tuple[str, float]:
    device = take_device(rank)
    size = dist.get_world_size()
    tensors = torch.empty(size * length, device=device), torch.ones(size * length, device=device)
    dist.all_to_all_single(*tensors)
    torch.cuda.synchronize()
    if rank == 1:
        kill_self()
    started = time.monotonic()
    try:  # A loss that is already known is raised at the start.
        work = dist.all_to_all_single(*tensors, async_op=True)
        work.wait()
        torch.cuda.synchronize()
        work.wait()
    except dist.DistBackendError as error:
        text = str(error)
        torch.cuda.synchronize()  # Nothing hangs on the device, and it can do other work.
        assert float(torch.ones(10, device=device).sum()) == 10
        return text, time.monotonic() - started
    return "no error", 0


@pytest.mark.parametrize("length", [1, 1_000_000])
def test_a_stream_that_waits_for_a_dead_peer_goes_on_and_the_work_fails(length: int) -> None:
    results = run_on_gpus(lose_a_peer, 3, length, may_die=True)
    assert results[1] is DIED
    for text, seconds in (results[0], results[2]):
        assert "rank 1" in text and seconds < 5, (text, seconds)


def wait_in_vain(rank: int) -> tuple[str, float]:
    device = take_device(rank)
    group = dist.new_group(backend="headway", pg_options=headway.Options(timeout=timedelta(seconds=3)))
    tensors = torch.empty(2, device=device), torch.ones(2, device=device)
    dist.all_to_all_single(*tensors, group=group)
    if rank == 1:
        time.sleep(10)
        return "", 0
    started = time.monotonic()
    work = dist.all_to_all_single(*tensors, group=group, async_op=True)
    work.wait()
    torch.cuda.synchronize()
    seconds = time.monotonic() - started
    try:
        work.wait()
    except dist.DistBackendError as error:
        with pytest.raises(dist.DistBackendError, match="timed out"):
            work.get_future().wait()
        return str(error), seconds
    return "no error", seconds


def test_a_peer_that_does_not_come_is_named_when_the_time_is_over() -> None:
    text, seconds = run_on_gpus(wait_in_vain, 2)[0]
    assert "timed out" in text and "4 bytes from rank 1" in text, text
    assert 2.5 < seconds < 6


def record_flights(rank: int) -> tuple[list[Any], Any]:
    """Returns the records of completed operations, and the pending one while rank 1 has not come."""
    device = take_device(rank)
    output, source = torch.empty(2, 1000, device=device), torch.ones(2, 1000, device=device)
    dist.broadcast(source[0], src=1)
    dist.all_to_all_single(output, source)
    torch.cuda.synchronize()
    dist.barrier()
    completed = [each for each in headway.flight_records() if each["device"] is not None]
    pending = None
    if rank == 0:
        work = dist.all_to_all_single(output, source, async_op=True)
        time.sleep(0.5)
        pending = headway.flight_records()[-1]
    dist.barrier()
    if rank == 1:
        work = dist.all_to_all_single(output, source, async_op=True)
    work.wait()
    torch.cuda.synchronize()
    return completed, pending


def test_flight_records_tell_of_operations_on_devices() -> None:
    results = run_on_gpus(record_flights, 2)
    for rank, (completed, _) in enumerate(results):
        broadcast, exchange = completed
        assert (broadcast["operation"], broadcast["peer"], broadcast["seq"]) == ("broadcast", 1, 0)
        assert (exchange["operation"], exchange["channel"], exchange["seq"]) == ("all_to_all_v", 0, 0)
        assert (exchange["input_bytes"], exchange["output_bytes"], exchange["state"]) == (8000, 8000, "completed")
        assert exchange["device"] == rank % num_gpus()
    pending = results[0][1]
    assert (pending["state"], pending["waiting_for"], pending["seq"]) == ("posted", [1], 1)
