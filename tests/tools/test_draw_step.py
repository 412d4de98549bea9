# SPDX-License-Identifier: Apache-2.0
"""tools/draw_step.py: the diagram of a training step from a trace of PyTorch's profiler.

A step lasts from one lookup of bags to the next.
"""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import draw_step
import pytest


def event(name: str, begin_us: float, length_us: float, category: str = "kernel") -> dict[str, object]:
    return {"name": name, "cat": category, "ts": begin_us, "dur": length_us}


LOOKUP = "void EmbeddingBag_updateOutputKernel"
EVENTS = [
    event(LOOKUP, 0, 10),
    event("nvjet_product", 20, 100),
    event(LOOKUP, 1000, 10),
    event("Memcpy PtoP (Device -> Device)", 1010, 50, "gpu_memcpy"),
    event("Memcpy DtoD (Device -> Device)", 1060, 5, "gpu_memcpy"),
    event("nvjet_product", 1100, 300),
    event("aten::mm", 1100, 300, "cpu_op"),
    event("relu", 1402, 2),
    event("relu", 1405, 2),
    event(LOOKUP, 1500, 10),
]


def test_the_shortest_step_is_drawn(tmp_path: Path) -> None:
    trace, picture = tmp_path / "trace.json", tmp_path / "step.svg"
    trace.write_text(json.dumps({"traceEvents": EVENTS}))
    spans, length_us = draw_step.read_step(trace)
    assert length_us == 500
    names = [row.title for row in draw_step._ROWS]
    assert [(names[row], begin, end) for row, begin, end in spans] == [
        ("exchange", 10, 60),
        ("products", 100, 400),
        ("copies in the device", 60, 65),
        ("all else of the model", 0, 10),
        ("all else of the model", 402, 407),
    ]
    assert draw_step.main([str(picture), f"a < b={trace}", f"again={trace}"]) == 0
    texts = [element.text for element in ElementTree.parse(picture).iter() if element.tag.endswith("text")]
    assert "a < b: 0.50 ms" in texts and texts.count("products") == 2


def test_a_trace_without_a_step_is_named(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": EVENTS[:2]}))
    with pytest.raises(SystemExit, match="holds no whole step"):
        draw_step.read_step(trace)
