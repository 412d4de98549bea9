# SPDX-License-Identifier: Apache-2.0
"""The benchmark of training steps over sequences of ids runs with any number of ranks, here on the CPU."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks

from benchmarks.cuda_sequence_model import main
from benchmarks.harness.embedding_layers import ID_MULTIPLIER
from benchmarks.harness.sequence_models import HEADWAY, ID_BITS, TORCHREC, UNLIMITED, ModelOptions

# "--slots" limits the rows of HEADWAY and the slots of TorchRec's managed collisions. UNLIMITED has no limit.
SMALL = ["--base-dim", "4", "--factors", "1", "--batch", "16", "--length", "8", "--warm-up", "2", "--ids", "1000",
         "--slots", "100", "--rounds", "2"]  # fmt: skip

needs_torchrec = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("fbgemm_gpu", "torchrec")), reason="needs TorchRec"
)


@needs_torchrec
def test_every_number_of_ranks_is_measured(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    points = tmp_path / "points.jsonl"
    arguments = ["--device", "cpu", "--ranks", "1", "2", *SMALL, "--json", str(points), "--out", str(tmp_path)]
    assert main(arguments) == 0
    measured = {(point["params"]["ranks"], point["system"]): point for point in map(json.loads, points.open())}
    assert set(measured) == {(ranks, system) for ranks in (1, 2) for system in (HEADWAY, UNLIMITED)}
    for (ranks, system), point in measured.items():
        assert point["samples"] == 2 and math.isfinite(point["loss"]) and point["median_s"] > 0
        assert point["rate"] == pytest.approx(ranks * 16 * 8 / point["median_s"])
        assert (point["table"]["rows"] <= 100) == (system == HEADWAY)
        assert (point["table"]["evicted"] > 0) == (system == HEADWAY), "every step brings new ids"
    table, told = capfd.readouterr()
    assert "2 ranks, dim 4, 100 slots" in table
    # FBGEMM resets the rows that managed collisions reassign on GPUs only.
    assert f"{TORCHREC}, 2 ranks, dim 4, is left out" in told and "reset_weight_momentum" in told


@needs_torchrec
def test_a_run_that_takes_too_long_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", "--time-limit", "1", *SMALL, "--out", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "1 ranks, dim 4, are left out: ranks [0] did not finish within 1 s" in told
    assert "no system could be measured" in told


def test_more_ranks_than_gpus_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--ranks", "99", *SMALL]) == 1
    assert "99 ranks need a GPU each" in capsys.readouterr().err


def learn_with_managed_collisions(rank: int) -> tuple[float, int, int]:
    """Returns the loss of a step with 1,000 ids, half from each rank; slots of this rank; slots that hold an id."""
    from benchmarks.harness.sequence_models import import_torchrec, make_features, make_model

    import_torchrec()
    from torchrec.modules.mc_modules import MCHManagedCollisionModule

    library = torch.library.Library("fbgemm", "IMPL")
    # FBGEMM has no CPU kernel for it. The rows are new, so nothing needs a reset.
    library.impl("reset_weight_momentum", lambda *_: None, "CPU")
    options = ModelOptions(dim=4, slots=2000, optimizer="row_wise_adagrad", eviction_interval=1,
                           device=torch.device("cpu"), group=dist.new_group(backend="gloo"))  # fmt: skip
    model = make_model(TORCHREC, options)
    ids_BL = (torch.arange(rank, 1000, 2) * ID_MULTIPLIER & (1 << ID_BITS) - 1).view(-1, 10)
    loss = model(make_features(ids_BL))
    loss.backward()
    (collisions,) = (module for module in model.modules() if isinstance(module, MCHManagedCollisionModule))
    return loss.item(), collisions.output_size(), collisions.output_size() - 1 - int(collisions.open_slots())


@needs_torchrec
def test_managed_collisions_share_slots_and_ids_among_ranks() -> None:
    results = run_ranks(learn_with_managed_collisions, 2, backend="gloo")
    assert sum(num_ids for _, _, num_ids in results) == 1000
    for loss, num_slots, num_ids in results:
        assert math.isfinite(loss)
        assert num_slots == 1000
        assert 450 <= num_ids <= 550
