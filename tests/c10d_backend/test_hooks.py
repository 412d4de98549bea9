# SPDX-License-Identifier: Apache-2.0
"""PyTorch's hooks, timeout extensions and flight recorder on a headway group, where torch has them."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

import headway
import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks

needs_hooks = pytest.mark.skipif(
    not hasattr(dist.ProcessGroup, "register_abort_hook"), reason="this torch has no hooks: 2.14 and later have"
)
IS_BEFORE_2_15 = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15)
needs_recorder = pytest.mark.skipif(
    IS_BEFORE_2_15, reason="this torch records only NCCL and Gloo: 2.15 and later record others"
)


@pytest.fixture
def no_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps torch's flight recorder off, whose first file takes 4 s: it is written in an abort hook."""
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "0")


def world() -> Any:
    return dist.distributed_c10d._get_default_group()


def exchange(size: int = 2) -> None:
    dist.all_to_all_single(torch.empty(size), torch.ones(size))


def abort_with_hooks(rank: int) -> list[str]:
    called: list[str] = []
    world().register_abort_hook(2, lambda: called.append(headway.backend_of().health_message()))
    world().register_abort_hook(1, lambda: 1 / 0)
    world().register_abort_hook(3, lambda: called.append("removed"))
    world().unregister_abort_hook(3)
    exchange()
    if rank == 0:
        headway.backend_of().abort()
    else:
        with pytest.raises(dist.DistBackendError):
            exchange()
    return called


@needs_hooks
@pytest.mark.usefixtures("no_recorder")
def test_abort_hooks_run_before_the_abort_and_where_the_failure_is_seen() -> None:
    aborting, other = run_ranks(abort_with_hooks, 2)
    assert aborting[0] == "", "the group had not failed when the hook ran"
    assert other and "abort() was called on rank 0" in other[0]


def time_out(rank: int) -> int:
    called: list[int] = []
    world().register_abort_hook(0, lambda: called.append(1))
    if rank == 1:
        time.sleep(2.5)
        return len(called)
    with pytest.raises(dist.DistBackendError, match="imed out"):
        exchange()
    return len(called)  # Counted after the exception: a program may end there.


@needs_hooks
@pytest.mark.usefixtures("no_recorder")
def test_abort_hooks_run_at_a_timeout_also_on_the_rank_that_waits_for_nothing() -> None:
    waiting, idle = run_ranks(time_out, 2, timeout_s=1)
    assert waiting >= 1
    assert idle >= 1


def extend(rank: int) -> str:
    exchange()  # Connects, and its timeout is the group's own.
    world()._add_ephemeral_timeout(timedelta(seconds=20))
    if rank == 1:
        time.sleep(1.5)  # Longer than the group's timeout.
    exchange()
    with pytest.raises(dist.DistBackendError) as caught:
        if rank == 1:
            time.sleep(2.5)
        exchange()  # The extension ended with the exchange before.
    return str(caught.value)


@needs_hooks
@pytest.mark.usefixtures("no_recorder")
def test_a_timeout_extension_ends_with_the_first_operation_after_it() -> None:
    texts = run_ranks(extend, 2, timeout_s=1)
    assert "1000 ms" in texts[0]


def split_with_options(rank: int) -> tuple[int, int, float]:
    options = headway.Options(max_lag=3, num_channels=2)  # A channel is a sequence of exchanges with its own lag.
    parent = dist.new_group(backend="headway", pg_options=options, timeout=timedelta(seconds=30))
    before = headway.backend_of(parent).options._timeout
    child = dist.split_group(parent, [[0, 1]], timeout=timedelta(seconds=7))
    child_backend = headway.backend_of(child)
    assert headway.backend_of(parent).options._timeout == before, "the child must not change its parent's options"
    output = torch.empty(2)
    headway.all_to_all_single(output, torch.ones(2), group=child, channel=1)
    return child_backend.max_lag(0), child_backend.max_lag(1), child_backend.options._timeout.total_seconds()


@pytest.mark.skipif(IS_BEFORE_2_15, reason="this torch splits groups of CUDA devices only: 2.15 and later split others")
def test_a_split_group_has_a_copy_of_its_parents_options() -> None:
    assert run_ranks(split_with_options, 2) == [(3, 3, 7.0)] * 2


def gather_in_one_tensor(rank: int) -> list[float]:
    output = torch.empty(2, 3) if rank == 1 else torch.empty(0)
    options = dist.GatherOptions()
    options.rootRank = 1
    world().gather_single(output, torch.full((3,), float(rank)), options).wait()
    return output.flatten().tolist()


@pytest.mark.skipif(not hasattr(dist.ProcessGroup, "gather_single"), reason="this torch has no gather_single")
def test_gather_single_fills_one_tensor_at_the_root() -> None:
    assert run_ranks(gather_in_one_tensor, 2) == [[], [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]]


def titles(rank: int) -> set[str]:
    exchange()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        with dist.record_comm("lookup of layer 1"):  # type: ignore[attr-defined]
            exchange()
        exchange()
    return {event.name for event in profile.events() if "all_to_all" in event.name or "lookup" in event.name}


@pytest.mark.skipif(not hasattr(dist, "record_comm"), reason="this torch has no record_comm")
def test_record_comm_names_exchanges_in_the_profile() -> None:
    found = run_ranks(titles, 2)[0]
    assert "lookup of layer 1" in found
    assert "headway:all_to_all" in found


def recorded() -> list[tuple[str, str]]:
    trace = json.loads(torch._C._distributed_c10d._dump_fr_trace_json(backend="headway"))
    return [(entry["profiling_name"], entry["state"]) for entry in trace["entries"]]


def record_each_kind(rank: int) -> list[tuple[str, str]]:
    total = torch.ones(1)
    dist.all_reduce(total)
    works = [dist.all_to_all_single(torch.empty(2), torch.ones(2), async_op=True) for _ in range(2)]
    works[1].wait()  # Nobody asks for the first one.
    dist.barrier()
    return recorded()


@needs_recorder
def test_torchs_flight_recorder_sees_what_has_completed() -> None:
    entries = run_ranks(record_each_kind, 2)[0]
    assert ("headway:all_reduce", "completed") in entries
    assert entries.count(("headway:all_to_all_single", "completed")) == 2
    assert all(state == "completed" for _, state in entries)


def hang_one_rank(rank: int, folder: pathlib.Path) -> None:
    exchange(3)
    if rank == 2:
        deadline = time.monotonic() + 60
        while not (folder / "trace_2").exists() and time.monotonic() < deadline:
            time.sleep(0.05)  # It hangs elsewhere, and must write its file nevertheless.
        time.sleep(1)
        return
    with pytest.raises(dist.DistBackendError):
        exchange(3)


@needs_recorder
def test_torchs_analyzer_names_the_rank_that_hangs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(tmp_path / "trace_"))
    run_ranks(hang_one_rank, 3, tmp_path, timeout_s=2, limit_s=120)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace_0", "trace_1", "trace_2"]
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(tmp_path), "-p", "trace_"]
    report = subprocess.run(command, capture_output=True, text=True, timeout=60, env=dict(os.environ))
    text = report.stdout + report.stderr
    assert "Not all ranks joining collective" in text
    assert "missing ranks: {2}" in text, text
