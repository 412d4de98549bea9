# SPDX-License-Identifier: Apache-2.0
"""``tools/rdma_guest/guest_suite.py`` runs tests in a QEMU guest with an RDMA device, and reads their results."""

import pytest
from rdma_guest.guest_suite import main, read_results
from run_ctest import outcome_of

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
PYTEST = "tests/a.py::test_x[2-9] PASSED   [ 50%]\ntests/a.py::test_y FAILED   [100%]\nFAILED tests/a.py::test_y - no\n"


# Exit status 124: a time limit ended the run. 77: this host cannot run the guest.
@pytest.mark.parametrize(
    ("output", "status", "outcomes"),
    [
        (OUTPUT, 1, ["passed", "failed", "skipped"]),
        (PYTEST, 1, ["passed", "failed"]),
        (OUTPUT.splitlines()[1], 0, ["passed"]),
        (OUTPUT.splitlines()[1], 124, ["passed", "failed"]),
        (OUTPUT.splitlines()[6], 0, ["skipped", "failed"]),
        ("insmod failed\n", 0, ["failed"]),
        ("no QEMU\n", 77, ["skipped"]),
    ],
)
def test_each_test_counts_once_and_an_early_end_is_a_failure(output: str, status: int, outcomes: list[str]) -> None:
    assert [outcome_of(case) for case in read_results(output, status)] == outcomes


def test_torch_needs_the_guest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--here", "--torch"])
    # Without the guest, no runner is needed: the error tells how to run these tests by pytest.
    assert "HEADWAY_TRANSPORT=verbs" in capsys.readouterr().err
