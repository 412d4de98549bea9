"""Counts read from a runner's output match the runner's own."""

from pathlib import Path

import pytest
from test_counts import Counts, counts_in_junit, counts_in_text, failures_in_text

CTEST_JUNIT = """<testsuite name="x" tests="4" failures="1" disabled="0" skipped="1">
  <testcase name="a" status="run"/>
  <testcase name="b" status="fail"><failure message=""/></testcase>
  <testcase name="c" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/></testcase>
  <testcase name="d" status="run"/>
</testsuite>"""
PYTEST_JUNIT = """<testsuites><testsuite>
  <testcase name="a"/><testcase name="b"><error message="in set-up"/></testcase>
  <testcase name="c"><skipped type="pytest.xfail"/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("a\n3 passed, 1 failed, 2 skipped\n", Counts(passed=3, failed=1, skipped=2)),
        ("3 passed, 0 failed", Counts(passed=3)),
        ("1 passed, 1 failed\n5 passed, 0 failed, 1 skipped\nlogs in x\n", Counts(passed=5, skipped=1)),
        ("all of 3 passed, 0 failed, as it seems", None),
        ("", None),
    ],
)
def test_the_last_summary_line_counts(text: str, counts: Counts | None) -> None:
    assert counts_in_text(text) == counts


@pytest.mark.parametrize(
    ("content", "counts"),
    [
        (CTEST_JUNIT, Counts(passed=2, failed=1, skipped=1)),
        (PYTEST_JUNIT, Counts(passed=1, failed=1, skipped=1)),
        ("<testsuite><testcase", None),
    ],
)
def test_junit_of_ctest_and_pytest_is_counted(tmp_path: Path, content: str, counts: Counts | None) -> None:
    path = tmp_path / "results.xml"
    path.write_text(content, encoding="utf-8")
    assert counts_in_junit(path) == counts


def test_a_missing_junit_file_has_no_counts(tmp_path: Path) -> None:
    assert counts_in_junit(tmp_path / "none.xml") is None


def test_counts_print_as_the_summary_line() -> None:
    counts = Counts(passed=2) + Counts(failed=1, skipped=3)
    assert str(counts) == "2 passed, 1 failed, 3 skipped"
    assert counts_in_text(str(counts)) == counts


GTEST_BLOCK = """\
[ RUN      ] Group/FailureTest.A/tcp
file.cpp:83: Failure
rank 0: timed out
[  FAILED  ] Group/FailureTest.A/tcp, where GetParam() = tcp (30109 ms)"""


@pytest.mark.parametrize(
    ("text", "failures"),
    [
        (f"[       OK ] B (1 ms)\n{GTEST_BLOCK}\n[  FAILED  ] 1 test, listed below:\n", [GTEST_BLOCK]),
        ("The following tests FAILED:\n\t 12 - Engine.C (SEGFAULT)\n\t 13 - D (Timeout)\n", 2),
        ("The following tests did not run:\n\t 94 - Engine.C (Skipped)\n", []),
        ("FAILED tests/x.py::test_a[1-2] - assert 1 == 2\nERROR tests/x.py::test_b - OSError\n", 2),
        ("test_all_gather: failed (rank 1: timed out)\n", ["test_all_gather: failed (rank 1: timed out)"]),
        ("3 passed, 1 failed\n", []),
    ],
)
def test_what_is_said_of_failed_tests_is_found(text: str, failures: list[str] | int) -> None:
    found = failures_in_text(text)
    assert (len(found) if isinstance(failures, int) else found) == failures


def test_of_a_long_failure_the_end_is_kept() -> None:
    (failure,) = failures_in_text("[ RUN      ] A\n" + "noise\n" * 100 + "the cause\n[  FAILED  ] A (1 ms)\n")
    assert failure.endswith("the cause\n[  FAILED  ] A (1 ms)")
    assert failure.count("\n") < 40
