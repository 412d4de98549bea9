"""Runs PyTorch's distributed tests on one backend and judges the outcome against Gloo's.

Usage: ``python run.py [--backend headway] [--world-size 4] [TEST ...]``. Each test runs in freshly forked ranks. Tests
that the suite skips with fewer than 8 ranks run with 8. The last line is ``N passed, N failed, N skipped``; the exit
status is 1 if anything failed. A test that passes under Gloo (``gloo_passes.txt``) and is skipped here counts as
failed, unless ``exceptions.txt`` names it.
"""

from __future__ import annotations

import argparse
import logging
import os
import pathlib
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
GLOO_PASSES = HERE / "gloo_passes.txt"
EXCEPTIONS = HERE / "exceptions.txt"
#: Reason with which the suite skips a test that needs LARGE_WORLD ranks.
SMALL_WORLD = "skipped: Skipped due to small world size."
LARGE_WORLD = 8


def parse_arguments() -> argparse.Namespace:
    """Parses the command line of the harness."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", metavar="TEST", help="names of tests to run; all where none is given")
    parser.add_argument("--backend", default="headway", help="backend under test (default: headway)")
    parser.add_argument("--world-size", type=int, default=4, help="ranks of each test (default: 4)")
    parser.add_argument("--timeout", type=int, default=120, help="seconds that one test may take (default: 120)")
    parser.add_argument("--record", action="store_true", help="write the tests that pass to gloo_passes.txt")
    parser.add_argument("--verbose", action="store_true", help="show passed tests and the ranks' own output too")
    return parser.parse_args()


def read_names(path: pathlib.Path) -> dict[str, str]:
    """Reads a list file: test names with the rest of their line. ``#`` starts a comment."""
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return {line.split()[0]: line.partition(" ")[2].strip() for line in lines if line}


class Outcomes(unittest.TestResult):
    """Collects one outcome for each test: "passed", "skipped: why" or "failed: traceback"."""

    def __init__(self, *, expected_failures: dict[str, str], verbose: bool) -> None:
        super().__init__()
        self.outcome_of: dict[str, str] = {}
        self.expected_failures = expected_failures
        self.verbose = verbose

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.started_s = time.monotonic()

    def note(self, test: unittest.TestCase, outcome: str) -> None:
        """Keeps the first outcome that is not a pass, and prints it if it is worth it."""
        name = test.id().rsplit(".", 1)[-1]
        if self.outcome_of.get(name, "passed") != "passed":
            return
        self.outcome_of[name] = outcome
        if self.verbose or (outcome.startswith("failed") and name not in self.expected_failures):
            print(f"{time.monotonic() - self.started_s:6.1f} s  {name}: {outcome}", flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.note(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.note(test, f"skipped: {reason}")

    def addError(self, test: unittest.TestCase, err: object) -> None:
        self.note(test, "failed: " + self._exc_info_to_string(err, test))  # type: ignore[attr-defined]

    addFailure = addError


def make_test_class(backend: str) -> type[unittest.TestCase]:
    """The suite's tests as a class whose ranks are forked, so that torch is imported once."""
    if backend == "headway":
        import headway  # noqa: F401 - importing headway registers the backend
    from suite_source import load_suite

    suite = load_suite(backend)

    class TorchSuite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc, name-defined]
        """Every test of the suite, on forked ranks."""

        def setUp(self) -> None:
            super().setUp()
            import torch

            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return TorchSuite


def verdicts(outcome_of: dict[str, str], *, backend: str) -> dict[str, str]:
    """Turns outcomes into verdicts: every test that passes under Gloo must pass here, and exceptions must be needed."""
    if backend == "gloo":
        return outcome_of
    must_pass, exceptions = read_names(GLOO_PASSES), read_names(EXCEPTIONS)
    verdict_of = dict(outcome_of)
    for name, outcome in outcome_of.items():
        if name in exceptions:
            stale = "failed: it passes, so its line in exceptions.txt is stale"
            verdict_of[name] = stale if outcome == "passed" else f"skipped: {exceptions[name]}"
        elif name in must_pass and outcome.startswith("skipped"):
            verdict_of[name] = f"failed: Gloo passes this test, and here it was {outcome}"
    return verdict_of


def main() -> int:
    """Runs the tests; returns the exit status."""
    with tempfile.TemporaryDirectory() as store_folder:
        return run(store_folder)


def run(store_folder: str) -> int:
    """Runs the tests with a rendezvous file in the folder; returns the exit status."""
    arguments = parse_arguments()
    os.environ["BACKEND"] = arguments.backend
    os.environ["WORLD_SIZE"] = str(arguments.world_size)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = str(arguments.timeout)
    # The suite's timeout tests need a rendezvous that can be repeated. With this file they run as upstream.
    os.environ["INIT_METHOD"] = f"file://{store_folder}/store"
    sys.path.insert(0, str(HERE))
    test_class = make_test_class(arguments.backend)
    if not arguments.verbose:
        logging.disable(logging.ERROR)
    names = arguments.tests or unittest.TestLoader().getTestCaseNames(test_class)
    started_s = time.monotonic()
    exceptions = {} if arguments.backend == "gloo" else read_names(EXCEPTIONS)
    outcomes = Outcomes(expected_failures=exceptions, verbose=arguments.verbose)
    unittest.TestSuite(test_class(name) for name in names).run(outcomes)
    os.environ["WORLD_SIZE"] = str(LARGE_WORLD)
    skipped = [name for name, outcome in outcomes.outcome_of.items() if outcome == SMALL_WORLD]
    for name in skipped:
        del outcomes.outcome_of[name]
    unittest.TestSuite(test_class(name) for name in skipped).run(outcomes)

    verdict_of = verdicts(outcomes.outcome_of, backend=arguments.backend)
    for name, verdict in verdict_of.items():
        if verdict != outcomes.outcome_of[name] and verdict.startswith("failed"):
            print(f"{name}: {verdict}")
    count = {word: sum(v.startswith(word) for v in verdict_of.values()) for word in ("passed", "failed", "skipped")}
    if arguments.record:
        passed = sorted(name for name, verdict in verdict_of.items() if verdict == "passed")
        GLOO_PASSES.write_text("\n".join(["# Tests that pass under Gloo, torch 2.11.0.", *passed, ""]))
    print(f"torch suite on {arguments.backend}: {len(verdict_of)} tests in {time.monotonic() - started_s:.0f} s")
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
