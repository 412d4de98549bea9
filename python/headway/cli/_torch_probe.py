# SPDX-License-Identifier: Apache-2.0
"""Probes torch, its GPUs and Headway's extension. Run it as a script in a process of its own, because it may crash.

Prints one JSON object: torch's version, GPUs and their peer access, and the errors of ``import headway`` and of its
tables and operators, if any.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def probe() -> dict[str, Any]:
    """Collects the facts as JSON types. A part that fails contributes its error instead."""
    facts: dict[str, Any] = {}
    try:
        import torch
    except Exception as error:
        return {"torch_error": _one_line(error)}
    facts["torch"] = torch.__version__
    facts["distributed"] = torch.distributed.is_available()
    facts["gpus"] = []
    try:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        for gpu in range(count):
            peers = [peer for peer in range(count) if peer != gpu and torch.cuda.can_device_access_peer(gpu, peer)]
            facts["gpus"].append({"name": torch.cuda.get_device_name(gpu), "peers": peers})
    except Exception as error:
        facts["gpu_error"] = _one_line(error)
    try:
        import headway

        # Without the extension a checkout may still import as a namespace package, so check for the backend itself.
        if not torch.distributed.is_backend_available("headway"):
            facts["headway_error"] = "imported, but no backend named headway is registered"
    except Exception as error:
        facts["headway_error"] = _one_line(error)
        return facts
    try:
        import headway.embedding
        import headway.ops  # noqa: F401
    except Exception as error:
        facts["operators_error"] = _one_line(error)
    return facts


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


if __name__ == "__main__":
    # Python puts a script's folder first on the path. Its modules must not shadow others of the same name.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    print(json.dumps(probe()))
