# SPDX-License-Identifier: Apache-2.0
"""JSON with a format number and a checksum of its text, so that a change of one character is found."""

from __future__ import annotations

import json
import zlib
from typing import Any


def seal(values: dict[str, Any], *, format_number: int) -> str:
    """Returns the text of ``values``, to be read by ``unseal()``."""
    body = json.dumps(values)
    return json.dumps({"format": format_number, "crc32": zlib.crc32(body.encode()), "manifest": body})


def unseal(text: str, *, format_number: int) -> dict[str, Any]:
    """Returns the values of a text of ``seal()``.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is no such text, has another format, or was altered.
    """
    envelope = json.loads(text)
    body = envelope["manifest"]
    if envelope["format"] != format_number or zlib.crc32(body.encode()) != envelope["crc32"]:
        raise ValueError("it has another format, or was altered")
    values: dict[str, Any] = json.loads(body)
    return values
