"""What torch and Headway's extension say of this host. Run as a script in a process of its own, which may crash.

Prints one JSON object: versions, GPUs and their peer access, and the error of ``import headway`` where there is one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def probe() -> dict[str, Any]:
    """Facts as JSON types; a part that fails leaves its error instead."""
    facts: dict[str, Any] = {}
    try:
        import torch
    except Exception as error:
        return {"torch_error": _one_line(error)}
    facts["torch"] = torch.__version__
    facts["distributed"] = torch.distributed.is_available()
    facts["gpus"] = []
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        for gpu in range(count):
            peers = [peer for peer in range(count) if peer != gpu and torch.cuda.can_device_access_peer(gpu, peer)]
            facts["gpus"].append({"name": torch.cuda.get_device_name(gpu), "peers": peers})
    try:
        import headway  # noqa: F401

        # A checkout without the extension could still be found as a namespace: ask for what the import is to bring.
        if not torch.distributed.is_backend_available("headway"):
            facts["headway_error"] = "imported, but no backend named headway is registered"
    except Exception as error:
        facts["headway_error"] = _one_line(error)
    return facts


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


if __name__ == "__main__":
    # As a script, this file's folder is first on the path: its modules must not shadow others of the same name.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    print(json.dumps(probe()))
