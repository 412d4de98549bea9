# SPDX-License-Identifier: Apache-2.0
"""The columnar store: conversion of files and directories, reuse, and malformed lines.

A store caches a click log as Parquet files, one part per block of source lines, with a manifest. These tests write
Criteo lines whose first integer is the number of the line, so the rows of a store tell which lines it holds.
"""

from __future__ import annotations

import gzip
import os
from codecs import BOM_UTF8
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dlrm_examples.support.data import columnar_store, log_files
from dlrm_examples.support.data.columnar_store import ColumnarLog, open_or_convert
from dlrm_examples.support.data.criteo import CRITEO
from dlrm_examples.support.data.log_files import list_log_files, read_blocks
from dlrm_examples.support.data.log_format import DataError


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Sets blocks of 4 lines, so that a few lines fill several blocks."""
    monkeypatch.setattr(log_files, "BLOCK_LINES", 4)
    return 4


def criteo_line(number: int) -> str:
    return "\t".join([str(number % 2), str(number), *["3"] * 12, f"{number:x}", *["ff"] * 25]) + "\n"


def write_lines(path: Path, numbers: range) -> Path:
    text = "".join(criteo_line(number) for number in numbers).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def numbers_in(log: ColumnarLog) -> list[int]:
    return log.read_columns(["integer_1"], num_rows=log.manifest.num_rows)["integer_1"].astype(int).tolist()


def test_blocks_carry_the_line_numbers_of_their_file(tmp_path: Path, small_blocks: int) -> None:
    first = write_lines(tmp_path / "a.tsv", range(6))
    second = write_lines(tmp_path / "b.tsv", range(3))

    blocks = [(block.path, block.first_line_number, len(block.lines)) for block in read_blocks([first, second])]

    assert blocks == [(first, 1, 4), (first, 5, 2), (second, 1, 3)]


@pytest.mark.parametrize("name", ["log.tsv", "log.txt.gz"])
def test_a_file_is_converted_in_line_order(tmp_path: Path, small_blocks: int, name: str) -> None:
    source = write_lines(tmp_path / name, range(11))

    log = open_or_convert(source, CRITEO, store_root=tmp_path / "store")

    assert numbers_in(log) == list(range(11))
    assert log.manifest.complete
    assert log.manifest.max_ids[0] == 10  # The first category is the number of the line, too.


def test_a_directory_is_converted_file_after_file(tmp_path: Path, small_blocks: int) -> None:
    write_lines(tmp_path / "in" / "b.tsv", range(9, 14))
    write_lines(tmp_path / "in" / "a.tsv.gz", range(9))

    assert numbers_in(open_or_convert(tmp_path / "in", CRITEO, store_root=tmp_path / "store")) == list(range(14))


def test_missing_values_are_stored_as_missing_and_read_as_zero(tmp_path: Path) -> None:
    source = tmp_path / "log.tsv"
    source.write_text("0\t-2" + "\t" * 38 + "\n")

    log = open_or_convert(source, CRITEO, store_root=tmp_path / "store")

    part = columnar_store.pq.read_table(log.path / next(iter(log.manifest.part_rows)))
    assert part.column("integer_1").to_pylist() == [-2.0]
    assert part.column("integer_2").null_count == 1
    assert part.column("category_26").null_count == 1
    assert log.read_columns(["category_26"], num_rows=1)["category_26"].tolist() == [0]


def test_columns_start_again_at_the_end_of_the_store(tmp_path: Path) -> None:
    log = open_or_convert(write_lines(tmp_path / "log.tsv", range(3)), CRITEO, store_root=tmp_path / "store")
    assert log.read_columns(["integer_1"], num_rows=7)["integer_1"].tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_malformed_lines_are_counted_with_file_and_line_and_left_out(tmp_path: Path, small_blocks: int) -> None:
    source = write_lines(tmp_path / "log.tsv", range(6))
    lines = source.read_text().splitlines(keepends=True)
    source.write_text("".join([*lines[:2], "broken\n", *lines[2:], "1\t2\n"]))

    log = open_or_convert(source, CRITEO, store_root=tmp_path / "store")

    assert numbers_in(log) == list(range(6))
    assert log.manifest.malformed_count == 2
    assert log.manifest.malformed_reports == (
        f"{source}:3: 1 tab-separated fields, expected 40",
        f"{source}:8: 2 tab-separated fields, expected 40",
    )


def test_strict_stops_at_a_malformed_line_also_when_the_store_exists(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "log.tsv", range(3))
    source.write_text(source.read_text() + "broken\n")
    for _ in range(2):
        with pytest.raises(DataError, match=r"1 malformed lines \(--strict\); the first: .*log\.tsv:4: "):
            open_or_convert(source, CRITEO, store_root=tmp_path / "store", strict=True)


def test_a_store_is_reused_until_the_source_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_lines(tmp_path / "log.tsv", range(3))
    first = open_or_convert(source, CRITEO, store_root=tmp_path / "store")
    written = (first.path / "manifest.json").stat().st_mtime_ns

    again = open_or_convert(source, CRITEO, store_root=tmp_path / "store")
    assert again == first
    assert (again.path / "manifest.json").stat().st_mtime_ns == written

    os.utime(source, ns=(1, 1))
    assert open_or_convert(source, CRITEO, store_root=tmp_path / "store").path != first.path
    monkeypatch.setattr(columnar_store, "STORE_VERSION", columnar_store.STORE_VERSION + 1)
    assert open_or_convert(source, CRITEO, store_root=tmp_path / "store").path not in (first.path, again.path)


def test_a_damaged_store_is_made_again(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "log.tsv", range(3))
    log = open_or_convert(source, CRITEO, store_root=tmp_path / "store")
    (log.path / next(iter(log.manifest.part_rows))).unlink()

    assert numbers_in(open_or_convert(source, CRITEO, store_root=tmp_path / "store")) == [0, 1, 2]


def test_only_as_many_lines_as_needed_are_converted(tmp_path: Path, small_blocks: int) -> None:
    source = write_lines(tmp_path / "log.tsv", range(40))

    log = open_or_convert(source, CRITEO, store_root=tmp_path / "store", num_rows=5)
    assert numbers_in(log) == list(range(8))  # Whole blocks of 4 lines.
    assert not log.manifest.complete

    assert open_or_convert(source, CRITEO, store_root=tmp_path / "store", num_rows=3) == log
    more = open_or_convert(source, CRITEO, store_root=tmp_path / "store", num_rows=9)
    assert numbers_in(more) == list(range(12))
    whole = open_or_convert(source, CRITEO, store_root=tmp_path / "store")
    assert numbers_in(whole) == list(range(40))
    assert open_or_convert(source, CRITEO, store_root=tmp_path / "store", num_rows=3).manifest.num_rows >= 8


def test_blocks_are_converted_until_there_are_enough_usable_rows(tmp_path: Path, small_blocks: int) -> None:
    source = tmp_path / "log.tsv"
    source.write_text("".join(criteo_line(number) if number % 3 == 0 else "broken\n" for number in range(90)))

    log = open_or_convert(source, CRITEO, store_root=tmp_path / "store", num_rows=7)

    assert numbers_in(log)[:7] == [0, 3, 6, 9, 12, 15, 18]
    assert not log.manifest.complete
    assert open_or_convert(source, CRITEO, store_root=tmp_path / "store", num_rows=7) == log
    assert open_or_convert(source, CRITEO, store_root=tmp_path / "store", num_rows=31).manifest.complete


def test_rows_behind_many_unusable_lines_are_found(tmp_path: Path, small_blocks: int) -> None:
    source = tmp_path / "log.tsv"
    source.write_text("broken\n" * 37 + "".join(criteo_line(number) for number in range(20)))
    log = open_or_convert(source, CRITEO, store_root=tmp_path / "store", num_rows=5)

    assert numbers_in(log)[:5] == [0, 1, 2, 3, 4]
    assert log.manifest.malformed_count == 37


def kaggle_folder(folder: Path) -> Path:
    """Makes Criteo's challenge as it is unpacked: of its three files, only the last one by name has rows."""
    write_lines(folder / "train.txt", range(10))
    (folder / "readme.txt").write_text("Display Advertising Challenge\n")
    (folder / "test.txt").write_text("".join(criteo_line(number)[2:] for number in range(30)))
    return folder


@pytest.mark.parametrize("num_rows", [None, 9])
def test_files_without_a_usable_row_are_passed_over(tmp_path: Path, small_blocks: int, num_rows: int | None) -> None:
    source = kaggle_folder(tmp_path / "dac")
    log = open_or_convert(source, CRITEO, store_root=tmp_path / "store", num_rows=num_rows, strict=True)

    assert numbers_in(log) == list(range(10))
    assert log.manifest.malformed_count == 0
    lines_read = 30 if num_rows is None else small_blocks
    assert log.manifest.passed_over == (
        f"{source}/readme.txt: no usable row in the 1 lines read; "
        f"{source}/readme.txt:1: 1 tab-separated fields, expected 40",
        f"{source}/test.txt: no usable row in the {lines_read} lines read; "
        f"{source}/test.txt:1: 39 tab-separated fields, expected 40",
    )


def test_hidden_files_of_a_directory_are_not_read(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "day_0.tsv", range(3))
    for name in (".day_0.tsv", "._day_0.tsv", ".hidden.txt.gz"):
        write_lines(tmp_path / "in" / name, range(50, 60))
    assert numbers_in(open_or_convert(tmp_path / "in", CRITEO, store_root=tmp_path / "store")) == [0, 1, 2]


def test_a_directory_of_hidden_files_alone_has_no_log(tmp_path: Path) -> None:
    write_lines(tmp_path / ".day_0.tsv", range(3))
    with pytest.raises(DataError, match=r"no file ending in \.tsv"):
        list_log_files(tmp_path, suffixes=(".tsv",))
    assert list_log_files(tmp_path / ".day_0.tsv", suffixes=(".tsv",)) == [tmp_path / ".day_0.tsv"]


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_byte_order_mark_is_no_part_of_the_first_line(
    tmp_path: Path, small_blocks: int, compress: Callable[[bytes], bytes]
) -> None:
    text = "".join(criteo_line(number) for number in range(6)).encode()
    source = tmp_path / ("log.tsv" if compress is bytes else "log.tsv.gz")
    source.write_bytes(compress(BOM_UTF8 + text))

    assert [block.lines for block in read_blocks([source])] == [
        text.splitlines(keepends=True)[:4],
        text.splitlines(keepends=True)[4:],
    ]
    assert numbers_in(open_or_convert(source, CRITEO, store_root=tmp_path / "store")) == list(range(6))


@pytest.mark.parametrize("content", [b"", b"\xef", b"\xef\xbb", b"a", b"ab\n"])
def test_a_file_shorter_than_a_byte_order_mark_is_read_whole(tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "log.tsv"
    source.write_bytes(content)
    assert [line for block in read_blocks([source]) for line in block.lines] == content.splitlines(keepends=True)


def test_a_file_of_a_byte_order_mark_alone_is_empty(tmp_path: Path) -> None:
    source = tmp_path / "log.tsv"
    source.write_bytes(BOM_UTF8)
    assert list(read_blocks([source])) == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no such file or directory"),
        (lambda path: path.mkdir(), "no file ending in .tsv"),
        (lambda path: path.write_text(""), "no usable row; the log is empty"),
        (lambda path: path.write_text("a\nb\n"), "no usable row; .*:1: 1 tab-separated fields"),
    ],
)
def test_data_that_cannot_be_used_is_one_clear_error(tmp_path: Path, make: object, message: str) -> None:
    source = tmp_path / "log"
    make(source)  # type: ignore[operator]
    with pytest.raises(DataError, match=message):
        open_or_convert(source, CRITEO, store_root=tmp_path / "store")


@pytest.mark.parametrize("content", [b"not gzip", gzip.compress(b"x" * 10_000)[:30]])
def test_a_damaged_gzip_file_is_named(tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "log.tsv.gz"
    source.write_bytes(content)
    with pytest.raises(DataError, match=r"log\.tsv\.gz: cannot be read near line 1"):
        open_or_convert(source, CRITEO, store_root=tmp_path / "store")
    assert not list((tmp_path / "store").iterdir()), "nothing half-made is left"


def test_ids_are_64_bit_integers(tmp_path: Path) -> None:
    log = open_or_convert(write_lines(tmp_path / "log.tsv", range(3)), CRITEO, store_root=tmp_path / "store")
    assert log.read_columns(["category_1"], num_rows=2)["category_1"].dtype == np.int64
