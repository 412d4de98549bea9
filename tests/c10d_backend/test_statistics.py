# SPDX-License-Identifier: Apache-2.0
"""Statistics and traces show which peers a rank waited for."""

from __future__ import annotations

import json
import pathlib
import time

import headway
import pytest
import torch
import torch.distributed as dist
from headway.comm.groups import backend_of
from rank_processes import run_ranks


def wait_for_a_straggler(rank: int) -> headway.comm.statistics.GroupStatistics:
    dist.barrier()
    headway.reset_stats()
    for _ in range(5):
        if rank == 2:
            time.sleep(0.2)  # Long beside the time for which a busy host may hold up another rank.
        dist.all_to_all_single(torch.empty(3, 4), torch.ones(3, 4))
    return headway.stats()


def test_statistics_name_the_straggler() -> None:
    first, _, straggler = run_ranks(wait_for_a_straggler, 3)
    assert set(first["peers"]) == {0, 1, 2}
    wait_s = first["peers"][2]["wait_s"]
    assert wait_s > 0.5
    assert first["peers"][1]["wait_s"] < wait_s / 2 and straggler["peers"][0]["wait_s"] < wait_s / 2
    assert first["operations"] == 5
    assert first["peers"][1]["bytes_sent"] == first["peers"][1]["bytes_received"] == 5 * 16
    assert first["lag_histogram"][0] == 5  # Entry i: exchanges completed while i later ones were posted.
    assert first["receive_buffer_bytes"] > 0


def read_former_keys(rank: int) -> None:
    found = headway.stats()
    with pytest.warns(DeprecationWarning, match="landing_bytes is deprecated.*use receive_buffer_bytes"):
        assert found["landing_bytes"] == found["receive_buffer_bytes"]  # type: ignore[typeddict-item]
    with pytest.warns(DeprecationWarning, match="offers_revoked is deprecated.*use rendezvous_fallbacks"):
        assert found["offers_revoked"] == found["rendezvous_fallbacks"]  # type: ignore[typeddict-item]
    with pytest.raises(KeyError):
        found["no such key"]  # type: ignore[typeddict-item]


def test_former_keys_of_statistics_work_with_a_warning() -> None:
    run_ranks(read_former_keys, 2)


def count_lost_lag(rank: int) -> int:
    """Exchanges blocks of 4 and of 4,000 bytes, the latter larger than a slot of 64 bytes, which holds a block."""
    group = dist.new_group(backend="headway", pg_options=headway.Options(max_lag=1, slot_bytes=64))
    for floats in (1, 1000):
        dist.all_to_all_single(torch.empty(2 * floats), torch.ones(2 * floats), group=group)
    return headway.stats(group)["lag_lost"]


def test_exchanges_too_large_to_lag_are_counted() -> None:
    assert run_ranks(count_lost_lag, 2) == [1, 1]


def write_a_trace(rank: int, path: str) -> None:
    group = dist.new_group(backend="headway", pg_options=headway.Options(max_lag=1))
    dist.barrier()
    with headway.trace(path):
        works = [dist.all_to_all_single(torch.empty(2), torch.ones(2), group=group, async_op=True) for _ in range(4)]
        for work in works:
            work.wait()
    dist.all_to_all_single(torch.empty(2), torch.ones(2), group=group)  # Not recorded: the trace has ended.


def test_a_trace_holds_each_exchange_with_start_and_end(tmp_path: pathlib.Path) -> None:
    run_ranks(write_a_trace, 2, str(tmp_path / "trace.json"))
    for rank in range(2):
        rows = json.loads((tmp_path / f"trace.rank{rank}.json").read_text())["traceEvents"]
        starts = {row["id"]: row for row in rows if row["ph"] == "b" and row["name"].startswith("all_to_all")}
        ends = {row["id"]: row for row in rows if row["ph"] == "e" and row["name"].startswith("all_to_all")}
        assert len(starts) == 4 and starts.keys() == ends.keys()
        assert all(starts[key]["ts"] <= ends[key]["ts"] for key in starts)
        assert all(row["args"]["bytes_sent"] == 8 and row["pid"] == rank for row in starts.values())


def ask_for_a_negative_trace(rank: int) -> None:
    with pytest.raises(ValueError, match="capacity must be at least 0, not -1"):
        backend_of().set_trace_capacity(-1)


def test_a_negative_capacity_of_traces_is_refused() -> None:
    run_ranks(ask_for_a_negative_trace, 1)


def test_a_trace_without_a_group_says_so(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="no headway group"), headway.trace(tmp_path / "trace.json"):
        pass


def test_statistics_of_another_backends_group_are_refused() -> None:
    run_ranks(ask_gloo, 2, backend="gloo")


def ask_gloo(rank: int) -> None:
    with pytest.raises(ValueError, match="its backend is gloo"):
        headway.stats()
