# SPDX-License-Identifier: Apache-2.0
"""KuaiRand, MovieLens and Criteo as batches in time order, and one line of error for unreadable files."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from kuairand_files import DAY_MS, FIRST_MS, LOG_COLUMNS, VIDEO_COLUMNS, write_csv, write_features

from dlrm_examples.streaming_ctr.data.read_log import read_log
from dlrm_examples.support.data.log import Log
from dlrm_examples.support.data.log_format import DataError

HOUR_MS = 3_600_000


def ids(log: Log, name: str) -> list[list[int]]:
    column = log.columns[name]
    return [part.tolist() for part in column.values.split(column.lengths.tolist())]


def write_log(directory: Path, rows: list[tuple[int, ...]], *, name: str = "log_standard_pure.csv.gz") -> Path:
    """Writes rows of user, video, milliseconds after the first moment, click, long view."""
    full = ([user, video, 0, FIRST_MS + time, click, view, 5000, 1] for user, video, time, click, view in rows)
    write_csv(directory / name, LOG_COLUMNS, full)
    write_features(directory, num_users=3, num_videos=9)
    return directory


def test_kuairand_rows_come_in_time_order_with_all_their_features(tmp_path: Path) -> None:
    write_log(tmp_path, [(1, 4, DAY_MS + 5 * HOUR_MS, 0, 0), (1, 2, HOUR_MS, 1, 0), (9, 30, 2 * HOUR_MS, 1, 1)])
    log = read_log(tmp_path, max_history=3)

    assert log.num_examples == 3
    assert log.num_train == 2  # The last day is left for the test.
    assert ids(log, "user_id") == [[1], [9], [1]]
    assert ids(log, "video_id") == [[2], [30], [4]]
    assert ids(log, "hour") == [[1], [2], [5]]  # The hour comes from time_ms, not from hourmin.
    assert ids(log, "author_id") == [[102], [], [104]]  # Video 30 has no features.
    assert ids(log, "tags") == [[7, 39], [], [7]]
    assert ids(log, "recent_videos") == [[], [], [2]]
    assert [len(profile) for profile in ids(log, "user_profile")] == [26, 0, 26]
    assert [len(pause) for pause in ids(log, "pause")] == [0, 0, 1]
    assert log.labels.tolist() == [[1, 0], [1, 1], [0, 0]]


def test_repeated_rows_are_left_out_also_over_files(tmp_path: Path) -> None:
    write_log(tmp_path, [(1, 4, 5, 1, 0), (1, 4, 5, 1, 0), (1, 4, 6, 1, 0)])
    write_log(tmp_path, [(1, 4, 5, 1, 0), (2, 4, 5, 1, 0)], name="log_standard_more.csv")
    log = read_log(tmp_path, max_history=3)

    assert sorted(ids(log, "user_id")) == [[1], [1], [2]]
    assert log.remark.startswith("2 repeated rows left out")


def test_a_history_from_before_the_log_is_seen_only_after_its_last_time(tmp_path: Path) -> None:
    write_log(tmp_path, [(1, 4, 10, 0, 0), (1, 5, 30, 0, 0), (2, 6, 30, 0, 0)])
    columns = {"user_id": [1, 2], "last_time_ms": [FIRST_MS + 20, FIRST_MS - 9], "watch_seq": [[70, 71, 72], [80, 81]]}
    pq.write_table(pa.table(columns), tmp_path / "histories.parquet")

    assert ids(read_log(tmp_path, max_history=9), "recent_videos") == [[], [4, 70, 71, 72], [80, 81]]
    assert ids(read_log(tmp_path, max_history=2), "recent_videos") == [[], [71, 72], [80, 81]]


def write_histories(directory: Path, *, users: pa.Array, last_ms: pa.Array, videos: pa.Array) -> Path:
    write_log(directory, [(1, 4, 10, 0, 0), (2, 5, 10, 0, 0)])
    path = directory / "histories_first.parquet"
    pq.write_table(pa.table({"user_id": users, "last_time_ms": last_ms, "watch_seq": videos}), path)
    return path


BEYOND_FLOAT64 = [2**53 + 1, 2**53 + 3, 2**62 + 1]
EARLIER = [FIRST_MS - 9, FIRST_MS - 8]


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()])
@pytest.mark.parametrize("list_of", [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 3)])
def test_ids_of_histories_keep_every_bit_whatever_integers_they_are(
    tmp_path: Path, kind: pa.DataType, list_of: Callable[[pa.DataType], pa.DataType]
) -> None:
    videos = pa.array([BEYOND_FLOAT64, BEYOND_FLOAT64[::-1]], list_of(kind))
    write_histories(tmp_path, users=pa.array([1, 2], kind), last_ms=pa.array(EARLIER, kind), videos=videos)
    log = read_log(tmp_path, max_history=9)

    assert ids(log, "recent_videos") == [BEYOND_FLOAT64, BEYOND_FLOAT64[::-1]]
    assert log.columns["video_id"].values.dtype == torch.int64


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint16(), pa.int32()])
def test_ids_of_histories_may_be_narrow_integers(tmp_path: Path, kind: pa.DataType) -> None:
    videos = pa.array([[7], []], pa.list_(kind))
    write_histories(tmp_path, users=pa.array([1, 2], kind), last_ms=pa.array(EARLIER), videos=videos)
    assert ids(read_log(tmp_path, max_history=9), "recent_videos") == [[7], []]


def test_ids_of_histories_may_be_categories_of_integers(tmp_path: Path) -> None:
    users = pa.array([1, 2]).dictionary_encode()  # Parquet gives the integers back.
    write_histories(tmp_path, users=users, last_ms=pa.array(EARLIER), videos=pa.array([[7], [8]]))
    assert ids(read_log(tmp_path, max_history=9), "recent_videos") == [[7], [8]]


GOOD = {"users": pa.array([1, 2]), "last_ms": pa.array(EARLIER), "videos": pa.array([[7], [8]])}


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("users", pa.array([1, 2**63], pa.uint64()), "'user_id': ids must fit int64"),
        ("users", pa.array([1.0, 2.0]), "'user_id': .*type double"),
        ("users", pa.array([1, None]), "'user_id': 1 of 2 values are null"),
        ("users", pa.array([None, None]), "'user_id': .*type null"),
        ("users", pa.array(["1", "2"]), "'user_id': .*type string"),
        ("users", pa.array(["1", "2"]).dictionary_encode(), "'user_id': .*type dictionary"),
        ("users", pa.array([True, False]), "'user_id': .*type bool"),
        ("last_ms", pa.array(EARLIER, pa.timestamp("ms")), "'last_time_ms': .*type timestamp"),
        ("last_ms", pa.array([FIRST_MS, None]), "'last_time_ms': 1 of 2 values are null"),
        ("videos", pa.array([[7], [2**64 - 1]], pa.list_(pa.uint64())), "'watch_seq': ids must fit int64"),
        ("videos", pa.array([[7.0], [8.5]]), "'watch_seq': .*type double"),
        ("videos", pa.array([[7, None], [8]]), "'watch_seq': 1 of 3 values are null"),
        ("videos", pa.array([[7], None]), "'watch_seq': 1 of 2 values are null"),
        ("videos", pa.array([7, 8]), "'watch_seq': lists of integers are needed, but the column has type int64"),
    ],
)
def test_a_column_of_histories_that_has_no_int64_ids_is_an_error(
    tmp_path: Path, column: str, values: pa.Array, reason: str
) -> None:
    path = write_histories(tmp_path, **{**GOOD, column: values})
    with pytest.raises(DataError, match=reason) as raised:
        read_log(tmp_path, max_history=9)
    assert str(path) in str(raised.value)


def test_histories_without_a_column_are_an_error(tmp_path: Path) -> None:
    write_log(tmp_path, [(1, 4, 10, 0, 0)])
    pq.write_table(pa.table({"user_id": [1], "watch_seq": [[7]]}), tmp_path / "histories.parquet")
    with pytest.raises(DataError, match=r"histories\.parquet: .*last_time_ms"):
        read_log(tmp_path, max_history=9)


def test_features_of_a_row_do_not_depend_on_rows_at_its_time_or_later(kuairand_directory: Path, tmp_path: Path) -> None:
    lines = (kuairand_directory / "log_standard_pure.csv").read_text().splitlines(keepends=True)
    (tmp_path / "log_standard.csv").write_text("".join(lines[:2001]))
    for path in kuairand_directory.glob("*_features*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    whole, begin = read_log(kuairand_directory, max_history=5), read_log(tmp_path, max_history=5)

    for feature in whole.features:
        assert ids(whole, feature.name)[:2000] == ids(begin, feature.name), feature.name


@pytest.mark.parametrize(
    ("file", "columns", "rows", "reason"),
    [
        ("log_standard_pure.csv.gz", LOG_COLUMNS[:-1], [[1, 2, 0, 5, 1, 1, 9]], "'tab'"),
        ("log_standard_pure.csv.gz", LOG_COLUMNS, [["x", 2, 0, 5, 1, 1, 9, 1]], "invalid value 'x'"),
        (
            "log_standard_pure.csv.gz",
            LOG_COLUMNS,
            [[2**63, 2, 0, 5, 1, 1, 9, 1]],
            "invalid value '9223372036854775808'",
        ),
        ("log_standard_pure.csv.gz", LOG_COLUMNS, [["1.5", 2, 0, 5, 1, 1, 9, 1]], "invalid value '1.5'"),
        ("log_standard_pure.csv.gz", LOG_COLUMNS, [["", 2, 0, 5, 1, 1, 9, 1]], "empty field in column 'user_id'"),
        ("log_standard_pure.csv.gz", LOG_COLUMNS, [[1, 2, 0, 5, 2, 1, 9, 1]], "neither 0 nor 1"),
        ("log_standard_pure.csv.gz", LOG_COLUMNS, [[1, 2, 0]], "Expected 8 columns, got 3"),
        ("log_standard_pure.csv.gz", LOG_COLUMNS, [], "no row"),
        ("video_features_basic_pure.csv", VIDEO_COLUMNS, [[2, 1, 1, "", "", "", "7,b"]], "'tag'.*'b'"),
        ("video_features_basic_pure.csv", VIDEO_COLUMNS, [[2, 1, 1, "", "", "", ""]] * 2, "2 has more than one row"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_reason(
    tmp_path: Path, file: str, columns: tuple[str, ...], rows: list[list[object]], reason: str
) -> None:
    write_log(tmp_path, [(1, 4, 10, 0, 0)])
    write_csv(tmp_path / file, columns, rows)
    with pytest.raises(DataError, match=reason) as raised:
        read_log(tmp_path, max_history=3)
    assert str(tmp_path) in str(raised.value)


def test_a_directory_without_features_is_an_error(tmp_path: Path) -> None:
    write_log(tmp_path, [(1, 4, 10, 0, 0)])
    (tmp_path / "user_features_pure.csv.gz").unlink()
    with pytest.raises(DataError, match="no file user_features"):
        read_log(tmp_path, max_history=3)


def test_movielens_is_sorted_by_time_and_may_end_lines_as_windows_does(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    path.write_bytes(b"userId,movieId,rating,timestamp\r\n1,10,4.0,300\r\n1,11,3.5,100\r\n2,10,5.0,200\r\n")
    log = read_log(path, max_history=3)

    assert ids(log, "movie_id") == [[11], [10], [10]]
    assert ids(log, "recent_movies") == [[], [], [11]]
    assert log.labels.tolist() == [[0], [1], [1]]  # 1: a rating of 4 or more.
    assert read_log(tmp_path, max_history=3).labels.tolist() == log.labels.tolist()


@pytest.mark.parametrize("rating", ["good", "nan", "inf", "-inf", ""])
def test_a_rating_that_is_no_number_is_an_error(tmp_path: Path, rating: str) -> None:
    (tmp_path / "ratings.csv").write_text(f"userId,movieId,rating,timestamp\n1,9,4,300\n1,10,{rating},300\n")
    with pytest.raises(DataError, match=rf"ratings\.csv: .*'rating'.*{rating}"):
        read_log(tmp_path, max_history=3)


def test_criteo_keeps_the_order_of_lines_and_gives_missing_values_an_id(tmp_path: Path) -> None:
    path = tmp_path / "day_0.tsv"
    path.write_text("\t".join(["1", "-2", "3", *[""] * 11, "ffffffff", *[""] * 25]) + "\n" + "0" + "\t" * 39 + "\n")
    log = read_log(path, max_history=3)

    # An integer becomes the index of its logarithmic bucket (negative ones: 0). A missing value has id -1.
    assert ids(log, "integer_1") == [[0], [-1]]
    assert ids(log, "integer_2") == [[4], [-1]]
    assert ids(log, "category_1") == [[0xFFFFFFFF], [-1]]
    assert log.labels.tolist() == [[1], [0]]
    assert log.user_ids is None


def criteo_line(*, label: str = "1\t", category: str = "") -> bytes:
    """A line of Criteo: label, 13 integers, 26 hexadecimal categories, of which the first one is given."""
    return (label + "\t".join(["3"] * 13 + [category] + [""] * 25) + "\r\n").encode()


def test_criteo_passes_over_files_without_a_row_and_hidden_files(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("Display Advertising Challenge\n")
    (tmp_path / "test.txt").write_bytes(criteo_line(label="") * 3)
    (tmp_path / "train.txt").write_bytes(criteo_line(category="a") * 5)
    (tmp_path / ".train.txt").write_bytes(criteo_line(category="b") * 5)
    log = read_log(tmp_path, max_history=3)

    assert ids(log, "category_1") == [[10]] * 5
    assert log.remark.startswith(f"passed over {tmp_path}/readme.txt: no usable row in the 1 lines read")
    assert f"passed over {tmp_path}/test.txt: no usable row in the 3 lines read" in log.remark


def test_a_malformed_line_in_a_file_of_criteo_with_rows_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("Display Advertising Challenge\n")
    (tmp_path / "train.txt").write_bytes(criteo_line() + b"broken\n")
    with pytest.raises(DataError, match=r"^1 malformed lines; the first: .*train\.txt:2: "):
        read_log(tmp_path, max_history=3)


def test_a_byte_order_mark_of_criteo_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "day_0.tsv").write_bytes(BOM_UTF8 + criteo_line() * 4)
    assert read_log(tmp_path, max_history=3).num_examples == 4


def test_a_byte_order_mark_of_ratings_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_bytes(BOM_UTF8 + b"userId,movieId,rating,timestamp\n1,10,4.0,300\n")
    assert ids(read_log(tmp_path, max_history=3), "user_id") == [[1]]


def test_categories_of_criteo_may_have_64_bits(tmp_path: Path) -> None:
    categories = ("7" + "f" * 15, "8" + "0" * 15, "fffffffffffffffe", "20000000000001")
    (tmp_path / "day_0.tsv").write_bytes(b"".join(criteo_line(category=each) for each in categories))
    log = read_log(tmp_path, max_history=3)

    assert ids(log, "category_1") == [[2**63 - 1], [-(2**63)], [-2], [2**53 + 1]]
    assert ids(log, "category_2") == [[-1]] * 4


def test_the_category_of_criteo_that_stands_for_a_missing_value_is_refused(tmp_path: Path) -> None:
    (tmp_path / "day_0.tsv").write_bytes(criteo_line(category="f" * 16))
    with pytest.raises(DataError, match="ffffffffffffffff"):
        read_log(tmp_path, max_history=3)


def test_a_malformed_line_of_criteo_is_named(tmp_path: Path) -> None:
    (tmp_path / "day_0.tsv").write_text("1\t2\n")
    with pytest.raises(DataError, match=r"day_0\.tsv:1: 2 tab-separated fields"):
        read_log(tmp_path, max_history=3)
