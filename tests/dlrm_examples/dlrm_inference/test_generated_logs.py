# SPDX-License-Identifier: Apache-2.0
"""Generated logs can be read back, respect the cardinalities, and are skewed like click logs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dlrm_examples.dlrm_inference.generate import ALI_CCP_CARDINALITIES, main, write_ali_ccp_log, write_criteo_log
from dlrm_examples.support.data.ali_ccp import ALI_CCP, FIELDS
from dlrm_examples.support.data.columnar_store import open_or_convert
from dlrm_examples.support.data.criteo import CRITEO, KAGGLE_CARDINALITIES, TERABYTE_CARDINALITIES
from dlrm_examples.support.data.zipf import draw_zipf, scatter_32_bits

ROWS = 5000


def test_the_kaggle_tables_hold_33_76_million_rows() -> None:
    assert len(KAGGLE_CARDINALITIES) == len(TERABYTE_CARDINALITIES) == 26
    assert round(sum(KAGGLE_CARDINALITIES) / 1e6, 2) == 33.76


@pytest.mark.parametrize("name", ["log.tsv", "log.tsv.gz"])
def test_a_criteo_log_respects_the_cardinalities(tmp_path: Path, name: str) -> None:
    write_criteo_log(tmp_path / name, num_rows=ROWS, seed=3)

    log = open_or_convert(tmp_path / name, CRITEO, store_root=tmp_path / "store")
    columns = log.read_columns(CRITEO.sparse_names, num_rows=ROWS)

    assert log.manifest.num_rows == ROWS
    assert log.manifest.malformed_count == 0
    for column, cardinality in zip(columns.values(), KAGGLE_CARDINALITIES, strict=True):
        distinct = len(set(column[column != 0].tolist()))  # An empty field is read as 0.
        assert distinct <= cardinality
        if cardinality <= 30:
            assert distinct == cardinality, "every value of a small table occurs"
        if cardinality > 100_000:
            assert distinct > ROWS / 10


def test_a_criteo_log_has_missing_and_negative_integers(tmp_path: Path) -> None:
    write_criteo_log(tmp_path / "log.tsv", num_rows=ROWS)
    fields = [line.split("\t") for line in (tmp_path / "log.tsv").read_text().splitlines()]
    integers = np.array([row[1:14] for row in fields])
    assert (integers == "").any(axis=0).all()
    assert any(value.startswith("-") for value in integers[:, 1])
    assert {row[0] for row in fields} == {"0", "1"}


def test_the_same_seed_writes_the_same_log(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_criteo_log(tmp_path / name, num_rows=100, seed=seed)
    first, second, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == second != other


def test_an_ali_ccp_log_can_be_read_back(tmp_path: Path) -> None:
    write_ali_ccp_log(tmp_path / "ali", num_rows=ROWS, rows_per_group=7)

    log = open_or_convert(tmp_path / "ali", ALI_CCP, store_root=tmp_path / "store")

    assert log.manifest.num_rows == ROWS
    assert log.manifest.malformed_count == 0
    for field, max_id in zip(FIELDS, log.manifest.max_ids, strict=True):
        assert max_id < ALI_CCP_CARDINALITIES[field]
    users = log.read_columns(["field_101"], num_rows=ROWS)["field_101"]
    assert (users[:7] == users[0]).all(), "rows of a group share the user"


@pytest.mark.parametrize("exponent", [0.8, 1.05, 1.2])
def test_zipf_follows_its_power_law(exponent: float) -> None:
    num_values, size = 1000, 200_000
    drawn = draw_zipf(np.random.default_rng(0), num_values=num_values, exponent=exponent, size=size)
    counts = Counter(drawn.tolist())
    weights = np.arange(1, num_values + 1) ** -exponent
    head = sum(counts[rank] for rank in range(10, 100)) / sum(counts[rank] for rank in range(10, num_values))
    expected = weights[10:100].sum() / weights[10:].sum()
    assert drawn.min() == 0
    assert drawn.max() < num_values
    assert head == pytest.approx(expected, rel=0.03)
    assert counts[0] > counts[10] > counts[100]


def test_zipf_over_one_value_is_that_value() -> None:
    assert draw_zipf(np.random.default_rng(0), num_values=1, exponent=1.1, size=5).tolist() == [0] * 5


@pytest.mark.parametrize(("num_values", "exponent"), [(0, 1.1), (10, 0.0), (10, 1.0), (10, -1.0)])
def test_zipf_refuses_what_it_cannot_draw(num_values: int, exponent: float) -> None:
    with pytest.raises(ValueError, match="num_values >= 1"):
        draw_zipf(np.random.default_rng(0), num_values=num_values, exponent=exponent, size=1)


def test_scattering_is_one_to_one() -> None:
    scattered = scatter_32_bits(np.arange(1_000_000), salt=25)
    assert len(np.unique(scattered)) == 1_000_000


def test_the_command_checks_its_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["criteo", str(tmp_path / "log.tsv"), "--rows", "0"])
    assert "--rows must be at least 1, not 0" in capsys.readouterr().err
    main(["criteo", str(tmp_path / "log.tsv"), "--rows", "10", "--cardinalities", "terabyte"])
    assert len((tmp_path / "log.tsv").read_text().splitlines()) == 10
