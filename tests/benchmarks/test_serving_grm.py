# SPDX-License-Identifier: Apache-2.0
"""``headway bench serving_grm`` measures a small model on a CPU, and all replies have the bits of ``Predictor``."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from headway.cli.built_programs import program_path

from benchmarks import serving_grm


def test_requests_have_one_user_and_batches_join_them() -> None:
    with pytest.raises(SystemExit):
        serving_grm.main(["--device", "cpu", "--buckets", "0:8"])  # A bucket needs a user.
    options = Namespace(candidates=4, mean=10, longest=20, requests=4, ids=100)
    samples = serving_grm.draw_samples(options)
    both = serving_grm.join(samples[:2])
    assert both.num_samples == 2 and both.num_targets == 2 * options.candidates
    assert torch.equal(both.event_lengths, torch.cat([sample.event_lengths for sample in samples[:2]]))
    request = serving_grm.request_of(samples[1])
    assert request.items is not None and request.items.tolist() == [options.candidates]
    ids, lengths = request.features["item"]
    assert lengths.tolist() == samples[1].history_lengths.tolist() and len(ids) == int(lengths)
    assert torch.equal(torch.cat([ids, request.features["target_item"][0]]), samples[1].events["item"])


@pytest.mark.skipif(not program_path("headway_serve").exists(), reason="headway_serve is not built: gRPC is missing")
def test_a_small_model_is_measured_beside_its_eager_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "small", "--device", "cpu", "--candidates", "4", "--mean", "10", "--longest", "20"]
    words += ["--requests", "4", "--ids", "100", "--seconds", "1", "--rounds", "1", "--buckets", "2:44"]
    words += ["--clients", "3", "--eager-batches", "2", "--json", str(tmp_path / "points.jsonl")]
    assert serving_grm.main(words) == 0
    points = [json.loads(line) for line in (tmp_path / "points.jsonl").read_text().splitlines()]
    assert [point["system"] for point in points] == ["eager, one request", "eager best", "headway serve, 3 clients"]
    assert points[0]["ratio"] == 1 and all(point["rate"] > 0 for point in points)
    assert points[2]["num_right"] > 0 and points[2]["num_wrong"] == 0
    assert "wrong replies" in capsys.readouterr().out
