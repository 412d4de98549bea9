# SPDX-License-Identifier: Apache-2.0
"""One measured point (parameters, system, times), in the form that programs print and files hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

Params = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Point:
    """Times of one system at one set of parameters, in seconds.

    Attributes:
        name: name of the benchmark.
        system: implementation that was measured, such as ``headway`` or ``openmpi``.
        p5_s, p95_s: 5% and 95% quantiles of the samples, or the extremes over a few rounds.
        rate: the main result in ``unit``, such as GB/s.
        ratio: speed of this system over that of the reference system, paired by round; None without a reference.
        extra: fields that only some benchmarks have.
    """

    name: str
    params: Params
    system: str
    median_s: float | None = None
    p5_s: float | None = None
    p95_s: float | None = None
    samples: int = 1
    rate: float | None = None
    unit: str = ""
    ratio: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[tuple[str, Any], ...]:
        """Key of the comparison: points of different systems with equal keys are compared."""
        return (("name", self.name), *sorted(self.params.items()))


_FIELDS = [each.name for each in fields(Point) if each.name != "extra"]


def parse_point(line: str) -> Point:
    """Parses a line that a program or an earlier run wrote.

    Raises:
        ValueError: the line is not a JSON object with the fields of a point.
    """
    found = json.loads(line)
    if not isinstance(found, dict) or not {"name", "params", "system"} <= found.keys():
        raise ValueError(f"not a point: {line[:80]}")
    known = {name: found.pop(name) for name in _FIELDS if name in found}
    return Point(**known, extra=found)


def fields_of(point: Point) -> dict[str, Any]:
    """Returns the fields of the JSON object of a point; ``parse_point`` reads it back."""
    return {**{name: getattr(point, name) for name in _FIELDS}, **point.extra}


def read_json_lines(path: Path) -> list[Point]:
    """Reads the points of a file of results."""
    return [parse_point(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def systems_of(points: Sequence[Point]) -> list[str]:
    """Returns the systems in the order of their first point."""
    return list(dict.fromkeys(point.system for point in points))
