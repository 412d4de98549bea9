"""The environment variables that Headway reads, and the check that none of them is misspelt."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_PREFIX = "HEADWAY_"

#: Name and meaning of every variable.
KNOWN_VARIABLES: Mapping[str, str] = {
    "HEADWAY_ENGINE": "transport to use: auto (default), shm, tcp or verbs",
    "HEADWAY_INTERFACE": "network interface for traffic between hosts, by name or by one of its addresses",
    "HEADWAY_RDMA_DEVICE": "DEVICE, DEVICE:PORT or DEVICE:PORT:GID_INDEX for RDMA; otherwise one is chosen",
    "HEADWAY_HOST_ID": "ranks of one host with different values act as if they were on different hosts",
    "HEADWAY_SLOT_BYTES": "largest block per pair of ranks that may lag; all ranks must give the same",
    "HEADWAY_FLIGHT_RECORDER": "folder where each rank writes what it did last when a group fails",
    "HEADWAY_GROUP_SECRET": "secret of the job, equal on all ranks; without it one is drawn and passed by the store",
    "HEADWAY_GROUP_SECRET_FILE": "file that holds the secret, read instead of HEADWAY_GROUP_SECRET",
}

# Kubernetes puts these into every pod for a Service named "headway" or "headway-...".
_SERVICE_ENDING = re.compile(
    r"_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$"
)


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Names in ``environ`` that start with HEADWAY_ and mean nothing to Headway, sorted.

    The names that Kubernetes derives from a Service are left out.
    """
    names = (name for name in environ if name.startswith(_PREFIX) and name not in KNOWN_VARIABLES)
    return sorted(name for name in names if not _SERVICE_ENDING.search(name))


def check_environment(environ: Mapping[str, str] | None = None) -> None:
    """Refuses a misspelt variable, which would otherwise be ignored in silence.

    Other programs own names that start with HEADWAY_ as well, so a name that resembles no known one passes.

    Args:
        environ: variables to look at; ``os.environ`` where None.
    Raises:
        ValueError: a variable is almost the name of a known one; one line, with the known name.
    """
    for name in unknown_variables(os.environ if environ is None else environ):
        known = meant_variable(name)
        if known is not None:
            raise ValueError(f"unknown environment variable {name}: did you mean {known}?")


def meant_variable(name: str) -> str | None:
    """The known variable that ``name`` is a misspelling of, if any: at most one edit per four letters."""
    written = _letters(name)
    distances = {known: _edit_distance(written, _letters(known)) for known in KNOWN_VARIABLES}
    nearest = min(distances, key=lambda known: distances[known])
    return nearest if distances[nearest] <= max(1, len(_letters(nearest)) // 4) else None


def _letters(name: str) -> str:
    """The part that tells ``name`` apart: all names share the prefix, and underscores get lost easily."""
    return name.removeprefix(_PREFIX).replace("_", "").upper()


def _edit_distance(first: str, second: str) -> int:
    """Letters to insert, drop, replace or swap with a neighbour to get from one to the other.

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
