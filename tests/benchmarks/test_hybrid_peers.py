# SPDX-License-Identifier: Apache-2.0
"""Parts of the comparisons of ``hybrid`` with peers that need no peer: batches, options, and roles that fail."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import hybrid
from benchmarks.harness.errors import BenchmarkError
from benchmarks.hybrid_peers import persia_job
from benchmarks.hybrid_peers.persia_job import find_persia, run_persia
from benchmarks.torch_ranks.hybrid_model import draw_batches, loss_of, make_model, mean_unique_keys, repeat
from dlrm_examples.support.data.zipf import draw_zipf

SETTINGS: dict[str, Any] = {
    "features": 2, "dim": 4, "ids": 1000, "batch": 64, "compute_ms": 0, "steps": 3, "rounds": 1, "timeout_s": 30,
    "staleness": 1, "hidden": [16],
}  # fmt: skip


def test_all_systems_get_the_same_batches_of_scattered_ids() -> None:
    first, second = draw_batches(SETTINGS, 0), draw_batches(SETTINGS, 0)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.labels, other.labels) and one.labels.shape == (64, 1)
        assert all(torch.equal(one.ids[name], other.ids[name]) for name in ("feature_0", "feature_1"))
    assert not torch.equal(first[0].ids["feature_0"], draw_batches(SETTINGS, 1)[0].ids["feature_0"])
    # Scattering renames ids, so a batch has as many different ones as were drawn.
    drawn = draw_zipf(np.random.default_rng(1), num_values=1000, exponent=1.2, size=64)
    ids = first[0].ids["feature_0"]
    assert len(ids.unique()) == len(np.unique(drawn)) and 0 <= int(ids.min()) <= int(ids.max()) < 1000
    # Most draws are below 100, and would all be in the first of two ranges of rows.
    assert (drawn < 500).mean() > 0.8 > float((ids < 500).double().mean()) > 0.2
    assert mean_unique_keys(first[:1]) == sum(len(each.unique()) for each in first[0].ids.values())
    assert list(repeat("ab", 5)) == ["a", "b", "a", "b", "a"]


def test_all_systems_have_the_same_loss() -> None:
    batch = draw_batches(SETTINGS, 0)[0]
    embeddings = [torch.ones(64, 4), torch.zeros(64, 4)]
    losses = [loss_of(make_model(SETTINGS), embeddings, batch.labels, compute_ms=0).item() for _ in range(2)]
    assert losses[0] == losses[1] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--torchrec"], "--ranks must be 2 or more"),
        (["--torchrec", "--ranks", "2", "--servers", "1"], "leave --servers out"),
        (["--torchrec", "--persia-python", "python"], "measure one at a time"),
        (["--persia-python", "python", "--ranks", "2"], "one of each role"),
        (["--persia-python", "python", "--delay-ms", "1"], "one of each role"),
        (["--persia-python", "/no/python"], "/no/python: there is no such file"),
    ],
)
def test_options_that_exclude_each_other_are_errors(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hybrid.main(words) == 1
    assert message in capsys.readouterr().err


def test_tables_that_do_not_fit_are_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hybrid, "find_spec", lambda name: None)
    assert hybrid.main(["--torchrec", "--ranks", "2"]) == 1
    assert "needs torchrec and fbgemm-gpu-cpu" in capsys.readouterr().err
    monkeypatch.setattr(hybrid, "find_spec", lambda name: name)
    assert hybrid.main(["--torchrec", "--ranks", "2", "--ids", str(1 << 40)]) == 1
    assert "take fewer --ids" in capsys.readouterr().err


def program(path: Path, text: str) -> Path:
    """Writes a program of the shell."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, server: str, dense: str) -> dict[str, Any]:
    """Runs a job whose roles are programs of the shell."""
    program(tmp_path / "nats-server", "exec sleep 60")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    program(tmp_path / "persia-embedding-parameter-server", server)
    program(tmp_path / "persia-embedding-worker", "exec sleep 60")
    python = program(tmp_path / "python", f'if [ "$3" = loader ]; then exec sleep 60; fi\n{dense}')
    return run_persia(python, tmp_path, SETTINGS, time_limit_s=20)


def test_a_job_of_persia_returns_what_its_dense_worker_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dense = 'echo "a line"; echo "{\\"rounds_s\\": [$WORLD_SIZE], \\"settings\\": $4}"'
    found = job(tmp_path, monkeypatch, server="exec sleep 60", dense=dense)
    assert found == {"rounds_s": [1], "settings": SETTINGS}


def test_a_role_of_persia_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BenchmarkError, match="persia-embedding-parameter-server ended with 3: no memory"):
        job(tmp_path, monkeypatch, server="echo no memory >&2; exit 3", dense="exec sleep 60")
    with pytest.raises(BenchmarkError, match="the dense worker ended with 4: no loader"):
        job(tmp_path, monkeypatch, server="exec sleep 60", dense="echo no loader >&2; exit 4")


def test_an_interpreter_without_persia_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persia_job.shutil, "which", lambda name: None)
    with pytest.raises(BenchmarkError, match="apt install nats-server"):
        find_persia(Path(sys.executable))
    monkeypatch.setattr(persia_job.shutil, "which", lambda name: name)
    with pytest.raises(BenchmarkError, match="cannot import persia: ModuleNotFoundError"):
        find_persia(Path(sys.executable))
    found = program(tmp_path / "python", f"echo {tmp_path}")
    with pytest.raises(BenchmarkError, match="persia-embedding-parameter-server is not a program"):
        find_persia(found)


def test_torchrec_gets_the_ids_of_all_features_in_turn() -> None:
    pytest.importorskip("torchrec")
    from benchmarks.hybrid_peers.torchrec_rank import KeyedBatch

    batch = draw_batches(SETTINGS, 0)[0]
    keyed = KeyedBatch.of(batch)
    assert json.dumps(keyed.features.keys()) == '["feature_0", "feature_1"]'
    assert all(torch.equal(keyed.features[name].values(), ids) for name, ids in batch.ids.items())
    assert keyed.features.stride() == 64 and torch.equal(keyed.labels, batch.labels)
