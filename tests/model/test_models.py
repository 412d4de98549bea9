# SPDX-License-Identifier: Apache-2.0
"""Searches the Promela models of this folder with spin: each rule, and each mutant that breaks it.

Every configuration says what the search must find: nothing in a completed search, or a violation of a named kind. A
search that ends early (depth, memory, time) is a failure, never a pass.

Words: an operation is an all-to-all. A rank may run ahead by up to k operations (macro LAG; ``max_lag`` in the code).
A ring is the DEPTH slots that a receiver keeps for one source: operation t uses slot t mod DEPTH. A tag is the word
that announces the data of one operation of one source.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

MODEL_DIR = Path(__file__).resolve().parent
MAX_OPS = 15  # The sets of the models are 16-bit integers.
MEMORY_MIB, DEPTH_STEPS, LIMIT_S = 4096, 1_000_000, 290
NOTHING, OVERWRITE, WRONG_DATA, DEADLOCK, UNFINISHED = "nothing", "overwrite", "wrong data", "deadlock", "unfinished"

Macros = dict[str, int | str]

pytestmark = pytest.mark.skipif(
    shutil.which("spin") is None or shutil.which("cc") is None, reason="spin or a C compiler is not installed"
)


def search_for(
    expected: tuple[str, ...], model: str, title: str, macros: Macros, *, is_thorough: bool = False
) -> pytest.ParameterSet:
    """One search.

    Args:
        expected: kinds of which one must be found.
        model: file name without ``.pml``.
        title: what is special about it, for the reader.
        macros: preprocessor macros of the model; ``""`` defines without a value.
        is_thorough: it takes minutes and gigabytes: only with ``-m thorough``.
    """
    assert all(int(macros.get(name, 1)) <= MAX_OPS for name in ("OPS", "MESSAGES"))
    sizes = " ".join(f"{name}={value}" for name, value in macros.items() if value != "")
    marks = [pytest.mark.thorough] if is_thorough else []
    return pytest.param(model, macros, expected, id=f"{model} {sizes}: {title}", marks=marks)


def lag_search(
    expected: tuple[str, ...], ranks: int, max_lag: int, depth: int, title: str, *, is_thorough: bool = False,
    **switches: int | str,
) -> pytest.ParameterSet:  # fmt: skip
    """A search of ``bounded_lag.pml`` with more operations than slots, so that slots are used again."""
    ops = 2 * depth + 2 if ranks == 2 and not switches else depth + 2
    macros: Macros = {"RANKS": ranks, "LAG": max_lag, "DEPTH": depth, "OPS": ops, **switches}
    return search_for(expected, "bounded_lag", title, macros, is_thorough=is_thorough)


def depth_searches(n: int, k: int, safe: int) -> Iterator[pytest.ParameterSet]:
    """The depth of the ring for n ranks: ``safe``, 2(k + 1), is enough and tight.

    Bit r of PROMPT_RECEIVERS: puts to rank r land at once.
    """
    if (n, k) == (3, 2):
        yield lag_search((NOTHING,), n, k, safe, "depth 2(k+1), delays on the way to rank 0", PROMPT_RECEIVERS=6)
        yield lag_search(
            (NOTHING,), n, k, safe, "depth 2(k+1), delays to ranks 0 and 1", PROMPT_RECEIVERS=4, is_thorough=True
        )
    else:
        yield lag_search((NOTHING,), n, k, safe, "depth 2(k+1)")
    yield lag_search((NOTHING,), n, k, safe, "depth 2(k+1), no delays", PROMPT_RECEIVERS=7)
    yield lag_search((OVERWRITE,), n, k, safe - 1, "mutant: depth 2k+1")
    yield lag_search((OVERWRITE,), n, k, safe - 1, "mutant: depth 2k+1, no delays", PROMPT_RECEIVERS=7)
    if k > 0:
        yield lag_search((OVERWRITE,), n, k, k + 1, "mutant: depth k+1")


def rule_searches(n: int, k: int, safe: int) -> Iterator[pytest.ParameterSet]:
    """The other rules of the proof in docs/bounded_lag.md, each with the mutant that lacks it, at the safe depth."""
    # A violation without delays is one with delays too, and is found sooner.
    prompt = {"PROMPT_RECEIVERS": 7} if (n, k) == (3, 2) else {}
    mixed = (WRONG_DATA, OVERWRITE)
    title = "mutant: empty blocks send no tag"
    yield lag_search((OVERWRITE,), n, k, safe, title, SILENT_EMPTY_BLOCKS="", **prompt)
    yield lag_search(mixed, n, k, safe, "mutant: one counter of arrivals per source", COUNT_ARRIVALS="")
    if k > 0:
        title = "mutant: out of order, at most k+1 outstanding"
        switches = {"BOUND_IS_A_COUNT": "", "COMPLETE_IN_ANY_ORDER": "", **prompt}
        yield lag_search((OVERWRITE,), n, k, safe, title, **switches)
    if n == 2 or k < 2:
        title = "out of order, bound on the oldest operation"
        yield lag_search((NOTHING,), n, k, safe, title, COMPLETE_IN_ANY_ORDER="", is_thorough=(n, k) == (3, 1))
    if n == 2:
        yield lag_search((NOTHING,), n, k, safe, "tags repeated, set of operations", REPEAT_TAGS="", is_thorough=k == 2)
        title = "mutant: tags repeated, one counter per source"
        yield lag_search(mixed, n, k, safe, title, REPEAT_TAGS="", COUNT_ARRIVALS="")


def pair_searches() -> Iterator[pytest.ParameterSet]:
    """Point-to-point channels: the consumed count may be late, and must never promise too much."""
    modulo_16: Macros = {"COUNT_MODULO": 16, "ONLY_POSSIBLE_ADVANCE": ""}
    variants: list[tuple[str, str, Macros, tuple[int, ...]]] = [
        (NOTHING, "consumed count, late and reordered", {}, (1, 2, 3, 4)),
        (NOTHING, "counts modulo 16, only possible advances believed", modulo_16, (1, 2, 3)),
        (OVERWRITE, "mutant: a stale count modulo 4 taken for an advance", {"COUNT_MODULO": 4}, (2, 3)),
        (OVERWRITE, "mutant: counted on arrival, before the copy", {"COUNT_BEFORE_COPY": ""}, (1, 2, 3)),
        (DEADLOCK, "mutant: the count that arrived last, also if lower", {"BELIEVE_LAST_COUNT": ""}, (2, 3)),
    ]
    for expected, title, switches, depths in variants:
        for depth in depths:
            yield search_for((expected,), "p2p_channel", title, {"DEPTH": depth, "MESSAGES": 2 * depth + 2, **switches})


def lane_searches() -> Iterator[pytest.ParameterSet]:
    """Arrival words when a block is cut over lanes, such as queue pairs or copy streams."""
    for lanes in (2, 3):
        macros: Macros = {"LANES": lanes, "DEPTH": 2, "OPS": 6}
        yield search_for((NOTHING,), "lanes", "one word per lane", macros)
        yield search_for((WRONG_DATA,), "lanes", "mutant: lanes share one word", {**macros, "ONE_WORD": ""})


def rts_searches() -> Iterator[pytest.ParameterSet]:
    """Large blocks, announced by an RTS (ready to send): the receiver reads them, or the sender puts them."""
    variants: list[tuple[tuple[str, ...], str, Macros]] = [
        ((NOTHING,), "who claims the word moves the block", {}),
        ((WRONG_DATA,), "mutant: read without a claim", {"READ_WITHOUT_CLAIM": ""}),
        ((WRONG_DATA, OVERWRITE), "mutant: sent without a claim", {"REVOKE_WITHOUT_CLAIM": ""}),
        ((WRONG_DATA, OVERWRITE, DEADLOCK), "mutant: a word of one bit", {"ONE_BIT_WORD": ""}),
    ]
    for expected, title, switches in variants:
        for depth in (2, 3):
            yield search_for(expected, "revocable_rts", title, {"DEPTH": depth, "OPS": depth + 2, **switches})


def sleep_searches() -> Iterator[pytest.ParameterSet]:
    """Waiters that sleep for one operation, and the progress thread that sleeps until it is needed.

    Peers ring by writing to an eventfd; to take a ring, or to drain, is to read it. The leader is the one waiter that
    sleeps on it. To arm is to ask for rings. A look finds the words of peers and completes operations. A step is one
    round of the progress thread, and includes a look.
    """
    variants: list[tuple[str, str, Macros, tuple[int, ...]]] = [
        (NOTHING, "a leader sleeps for all", {}, (1, 2, 3)),
        (DEADLOCK, "mutant: drain for all", {"DRAIN_FOR_ALL": ""}, (3,)),
        (DEADLOCK, "mutant: look, then arm", {"LOOK_THEN_ARM": ""}, (1,)),
        (DEADLOCK, "mutant: the leader wakes nobody", {"SILENT_LEADER": ""}, (2, 3)),
        (DEADLOCK, "mutant: a look does not ring for the leader", {"SILENT_LOOK": ""}, (1, 3)),
        (DEADLOCK, "mutant: a step takes the leader's ring", {"TAKEN_RING": ""}, (1, 3)),
        (DEADLOCK, "mutant: decide, then arm", {"DECIDE_THEN_ARM": ""}, (1,)),
    ]
    for expected, title, switches, numbers in variants:
        for waiters in numbers:
            yield search_for((expected,), "sleeping", title, {"WAITERS": waiters, "ARRIVALS": 2, **switches})


def staleness_searches() -> Iterator[pytest.ParameterSet]:
    """Hybrid training: lookups that a parameter server holds back, parts, void notices and generations.

    A part is the gradient of a worker for one step. With a staleness of s, an answer contains all parts but those of
    the last s steps.
    """
    wrong, stuck = (WRONG_DATA,), (DEADLOCK,)
    variants: list[tuple[tuple[str, ...], str, Macros, tuple[int, ...]]] = [
        ((NOTHING,), "two batches are lost", {"LOSSES": 2, "RESTARTS": 0}, (0, 1, 2)),
        ((NOTHING,), "a new generation", {"LOSSES": 1, "RESTARTS": 1}, (0, 1)),
        ((NOTHING,), "exact order, a batch is lost", {"LOSSES": 1, "RESTARTS": 0, "EXACT": ""}, (0, 1, 2)),
        (wrong, "mutant: bound off by one", {"LOSSES": 0, "RESTARTS": 0, "BOUND_OFF_BY_ONE": ""}, (0, 1, 2)),
        (stuck, "mutant: no void notice", {"LOSSES": 1, "RESTARTS": 0, "NO_VOID": ""}, (0, 1)),
        (wrong, "mutant: generations ignored", {"LOSSES": 0, "RESTARTS": 1, "ANY_GENERATION": ""}, (0, 1)),
        (stuck, "mutant: gradients behind lookups", {"LOSSES": 0, "RESTARTS": 0, "BEHIND_LOOKUPS": ""}, (0, 1)),
    ]
    for expected, title, switches, bounds in variants:
        for staleness in bounds:
            sizes: Macros = {"WORKERS": 2, "STALENESS": staleness, "STEPS": staleness + 3}
            yield search_for(expected, "staleness", title, {**sizes, **switches})


def all_searches() -> Iterator[pytest.ParameterSet]:
    for searches in (depth_searches, rule_searches):
        for n in (2, 3):
            for k in (0, 1, 2):
                yield from searches(n, k, 2 * (k + 1))
    for further in (pair_searches, lane_searches, rts_searches, sleep_searches, staleness_searches):
        yield from further()


def call(command: list[str], folder: Path, *, limit_s: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=limit_s, check=False)


def classify(report: str, status: int) -> str:
    """Reads what the search found from its report and exit status."""
    errors = re.search(r"errors: (\d+)", report)
    if not re.search(r"^\s*\d+ states, stored", report, re.MULTILINE) or errors is None:
        return UNFINISHED
    if "max search depth too small" in report:
        return UNFINISHED
    if "invalid end state" in report.split("State-vector")[0].split("Full statespace")[0]:
        return DEADLOCK
    if violated := re.search(r"assertion violated (.*)$", report, re.MULTILINE):
        # In the models 255 marks an empty slot, and each put asserts that its slot is empty.
        return OVERWRITE if "==255" in violated.group(1) else WRONG_DATA
    is_complete = "Search not completed" not in report and int(errors.group(1)) == 0 and status == 0
    return NOTHING if is_complete else UNFINISHED


@pytest.mark.parametrize(("model", "macros", "expected"), list(all_searches()))
def test_search(tmp_path: Path, model: str, macros: Macros, expected: tuple[str, ...]) -> None:
    source = Path(shutil.copy(MODEL_DIR / f"{model}.pml", tmp_path))
    defines = [f"-D{name}" if value == "" else f"-D{name}={value}" for name, value in macros.items()]
    for command in (
        ["spin", *defines, "-a", source.name],
        ["cc", "-O0", "-w", "-DSAFETY", f"-DMEMLIM={MEMORY_MIB}", "-o", "pan", "pan.c"],
    ):
        made = call(command, tmp_path)
        assert made.returncode == 0 and "Error:" not in made.stdout, f"{command}: {made.stdout}{made.stderr}"
    finished = call(["./pan", f"-m{DEPTH_STEPS}", "-w20"], tmp_path, limit_s=LIMIT_S)
    report = finished.stdout + finished.stderr
    replay = f"to replay: cd {tmp_path} && spin -t -p -g {' '.join(defines)} {source.name}"
    assert classify(report, finished.returncode) in expected, f"{report}\n{replay}"
