# SPDX-License-Identifier: Apache-2.0
"""Ali-CCP's format: skeleton rows joined with the common features that they name, one id and value per field.

A skeleton row is ``sample id,click,conversion,common feature id,number of features,features``. A row of common features
begins with the common feature id. Byte 1 separates features, byte 2 field and id, byte 3 id and value.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dlrm_examples.support.data.ali_ccp import ALI_CCP, FIELDS, parse_common_line, parse_skeleton_line
from dlrm_examples.support.data.columnar_store import open_or_convert
from dlrm_examples.support.data.log_format import DataError, MalformedLineError
from dlrm_examples.support.data.log_formats import detect_format


def features(*entries: tuple[str, int, float]) -> str:
    return "\x01".join(f"{field}\x02{feature_id}\x03{value}" for field, feature_id, value in entries)


COMMON = f"c1,3,{features(('101', 7, 1.0), ('109_14', 30, 0.69315), ('109_14', 31, 1.38629))}\n"
SKELETON = f"1,1,0,c1,2,{features(('205', 99, 1.0), ('508', 5, 2.5))}\n"


def test_there_are_23_tables() -> None:
    assert len(FIELDS) == 23 == len(ALI_CCP.sparse_names)


def test_a_row_is_joined_with_its_common_features() -> None:
    common = dict([parse_common_line(COMMON.encode())])

    row = parse_skeleton_line(SKELETON.encode(), common)

    assert row.label == 1
    ids = dict(zip(FIELDS, row.sparse, strict=True))
    assert {field: value for field, value in ids.items() if value is not None} == {
        "101": 7,
        "205": 99,
        "508": 5,
        "109_14": 31,
    }
    assert dict(zip(ALI_CCP.dense_names, row.dense, strict=True))["value_109_14"] == 1.38629
    assert dict(zip(ALI_CCP.dense_names, row.dense, strict=True))["value_508"] == 2.5


def test_of_a_repeated_field_the_first_of_the_largest_values_is_kept() -> None:
    text = features(("110_14", 1, 0.5), ("110_14", 2, 2.0), ("110_14", 3, 2.0))
    assert parse_common_line(f"c,3,{text}\n".encode())[1][b"110_14"] == (2, 2.0)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("1,1,0,c1,2\n", "5 comma-separated fields"),
        (SKELETON.replace("1,1,0", "1,x,0", 1), "click"),
        (SKELETON.replace("c1", "c2"), "common feature id c2 is not known"),
        (SKELETON.replace(",2,", ",3,"), "2 features, but the line announces 3"),
        (SKELETON.replace("\x03", ":"), "feature"),
        (SKELETON.replace("99\x031.0", "99\x03nan"), "value"),
        (SKELETON.replace("99\x03", f"{2**63}\x03"), "id b'9223372036854775808' does not fit int64"),
        (SKELETON.replace("99\x03", "9" * 5000 + "\x03"), "id b'999999999999999999999999' does not fit int64"),
        (SKELETON.replace(",2,", f",{'9' * 5000},"), "number of features"),
    ],
)
def test_a_malformed_line_says_what_is_wrong(broken: str, reason: str) -> None:
    common = dict([parse_common_line(COMMON.encode())])
    with pytest.raises(MalformedLineError) as raised:
        parse_skeleton_line(broken.encode(), common)
    assert str(raised.value).startswith(reason)


def test_a_directory_is_converted_and_both_kinds_of_malformed_lines_are_counted(tmp_path: Path) -> None:
    source = tmp_path / "ali"
    source.mkdir()
    (source / "common_features_train.csv").write_text(COMMON + "c2,1,broken\n")
    (source / "sample_skeleton_train.csv").write_text(SKELETON + SKELETON.replace("c1", "c2"))

    assert detect_format(source) is ALI_CCP
    log = open_or_convert(source, ALI_CCP, store_root=tmp_path / "store")

    assert log.manifest.num_rows == 1
    assert log.manifest.malformed_count == 2
    assert [report.split(": ")[0].rsplit("/")[-1] for report in log.manifest.malformed_reports] == [
        "common_features_train.csv:2",
        "sample_skeleton_train.csv:2",
    ]
    # The log has one row, so the column starts again.
    assert log.read_columns(["field_205"], num_rows=2)["field_205"].tolist() == [99, 99]


def test_a_directory_without_common_features_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sample_skeleton_train.csv").write_text(SKELETON)
    with pytest.raises(DataError, match=r"no common_features\*\.csv"):
        open_or_convert(tmp_path, ALI_CCP, store_root=tmp_path / "store")
