"""CI stages that run in parallel."""

import os
import sys
from pathlib import Path

import pytest
import run_ci
from bounded_process import BoundedProcess
from run_ci import Stage, finish_stage, report, start_stage
from test_counts import Counts


def patient_stage(code: str, *, limit_s: float = 60) -> Stage:
    return Stage(
        name="sample", group="sample", commands=[[sys.executable, "-c", code]], limit_s=limit_s, is_patient=True
    )


def test_a_patient_stage_is_shown_when_it_is_finished_and_judged_as_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_ci, "ROOT", tmp_path)
    stage = patient_stage("print('a finding'); raise SystemExit(1)")
    with start_stage(stage) as process:
        process.finish(limit_s=60)
        assert capsys.readouterr().out == ""
        outcome = finish_stage(stage, process)
    assert "a finding" in capsys.readouterr().out
    assert outcome.counts == Counts(failed=1)
    assert report([(stage, outcome)]) == 1
    assert (tmp_path / "out/ci/sample.log").read_text() == "a finding\n"


def test_a_patient_stage_out_of_time_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_ci, "ROOT", tmp_path)
    stage = patient_stage("import time; time.sleep(600)", limit_s=1)
    with start_stage(stage) as process:
        outcome = finish_stage(stage, process)
    assert outcome.counts == Counts(failed=1)
    assert "ran out of its 1 s" in outcome.line


def test_a_patient_command_ends_with_what_started_it() -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with pytest.raises(KeyboardInterrupt), BoundedProcess([sys.executable, "-c", code], is_shown=False) as process:
        pid = process._process.pid
        raise KeyboardInterrupt
    process._process.wait(timeout=10)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
