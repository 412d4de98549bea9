"""Checks the Promela models of this folder with spin, each rule and each mutant of it.

Every configuration says what the checker must find: nothing in a completed search, or a violation of a named kind.
A search that ends early (depth, memory, time) is a failure, never a pass.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

MODEL_DIR = Path(__file__).resolve().parent
MAX_OPS = 15  # the sets of the models are 16-bit integers
NOTHING = "nothing"
OVERWRITE = "overwrite"
WRONG_DATA = "wrong data"
DEADLOCK = "deadlock"
UNFINISHED = "unfinished"


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One run of the checker.

    Args:
        model: file name without ``.pml``.
        title: what is special about it, for the reader.
        macros: preprocessor macros of the model; ``""`` defines without a value.
        expected: kinds of which one must be found.
    """

    model: str
    title: str
    macros: dict[str, int | str] = field(default_factory=dict)
    expected: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in ("OPS", "MESSAGES"):
            if int(self.macros.get(name, 1)) > MAX_OPS:
                raise ValueError(f"{self.model}: {name}={self.macros[name]} is above {MAX_OPS}")

    def defines(self) -> list[str]:
        """Macros as arguments of the preprocessor."""
        return [f"-D{name}" if value == "" else f"-D{name}={value}" for name, value in self.macros.items()]

    def label(self) -> str:
        """Name, sizes and title, for one line of the report."""
        columns = (
            ("n", "RANKS"),
            ("k", "LAG"),
            ("lanes", "LANES"),
            ("depth", "DEPTH"),
            ("ops", "OPS"),
            ("ops", "MESSAGES"),
            ("waiters", "WAITERS"),
        )
        sizes = " ".join(f"{short}={self.macros[name]}" for short, name in columns if name in self.macros)
        return f"{self.model:<15} {sizes:<24} {self.title:<62}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one search; ``detail`` explains it where its name does not."""

    found: str
    num_states: int = 0
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one search; running into one is a failure."""

    memory_mib: int
    depth_steps: int
    timeout_s: float


def lag_configuration(
    ranks: int, lag: int, depth: int, title: str, expected: tuple[str, ...], **switches: int | str
) -> Configuration:
    """A configuration of ``bounded_lag.pml`` whose ring wraps at least once beyond its depth."""
    ops = 2 * depth + 2 if ranks == 2 and not switches else depth + 2
    macros: dict[str, int | str] = {"RANKS": ranks, "LAG": lag, "DEPTH": depth, "OPS": ops, **switches}
    return Configuration(model="bounded_lag", title=title, macros=macros, expected=expected)


def depth_configurations(thorough: bool) -> Iterator[Configuration]:
    """The depth of the ring: 2(k + 1) is enough and tight."""
    for ranks in (2, 3):
        for lag in (0, 1, 2):
            safe = 2 * (lag + 1)
            if (ranks, lag) == (3, 2):
                yield lag_configuration(
                    ranks, lag, safe, "depth 2(k+1), delays on the way to rank 0", (NOTHING,), PROMPT_RECEIVERS=6
                )
                if thorough:
                    yield lag_configuration(
                        ranks, lag, safe, "depth 2(k+1), delays to ranks 0 and 1", (NOTHING,), PROMPT_RECEIVERS=4
                    )
            else:
                yield lag_configuration(ranks, lag, safe, "depth 2(k+1)", (NOTHING,))
            yield lag_configuration(ranks, lag, safe, "depth 2(k+1), no delays", (NOTHING,), PROMPT_RECEIVERS=7)
            yield lag_configuration(ranks, lag, safe - 1, "mutant: depth 2k+1", (OVERWRITE,))
            yield lag_configuration(
                ranks, lag, safe - 1, "mutant: depth 2k+1, no delays", (OVERWRITE,), PROMPT_RECEIVERS=7
            )
            if lag > 0:
                yield lag_configuration(ranks, lag, lag + 1, "mutant: depth k+1", (OVERWRITE,))


def rule_configurations(thorough: bool) -> Iterator[Configuration]:
    """The other rules of the argument, each with the mutant that lacks it, at the safe depth."""
    for ranks in (2, 3):
        for lag in (0, 1, 2):
            depth = 2 * (lag + 1)
            # A violation without delays is one with delays too, and is found sooner.
            prompt = {"PROMPT_RECEIVERS": 7} if (ranks, lag) == (3, 2) else {}
            yield lag_configuration(
                ranks, lag, depth, "mutant: empty blocks send no tag", (OVERWRITE,), SILENT_EMPTY_BLOCKS="", **prompt
            )
            yield lag_configuration(
                ranks,
                lag,
                depth,
                "mutant: one counter of arrivals per source",
                (WRONG_DATA, OVERWRITE),
                COUNT_ARRIVALS="",
            )
            if lag > 0:
                yield lag_configuration(
                    ranks,
                    lag,
                    depth,
                    "mutant: out of order, at most k+1 outstanding",
                    (OVERWRITE,),
                    BOUND_IS_A_COUNT="",
                    COMPLETE_IN_ANY_ORDER="",
                    **prompt,
                )
            if (ranks, lag) in ((2, 0), (2, 1), (2, 2), (3, 0)) or (thorough and lag == 1):
                yield lag_configuration(
                    ranks,
                    lag,
                    depth,
                    "out of order, bound on the oldest operation",
                    (NOTHING,),
                    COMPLETE_IN_ANY_ORDER="",
                )
            if (ranks, lag) in ((2, 0), (2, 1)) or (thorough and ranks == 2):
                yield lag_configuration(
                    ranks, lag, depth, "tags repeated, set of operations", (NOTHING,), REPEAT_TAGS=""
                )
            if ranks == 2:
                yield lag_configuration(
                    ranks,
                    lag,
                    depth,
                    "mutant: tags repeated, one counter per source",
                    (WRONG_DATA, OVERWRITE),
                    REPEAT_TAGS="",
                    COUNT_ARRIVALS="",
                )


def pair_configurations() -> Iterator[Configuration]:
    """Point-to-point channels: the consumed count may be late, and must never promise too much."""
    variants: list[tuple[str, dict[str, int | str], tuple[str, ...], tuple[int, ...]]] = [
        ("consumed count, late and reordered", {}, (NOTHING,), (1, 2, 3, 4)),
        (
            "counts modulo 16, only possible advances believed",
            {"COUNT_MODULO": 16, "ONLY_POSSIBLE_ADVANCE": ""},
            (NOTHING,),
            (1, 2, 3),
        ),
        ("mutant: a stale count modulo 4 taken for an advance", {"COUNT_MODULO": 4}, (OVERWRITE,), (2, 3)),
        ("mutant: counted on arrival, before the copy", {"COUNT_BEFORE_COPY": ""}, (OVERWRITE,), (1, 2, 3)),
        ("mutant: the count that arrived last, also if lower", {"BELIEVE_LAST_COUNT": ""}, (DEADLOCK,), (2, 3)),
    ]
    for title, switches, expected, depths in variants:
        for depth in depths:
            macros: dict[str, int | str] = {"DEPTH": depth, "MESSAGES": 2 * depth + 2, **switches}
            yield Configuration(model="pair_channel", title=title, macros=macros, expected=expected)


def lane_configurations() -> Iterator[Configuration]:
    """Arrival words when a block is cut over lanes."""
    for lanes in (2, 3):
        macros: dict[str, int | str] = {"LANES": lanes, "DEPTH": 2, "OPS": 6}
        yield Configuration(model="lanes", title="one word per lane", macros=macros, expected=(NOTHING,))
        yield Configuration(
            model="lanes",
            title="mutant: lanes share one word",
            macros={**macros, "ONE_WORD": ""},
            expected=(WRONG_DATA,),
        )


def offer_configurations() -> Iterator[Configuration]:
    """Large blocks that either side may move."""
    variants: list[tuple[str, dict[str, int | str], tuple[str, ...]]] = [
        ("who claims the word moves the block", {}, (NOTHING,)),
        ("mutant: read without a claim", {"READ_WITHOUT_CLAIM": ""}, (WRONG_DATA,)),
        ("mutant: sent without a claim", {"REVOKE_WITHOUT_CLAIM": ""}, (WRONG_DATA, OVERWRITE)),
        ("mutant: a word of one bit", {"ONE_BIT_WORD": ""}, (WRONG_DATA, OVERWRITE, DEADLOCK)),
    ]
    for title, switches, expected in variants:
        for depth in (2, 3):
            macros: dict[str, int | str] = {"DEPTH": depth, "OPS": depth + 2, **switches}
            yield Configuration(model="revocable_offer", title=title, macros=macros, expected=expected)


def sleep_configurations() -> Iterator[Configuration]:
    """Waiters that sleep for one operation, and the progress thread that sleeps until it is needed."""
    variants: list[tuple[str, dict[str, int | str], tuple[str, ...], tuple[int, ...]]] = [
        ("a leader sleeps for all", {}, (NOTHING,), (1, 2, 3)),
        ("mutant: drain for all", {"DRAIN_FOR_ALL": ""}, (DEADLOCK,), (3,)),
        ("mutant: look, then arm", {"LOOK_THEN_ARM": ""}, (DEADLOCK,), (1,)),
        ("mutant: the leader wakes nobody", {"SILENT_LEADER": ""}, (DEADLOCK,), (2, 3)),
        ("mutant: a look does not ring for the leader", {"SILENT_LOOK": ""}, (DEADLOCK,), (1, 3)),
        ("mutant: a step takes the leader's ring", {"TAKEN_RING": ""}, (DEADLOCK,), (1, 3)),
        ("mutant: decide, then arm", {"DECIDE_THEN_ARM": ""}, (DEADLOCK,), (1,)),
    ]
    for title, switches, expected, numbers in variants:
        for waiters in numbers:
            macros: dict[str, int | str] = {"WAITERS": waiters, "ARRIVALS": 2, **switches}
            yield Configuration(model="sleeping", title=title, macros=macros, expected=expected)


def configurations(thorough: bool) -> Iterator[Configuration]:
    """All runs in order; ``thorough`` adds those that take minutes and gigabytes."""
    yield from depth_configurations(thorough)
    yield from rule_configurations(thorough)
    yield from pair_configurations()
    yield from lane_configurations()
    yield from offer_configurations()
    yield from sleep_configurations()


def build_checker(configuration: Configuration, build_dir: Path, memory_mib: int) -> Path:
    """Generates and compiles the checker in ``build_dir``.

    Raises:
        RuntimeError: spin or the compiler refused; the message is theirs.
    """
    model = MODEL_DIR / f"{configuration.model}.pml"
    commands = (
        ["spin", *configuration.defines(), "-a", str(model)],
        ["cc", "-O0", "-w", "-DSAFETY", f"-DMEMLIM={memory_mib}", "-o", "pan", "pan.c"],
    )
    for command in commands:
        result = subprocess.run(command, cwd=build_dir, capture_output=True, text=True, timeout=120, check=False)
        if result.returncode != 0 or "Error:" in result.stdout:
            raise RuntimeError(f"{' '.join(command)}: {(result.stdout + result.stderr).strip()}")
    return build_dir / "pan"


def classify(report: str) -> Outcome:
    """Reads what pan printed."""
    states = re.search(r"^\s*(\d+) states, stored", report, re.MULTILINE)
    errors = re.search(r"errors: (\d+)", report)
    if states is None or errors is None:
        return Outcome(found=UNFINISHED, detail="pan printed no totals")
    num_states = int(states.group(1))
    if "max search depth too small" in report:
        return Outcome(found=UNFINISHED, num_states=num_states, detail="search depth reached")
    if "invalid end state" in report.split("State-vector")[0].split("Full statespace")[0]:
        return Outcome(found=DEADLOCK, num_states=num_states)
    violated = re.search(r"assertion violated (.*)$", report, re.MULTILINE)
    if violated is not None:
        return Outcome(found=OVERWRITE if "==255" in violated.group(1) else WRONG_DATA, num_states=num_states)
    if "Search not completed" in report or int(errors.group(1)) != 0:
        return Outcome(found=UNFINISHED, num_states=num_states, detail="search not completed (memory limit?)")
    return Outcome(found=NOTHING, num_states=num_states)


def search(checker: Path, limits: Limits) -> Outcome:
    """Runs the checker to the first violation or through all states."""
    command = [str(checker), f"-m{limits.depth_steps}", "-w20"]
    try:
        result = subprocess.run(
            command, cwd=checker.parent, capture_output=True, text=True, timeout=limits.timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return Outcome(found=UNFINISHED, detail=f"no answer within {limits.timeout_s:g} s")
    outcome = classify(result.stdout + result.stderr)
    if outcome.found == NOTHING and result.returncode != 0:
        return Outcome(found=UNFINISHED, num_states=outcome.num_states, detail=f"pan ended with {result.returncode}")
    return outcome


def check(configuration: Configuration, build_dir: Path, limits: Limits) -> bool:
    """Builds and runs one configuration, prints its line, and says whether it found what was expected."""
    started = time.monotonic()
    shutil.rmtree(build_dir, ignore_errors=True)
    build_dir.mkdir(parents=True)
    try:
        outcome = search(build_checker(configuration, build_dir, limits.memory_mib), limits)
    except RuntimeError as error:
        outcome = Outcome(found=UNFINISHED, detail=str(error))
    passed = outcome.found in configuration.expected
    print(
        f"{'pass' if passed else 'FAIL'}  {configuration.label()} expected={'|'.join(configuration.expected)} "
        f"found={outcome.found} states={outcome.num_states} seconds={time.monotonic() - started:.2f}"
        f"{' (' + outcome.detail + ')' if outcome.detail else ''}",
        flush=True,
    )
    if not passed and (build_dir / f"{configuration.model}.pml.trail").exists():
        shutil.copy(MODEL_DIR / f"{configuration.model}.pml", build_dir)
        defines = " ".join(configuration.defines())
        print(f"      to replay: cd {build_dir} && spin -t -p -g {defines} {configuration.model}.pml")
    return passed


def parse_arguments() -> argparse.Namespace:
    """Command line of this program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--build-dir", type=Path, default=Path("build/spin"), help="where checkers are built (default: %(default)s)"
    )
    parser.add_argument("--only", default="", help="run only the configurations whose line contains this text")
    parser.add_argument("--thorough", action="store_true", help="add the searches that take minutes and up to 4 GiB")
    parser.add_argument(
        "--memory-mib", type=int, default=4096, help="memory limit of one search (default: %(default)s)"
    )
    parser.add_argument(
        "--timeout-s", type=float, default=300.0, help="time limit of one search (default: %(default)s)"
    )
    return parser.parse_args()


def main() -> int:
    """Runs all configurations; 0 if every one found what it must, 2 if spin or the compiler is missing."""
    arguments = parse_arguments()
    missing = [tool for tool in ("spin", "cc") if shutil.which(tool) is None]
    if missing:
        print(f"run_spin: not found: {', '.join(missing)} (Debian: apt install spin gcc)", file=sys.stderr)
        return 2
    limits = Limits(memory_mib=arguments.memory_mib, depth_steps=1_000_000, timeout_s=arguments.timeout_s)
    chosen = [each for each in configurations(arguments.thorough) if arguments.only in each.label()]
    if not chosen:
        print(f"run_spin: no configuration contains {arguments.only!r}", file=sys.stderr)
        return 2
    build_dir = arguments.build_dir.resolve()
    num_failed = 0
    for number, configuration in enumerate(chosen):
        num_failed += not check(configuration, build_dir / f"{number:02}_{configuration.model}", limits)
    print(f"{len(chosen) - num_failed} passed, {num_failed} failed")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
