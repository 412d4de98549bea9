"""One measured point (parameters, system, times), in the form that programs print and files hold."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Params = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Point:
    """Times of one system at one set of parameters, in seconds.

    Attributes:
        ratio: speed of this system over that of the reference system, paired by round; None without a reference.
        extra: fields that only some benchmarks have.
    """

    name: str
    params: Params
    system: str
    median_s: float | None
    p5_s: float | None
    p95_s: float | None
    samples: int
    rate: float | None
    unit: str
    ratio: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[tuple[str, Any], ...]:
        """Key of the comparison: points of different systems with equal keys are compared."""
        return (("name", self.name), *sorted(self.params.items()))


def parse_point(line: str) -> Point:
    """Parses a line that a program or an earlier run wrote.

    Raises:
        ValueError: the line is not a JSON object with the fields of a point.
    """
    fields = json.loads(line)
    if not isinstance(fields, dict) or not {"name", "params", "system"} <= fields.keys():
        raise ValueError(f"not a point: {line[:80]}")
    return Point(
        name=fields.pop("name"),
        params=fields.pop("params"),
        system=fields.pop("system"),
        median_s=fields.pop("median_s", None),
        p5_s=fields.pop("p5_s", None),
        p95_s=fields.pop("p95_s", None),
        samples=fields.pop("samples", 1),
        rate=fields.pop("rate", None),
        unit=fields.pop("unit", ""),
        ratio=fields.pop("ratio", None),
        extra=fields,
    )


def fields_of(point: Point) -> dict[str, Any]:
    """Returns the fields of the JSON object of a point; ``parse_point`` reads it back."""
    return {
        "name": point.name,
        "params": point.params,
        "system": point.system,
        "median_s": point.median_s,
        "p5_s": point.p5_s,
        "p95_s": point.p95_s,
        "samples": point.samples,
        "rate": point.rate,
        "unit": point.unit,
        "ratio": point.ratio,
        **point.extra,
    }


def write_json_lines(path: Path, points: Iterable[Point]) -> None:
    """Writes one line per point, with the commit of the checkout and the machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    origin = {"commit": current_commit(), "machine": describe_machine()}
    with path.open("w", encoding="utf-8") as file:
        for point in points:
            file.write(json.dumps({**fields_of(point), **origin}) + "\n")


def read_json_lines(path: Path) -> list[Point]:
    """Reads the points of a file that ``write_json_lines`` wrote."""
    return [parse_point(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def current_commit() -> str:
    """Returns the commit of this file's checkout: with ``+`` if files differ, ``unknown`` outside of a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=12", "--dirty=+"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def describe_machine() -> str:
    """Names the processor and the number of processors that this process may use."""
    model = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


def systems_of(points: Sequence[Point]) -> list[str]:
    """Returns the systems in the order of their first point."""
    return list(dict.fromkeys(point.system for point in points))
