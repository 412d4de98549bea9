"""The runner of the tests in the RDMA guest."""

import pytest
from rdma_guest.guest_suite import count_results, main
from test_counts import Counts

OUTPUT = """\
[ RUN      ] Engine/PutConformance.A/verbs
[       OK ] Engine/PutConformance.A/verbs (996 ms)
[ RUN      ] Engine/LossConformance.B/verbs
file.hpp:64: Failure
[  FAILED  ] Engine/LossConformance.B/verbs, where GetParam() = verbs (539 ms)
[ RUN      ] Engine/MemoryConformance.C/verbs
[  SKIPPED ] Engine/MemoryConformance.C/verbs (41 ms)
[  PASSED  ] 1 test.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] Engine/MemoryConformance.C/verbs
[  FAILED  ] 1 test, listed below:
[  FAILED  ] Engine/LossConformance.B/verbs, where GetParam() = verbs
"""


def test_each_test_counts_once() -> None:
    assert count_results(OUTPUT) == Counts(passed=1, failed=1, skipped=1)


def test_output_without_tests_has_none() -> None:
    assert count_results("insmod failed\n") == Counts()


def test_torch_needs_the_guest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--here", "--torch"])
    assert "HEADWAY_ENGINE=verbs" in capsys.readouterr().err
