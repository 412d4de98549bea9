# SPDX-License-Identifier: Apache-2.0
"""Draws one training step of each of several traces (``headway bench cuda_training --trace DIR``) as one SVG.

Usage: tools/draw_step.py OUT.svg TITLE=TRACE.json [TITLE=TRACE.json ...]
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

# In user units of the SVG: width of the picture, space for titles on the left, height of a row and of the gap below it,
# and space for the title of a step.
_WIDTH, _LEFT, _ROW, _GAP, _TOP = 1000, 170, 20, 6, 44
#: Part of the name of the kernel that looks up bags, the first one of a step.
_STEP_BEGINS_WITH = "EmbeddingBag_updateOutput"


class Row(NamedTuple):
    """One line of the picture. ``names`` are substrings of the names of the kernels and copies that belong to it.

    A kernel belongs to the first row that matches.
    """

    title: str
    color: str
    names: tuple[str, ...]


_ROWS = (
    Row("exchange", "#d1495b", ("SendRecv", "PtoP")),
    Row("sum of gradients (NCCL)", "#8d6a9f", ("AllReduce",)),
    Row("products", "#00798c", ("nvjet", "gemm", "cutlass")),
    Row("copies in the device", "#edae49", ("DtoD",)),
    Row("all else of the model", "#9aa5b1", ("",)),
)


class Span(NamedTuple):
    """Time range of one or several kernels or copies on the device, in microseconds from the start of the step."""

    row: int  #: Index in ``_ROWS``.
    begin: float
    end: float


def read_step(path: Path) -> tuple[list[Span], float]:
    """Reads the shortest step of a trace, which the profiler disturbed least.

    Returns:
        the spans of the step, and its duration in microseconds.
    """
    events = json.loads(path.read_text())["traceEvents"]
    on_device = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy")]
    begins = sorted(event["ts"] for event in on_device if _STEP_BEGINS_WITH in event["name"])
    if len(begins) < 2:
        raise SystemExit(f"draw_step: {path} holds no whole step")
    begin, end = min(pairwise(begins), key=lambda step: step[1] - step[0])
    spans = []
    for event in on_device:
        if event["ts"] + event["dur"] > begin and event["ts"] < end:
            row = next(i for i, row in enumerate(_ROWS) if any(name in event["name"] for name in row.names))
            spans.append(Span(row, max(event["ts"], begin) - begin, min(event["ts"] + event["dur"], end) - begin))
    return merge(spans), end - begin


def merge(spans: list[Span], gap_us: float = 4.0) -> list[Span]:
    """Merges spans of a row whose gap is too small to be visible."""
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and merged[-1].row == span.row and span.begin - merged[-1].end < gap_us:
            merged[-1] = merged[-1]._replace(end=max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return merged


def draw(steps: list[tuple[str, list[Span], float]]) -> str:
    """Draws the steps below each other, with a common time scale; returns the SVG text."""
    scale = (_WIDTH - _LEFT - 10) / max(length for _, _, length in steps)
    block = _TOP + len(_ROWS) * (_ROW + _GAP)
    lines = []
    for number, (title, spans, length) in enumerate(steps):
        top = number * block
        lines.append(f'<text x="6" y="{top + 26}" font-weight="bold">{escape(title)}: {length / 1e3:.2f} ms</text>')
        for index, row in enumerate(_ROWS):
            y = top + _TOP + index * (_ROW + _GAP)
            lines.append(f'<text x="6" y="{y + 14}">{escape(row.title)}</text>')
            lines.append(f'<rect x="{_LEFT}" y="{y}" width="{length * scale:.1f}" height="{_ROW}" fill="#f3f4f6"/>')
        for span in spans:
            y = top + _TOP + span.row * (_ROW + _GAP)
            x, width = _LEFT + span.begin * scale, max((span.end - span.begin) * scale, 0.5)
            fill = _ROWS[span.row].color
            lines.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW}" fill="{fill}"/>')
    height = len(steps) * block + 6
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif"'
    background = f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>'
    return "\n".join([svg + ' font-size="13" fill="#374151">', background, *lines, "</svg>", ""])


def main(arguments: list[str]) -> int:
    """Runs the command line; returns the exit status."""
    if len(arguments) < 2 or any("=" not in each for each in arguments[1:]):
        print(__doc__, file=sys.stderr)
        return 2
    steps = []
    for argument in arguments[1:]:
        title, _, path = argument.partition("=")
        steps.append((title, *read_step(Path(path))))
    Path(arguments[0]).write_text(draw(steps))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
