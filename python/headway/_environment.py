# SPDX-License-Identifier: Apache-2.0
"""The environment variables that Headway reads, and the check that none of them is misspelt."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_PREFIX = "HEADWAY_"

#: Name of every variable and its description; ``headway --help`` prints them.
KNOWN_VARIABLES: Mapping[str, str] = {
    "HEADWAY_TRANSPORT": "auto (default), shm, tcp or verbs",
    "HEADWAY_ENGINE": "former name of HEADWAY_TRANSPORT, for one release",
    "HEADWAY_INTERFACE": "network interface for traffic between hosts, by name or by one of its addresses",
    "HEADWAY_RDMA_DEVICE": "DEVICE, DEVICE:PORT or DEVICE:PORT:GID_INDEX for RDMA; otherwise one is chosen",
    "HEADWAY_HOST_ID": "ranks of one host with different values act as if they were on different hosts",
    "HEADWAY_SLOT_BYTES": "largest block between two ranks with which max_lag holds; all ranks must give the same",
    "HEADWAY_FLIGHT_RECORDER": "folder where each rank writes what it did last when a group fails",
    "HEADWAY_LOG": "debug, info or warning: least level of the records that go to stderr",
    "HEADWAY_GROUP_SECRET": "secret of the job, equal on all ranks; without it one is drawn and passed by the store",
    "HEADWAY_GROUP_SECRET_FILE": "file that holds the secret, read instead of HEADWAY_GROUP_SECRET",
}

# Kubernetes sets variables with these endings in every pod for a Service named "headway" or "headway-...".
_SERVICE_ENDING = re.compile(
    r"_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$"
)


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Sorted names in ``environ`` that start with HEADWAY_ but are no setting of Headway.

    Names that Kubernetes derives from a Service are not among them.
    """
    names = (name for name in environ if name.startswith(_PREFIX) and name not in KNOWN_VARIABLES)
    return sorted(name for name in names if not _SERVICE_ENDING.search(name))


def check_environment(environ: Mapping[str, str] | None = None) -> None:
    """Rejects misspelt variables, which would otherwise be ignored silently.

    Other programs also own names that start with HEADWAY_, so a name that resembles no known variable passes.

    Args:
        environ: variables to check; None: ``os.environ``.
    Raises:
        ValueError: a name is close to a known one. The message is one line and names the known variable.
    """
    for name in unknown_variables(os.environ if environ is None else environ):
        known = meant_variable(name)
        if known is not None:
            raise ValueError(f"unknown environment variable {name}: did you mean {known}?")


def meant_variable(name: str) -> str | None:
    """The known variable that ``name`` misspells, or None. A misspelling has at most one edit per four
    letters, and may always have one."""
    written = _letters(name)
    distances = {known: _edit_distance(written, _letters(known)) for known in KNOWN_VARIABLES}
    nearest = min(distances, key=lambda known: distances[known])
    return nearest if distances[nearest] <= max(1, len(_letters(nearest)) // 4) else None


def _letters(name: str) -> str:
    """``name`` in upper case, without the common prefix and without underscores, which are easily forgotten."""
    return name.removeprefix(_PREFIX).replace("_", "").upper()


def _edit_distance(first: str, second: str) -> int:
    """Edit distance: number of insertions, deletions, replacements and swaps of neighbouring letters.

    Example: ENGINE and ENIGNE have distance 1 (one swap). Cost: O(len(first) * len(second)) time, three rows of memory.
    Source: optimal string alignment, Boytsov, "Indexing methods for approximate dictionary searching", 2011.
    """
    before: list[int] = []
    above = list(range(len(second) + 1))
    for row, letter in enumerate(first, start=1):
        current = [row]
        for column, other in enumerate(second, start=1):
            distance = min(above[column] + 1, current[-1] + 1, above[column - 1] + (letter != other))
            if row > 1 and column > 1 and letter == second[column - 2] and first[row - 2] == other:
                distance = min(distance, before[column - 2] + 1)
            current.append(distance)
        before, above = above, current
    return above[-1]
