# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: after a hang it shows the last operations of each rank, also to PyTorch's analyzer."""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import headway
import pytest
import torch
import torch.distributed as dist
from headway.cli.flight_records import main
from headway.comm.flight_recorder import FlightDump, FlightRecord, export
from rank_processes import DIED, kill_self, run_ranks


def exchange(group: dist.ProcessGroup | None = None) -> None:
    size = dist.get_world_size(group)
    dist.all_to_all_single(torch.empty(size, 4), torch.ones(size, 4), group=group)


def read(folder: pathlib.Path, name: str) -> FlightDump:
    dump: FlightDump = json.loads((folder / name).read_text())
    return dump


def analyze(folder: pathlib.Path, *options: str) -> tuple[Any, str]:
    """Runs PyTorch's analyzer over the files of ``folder``. Returns its database and its output."""
    export(folder, folder / "torch")
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder / "torch"), *options]
    finished = subprocess.run(
        [*command, "-o", str(folder / "database")], capture_output=True, text=True, timeout=120, check=False
    )
    assert finished.returncode == 0, finished.stderr
    with (folder / "database").open("rb") as file:
        _, database = pickle.load(file)
    return database, finished.stdout + finished.stderr


def look_at_records(rank: int, folder: pathlib.Path) -> list[FlightRecord]:
    exchange()
    dist.broadcast(torch.ones(10, dtype=torch.float64), 1)
    if rank == 0:
        dist.send(torch.ones(3), 1)
    else:
        dist.recv(torch.ones(3), 0)
    other = dist.new_group(backend="gloo")
    dist.barrier(other)  # A rank that leaves earlier would break the connections of a slower one.
    with pytest.raises(ValueError, match="not a headway group"):
        headway.flight_records(other)
    headway.dump_flight_records(folder / f"{rank}.json")
    return headway.flight_records()


def test_records_tell_what_was_done(tmp_path: pathlib.Path) -> None:
    started_ns = time.time_ns()
    for rank, records in enumerate(run_ranks(look_at_records, 2, tmp_path)):
        assert [record["seq"] for record in records] == [0, 0, 0]
        with pytest.warns(DeprecationWarning, match="number is deprecated.*use seq"):
            assert records[0]["number"] == 0
        all_to_all, broadcast, message = records
        assert (all_to_all["operation"], all_to_all["channel"], all_to_all["peer"]) == ("all_to_all_v", 0, None)
        assert (all_to_all["input_bytes"], all_to_all["output_bytes"], all_to_all["data_type"]) == (32, 32, "float32")
        assert (broadcast["operation"], broadcast["peer"], broadcast["input_bytes"]) == ("broadcast", 1, 80)
        assert (message["operation"], message["peer"]) == (("send", "receive")[rank], 1 - rank)
        for record in records:
            assert record["state"] == "completed" and record["waiting_for"] == []
            times = [record["started_ns"], record["posted_ns"], record["completed_ns"]]
            assert None not in times and times == sorted(times)  # type: ignore[type-var]
            assert started_ns - 10**9 < record["started_ns"] < time.time_ns() + 10**9
        dump = read(tmp_path, f"{rank}.json")
        assert [each["operation"] for each in dump["records"]] == [each["operation"] for each in records]
        assert (dump["rank"], dump["global_ranks"], dump["failure"]) == (rank, [0, 1], None)


def test_the_analyzer_finds_nothing_wrong_with_a_job_that_ran_well(tmp_path: pathlib.Path) -> None:
    run_ranks(look_at_records, 2, tmp_path)
    database, text = analyze(tmp_path)
    assert len(database.collectives) == 3
    assert all(each.pass_check and not each.missing_ranks for each in database.collectives)
    assert "Not all ranks" not in text and "mismatch" not in text.lower()


def skip_the_last_exchange(rank: int, folder: pathlib.Path) -> str:
    os.environ["HEADWAY_FLIGHT_RECORDER"] = str(folder)
    group = dist.new_group(backend="headway", timeout=timedelta(seconds=1))
    for _ in range(3):
        exchange(group)
    dist.barrier(group)
    message = ""
    if rank != 1:
        with pytest.raises(dist.DistBackendError) as caught:
            exchange(group)
        message = str(caught.value)
        assert "flight records: " in message and pathlib.Path(message.rsplit(": ", 1)[1]).is_file()
    deadline = time.monotonic() + 20
    while not list(folder.glob(f"group_*.rank_{rank}.json")) and time.monotonic() < deadline:
        time.sleep(0.01)  # Rank 1 waits for nothing, and must write its file nevertheless.
    return message


def test_a_timeout_leaves_files_in_which_the_analyzer_finds_the_missing_rank(tmp_path: pathlib.Path) -> None:
    messages = run_ranks(skip_the_last_exchange, 2, tmp_path)
    files = sorted(path.name for path in tmp_path.glob("*.json"))
    assert [name.rsplit(".", 2)[1] for name in files] == ["rank_0", "rank_1"]
    assert files[0] in messages[0]
    patient = read(tmp_path, files[0])
    assert patient["failure"] is not None and "rank 1" in patient["failure"]
    last = patient["records"][-1]
    assert (last["state"], last["waiting_for"], last["seq"]) == ("failed", [1], 3)
    culprit = read(tmp_path, files[1])
    assert [record["state"] for record in culprit["records"]] == ["completed"] * 4
    assert culprit["failure"] is not None and "rank 0" in culprit["failure"]

    database, text = analyze(tmp_path)
    assert "Not all ranks joining collective, sequence number: 4" in text  # PyTorch counts from 1.
    assert "missing ranks: {1}" in text
    missing = [each for each in database.collectives if each.missing_ranks]
    assert [(each.missing_ranks, each.collective_name) for each in missing] == [({1}, "nccl:all_to_all")]


def die_with_records(rank: int, folder: pathlib.Path) -> bool:
    os.environ["HEADWAY_FLIGHT_RECORDER"] = str(folder)
    group = dist.new_group(backend="headway")
    exchange(group)
    if rank == 1:
        kill_self()
    try:
        for _ in range(3):
            exchange(group)
    except dist.DistBackendError:
        return len(list(folder.glob(f"*.rank_{rank}.json"))) == 1
    return False


def test_the_loss_of_a_rank_leaves_files_of_the_others(tmp_path: pathlib.Path) -> None:
    results = run_ranks(die_with_records, 3, tmp_path, may_die=True, limit_s=60)
    assert results == [True, DIED, True]
    for path in tmp_path.glob("*.json"):
        dump = read(tmp_path, path.name)
        assert dump["failure"] is not None and "rank 1" in dump["failure"]
    _, text = analyze(tmp_path, "--allow-incomplete-ranks")
    assert "missed FR dumps from ranks ({1})" in text


def fail_after(rank: int, prepare: Callable[[], Any]) -> str:
    if rank == 1:
        dist.barrier()
        kill_self()
    prepare()
    dist.barrier()
    with pytest.raises(dist.DistBackendError) as caught:
        dist.barrier()
    return str(caught.value)


def test_a_link_that_somebody_planted_is_not_followed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "records"
    victim.write_text("precious")
    folder.mkdir()
    for name in ("group_0.rank_0.json", "group_0.rank_0.json.part"):
        (folder / name).symlink_to(victim)
    monkeypatch.setenv("HEADWAY_FLIGHT_RECORDER", str(folder))
    message = run_ranks(fail_after, 2, lambda: None, may_die=True, limit_s=30)[0]
    assert victim.read_text() == "precious"
    path = folder / "group_0.rank_0.json"
    assert message.endswith(f"flight records: {path}")
    assert not path.is_symlink() and read(folder, path.name)["rank"] == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, "only this user may read what a job did"
    assert [each.name for each in folder.iterdir()] == [path.name]


def test_a_folder_that_becomes_unsafe_later_gets_no_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, other = tmp_path / "records", tmp_path / "other"
    monkeypatch.setenv("HEADWAY_FLIGHT_RECORDER", str(folder))

    def replace_by_link() -> None:
        other.mkdir()
        folder.rename(tmp_path / "moved")
        folder.symlink_to(other)

    for prepare in (lambda: folder.chmod(0o777), replace_by_link):
        message = run_ranks(fail_after, 2, prepare, may_die=True, limit_s=30)[0]
        assert "flight records" not in message
        assert "cannot be written" in capfd.readouterr().err
        assert not list(tmp_path.glob("*/*"))
        folder.chmod(0o700)


def switch_it_off(rank: int) -> list[FlightRecord]:
    group = dist.new_group(backend="headway", pg_options=headway.Options(flight_records=0))
    exchange(group)
    return headway.flight_records(group)


def keep_two(rank: int) -> list[int]:
    group = dist.new_group(backend="headway", pg_options=headway.Options(flight_records=2))
    for _ in range(5):
        exchange(group)
    return [record["seq"] for record in headway.flight_records(group)]


def test_the_number_of_records_is_an_option() -> None:
    assert run_ranks(switch_it_off, 2) == [[], []]
    assert run_ranks(keep_two, 2) == [[3, 4], [3, 4]]
    assert headway.Options().flight_records == 256
    with pytest.raises(ValueError, match="flight_records must be at least 0, not -1"):
        headway.Options(flight_records=-1)


def record(seq: int, **changes: Any) -> FlightRecord:
    """A record of a completed exchange with default fields, except for ``changes``."""
    plain: dict[str, Any] = {
        "operation": "all_to_all_v",
        "seq": seq,
        "channel": 0,
        "device": None,
        "peer": None,
        "data_type": "float32",
        "input_bytes": 8,
        "output_bytes": 8,
        "state": "completed",
        "started_ns": seq + 1,
        "posted_ns": seq + 1,
        "completed_ns": seq + 2,
        "waiting_for": [],
    }
    return FlightRecord(**{**plain, **changes})  # type: ignore[typeddict-item]


def write(folder: pathlib.Path, rank: int, records: list[FlightRecord], **changes: Any) -> None:
    plain = {"group": "0", "rank": rank, "global_ranks": [0, 1], "failure": None, "capacity": 4, "records": records}
    dump = {**plain, **changes}
    (folder / f"{dump['group']}.{rank}.json").write_text(json.dumps(dump))


def seqs_of(path: pathlib.Path) -> list[tuple[str, int]]:
    """Sequences and numbers of the entries of PyTorch's file. The numbers begin at 1, those of Headway at 0."""
    contents = pickle.loads(path.read_bytes())
    return [(entry["process_group"][0], entry["collective_seq_id"]) for entry in contents["entries"]]


# A recorder keeps the last `capacity` operations and forgets earlier ones.
def test_what_one_rank_has_forgotten_is_not_held_against_it(tmp_path: pathlib.Path) -> None:
    write(tmp_path, 0, [record(seq) for seq in range(6)])
    write(tmp_path, 1, [record(seq) for seq in range(3, 6)])
    files = export(tmp_path, tmp_path / "torch")
    assert [path.name for path in files] == ["rank_0", "rank_1"]
    assert seqs_of(files[0]) == seqs_of(files[1]) == [("0:all_to_all:0", seq) for seq in (4, 5, 6)]


def test_files_of_an_earlier_release_are_read(tmp_path: pathlib.Path) -> None:
    former = [{**record(seq), "number": seq} for seq in range(2)]
    for each in former:
        del each["seq"]
    write(tmp_path, 0, former)  # type: ignore[arg-type]
    files = export(tmp_path, tmp_path / "torch")
    assert seqs_of(files[0]) == [("0:all_to_all:0", seq) for seq in (1, 2)]


def test_a_sequence_that_a_rank_has_forgotten_shows_only_what_others_lack(tmp_path: pathlib.Path) -> None:
    barrier = {"operation": "barrier", "channel": None}
    pending = record(1, state="failed", completed_ns=99, started_ns=9, **barrier)
    sends = [record(seq, operation="send", channel=None, peer=0) for seq in range(4)]
    write(tmp_path, 0, [record(0, **barrier), record(7), pending])
    # Rank 1 has as many messages as its recorder keeps. So it may have forgotten a barrier that it completed.
    write(tmp_path, 1, [record(7), *sends])
    files = export(tmp_path, tmp_path / "torch")
    assert seqs_of(files[0]) == [("0:all_to_all:0", 8), ("0:collectives", 2)]
    assert ("0:collectives", 1) not in seqs_of(files[1])


def test_groups_and_channels_and_pairs_are_sequences_of_their_own(tmp_path: pathlib.Path) -> None:
    send = record(0, operation="send", channel=None, peer=1, started_ns=3)
    write(tmp_path, 0, [record(0), record(0, channel=1, started_ns=2), send])
    write(tmp_path, 0, [record(0, started_ns=9)], group="odd", global_ranks=[0, 3])
    files = export(tmp_path, tmp_path / "torch")
    names = [name for name, _ in seqs_of(files[0])]
    assert names == ["0:all_to_all:0", "0:all_to_all:1", "0:messages:0:1", "odd:all_to_all:0"]
    contents = pickle.loads(files[0].read_bytes())
    assert contents["pg_config"]["odd:all_to_all:0"]["ranks"] == "[0, 3]"
    assert contents["entries"][2]["profiling_name"] == "nccl:send 0->1"
    write(tmp_path, 1, [record(0, operation="receive_any", channel=None)])
    assert "0:messages:0:1" not in [name for name, _ in seqs_of(export(tmp_path, tmp_path / "torch")[0])]


def test_the_command_says_what_it_cannot_read(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    for contents, expected in [(None, "there are no flight records"), ("{", "not JSON"), ("{}", "not the flight rec")]:
        if contents is not None:
            (tmp_path / "x.json").write_text(contents)
        with pytest.raises(SystemExit) as stopped:
            main([str(tmp_path), "--output", str(tmp_path / "torch")])
        assert stopped.value.code == 2
        assert expected in capsys.readouterr().err
    write(tmp_path, 0, [record(0)])
    (tmp_path / "x.json").unlink()
    assert main([str(tmp_path), "--output", str(tmp_path / "torch")]) == 0
    assert "torchfrtrace" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_to_is_refused_at_once(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")

    def complete(folder: str) -> str:
        return headway.comm.options.complete_options(
            None,
            timeout=timedelta(1),
            group_name="g",
            global_ranks=[],
            environ={"HEADWAY_FLIGHT_RECORDER": folder},
        )._flight_folder

    assert complete(str(tmp_path / "new" / "folder")) == str(tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder").is_dir()
    for wrong in ["", str(tmp_path / "file"), str(tmp_path / "file" / "below")]:
        with pytest.raises(ValueError, match="HEADWAY_FLIGHT_RECORDER"):
            complete(wrong)


def prepare(folder: pathlib.Path) -> str:
    return headway.comm.options.prepare_flight_folder({"HEADWAY_FLIGHT_RECORDER": str(folder)})


def test_a_folder_that_others_can_write_to_is_refused_unless_it_is_sticky(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "folder"
    prepare(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)
    with pytest.raises(ValueError, match="everybody"):
        prepare(folder)
    folder.chmod(0o1777)
    assert prepare(folder) == str(folder)
    (tmp_path / "link").symlink_to(folder)
    assert prepare(tmp_path / "link") == str(folder), "a link of one's own is followed at once"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_a_folder_or_a_link_of_another_user_is_refused(tmp_path: pathlib.Path) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    os.lchown(link, 12345, 12345)
    with pytest.raises(ValueError, match=r"another user \(12345\)"):
        prepare(link)
    os.chown(folder, 12345, 12345)
    with pytest.raises(ValueError, match=r"another user \(12345\)"):
        prepare(folder)
