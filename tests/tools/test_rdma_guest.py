"""The runner of the tests in the RDMA guest."""

import pytest
from rdma_guest.guest_suite import count_results, main
from test_counts import Counts

OUTPUT = """\
[ RUN      ] Engine/PutConformance/verbs.A
[       OK ] Engine/PutConformance/verbs.A (996 ms)
[ RUN      ] Engine/LossConformance/verbs.B
file.hpp:64: Failure
[  FAILED  ] Engine/LossConformance/verbs.B, where TypeParam = Verbs (539 ms)
[ RUN      ] Engine/MemoryConformance/verbs.C
[  SKIPPED ] Engine/MemoryConformance/verbs.C (41 ms)
[  PASSED  ] 1 test.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] Engine/MemoryConformance/verbs.C
[  FAILED  ] 1 test, listed below:
[  FAILED  ] Engine/LossConformance/verbs.B, where TypeParam = Verbs
"""


def test_each_test_counts_once() -> None:
    assert count_results(OUTPUT) == Counts(passed=1, failed=1, skipped=1)


def test_output_without_tests_has_none() -> None:
    assert count_results("insmod failed\n") == Counts()


def test_torch_needs_the_guest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--here", "--torch"])
    assert "HEADWAY_ENGINE=verbs" in capsys.readouterr().err
