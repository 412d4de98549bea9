"""The environment variables that Headway reads, and the check that no other one is set."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping

_PREFIX = "HEADWAY_"

#: Name and meaning of every variable. A name that starts with HEADWAY_ and is not here is a mistake of the user's.
KNOWN_VARIABLES: Mapping[str, str] = {
    "HEADWAY_ENGINE": "transport to use: auto (default), shm, tcp or verbs",
    "HEADWAY_RDMA_DEVICE": "DEVICE, DEVICE:PORT or DEVICE:PORT:GID_INDEX for RDMA; otherwise one is chosen",
    "HEADWAY_HOST_ID": "ranks of one host with different values act as if they were on different hosts",
    "HEADWAY_SLOT_BYTES": "largest block per pair of ranks that may lag; all ranks must give the same",
    "HEADWAY_FLIGHT_RECORDER": "folder where each rank writes what it did last when a group fails",
    "HEADWAY_GROUP_SECRET": "secret of the job, equal on all ranks; without it one is drawn and passed by the store",
    "HEADWAY_GROUP_SECRET_FILE": "file that holds the secret, read instead of HEADWAY_GROUP_SECRET",
}


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Names in ``environ`` that start with HEADWAY_ and mean nothing to Headway, sorted."""
    return sorted(name for name in environ if name.startswith(_PREFIX) and name not in KNOWN_VARIABLES)


def check_environment(environ: Mapping[str, str] | None = None) -> None:
    """Refuses a misspelt variable, which would otherwise be ignored in silence.

    Args:
        environ: variables to look at; ``os.environ`` where None.
    Raises:
        ValueError: a variable starts with HEADWAY_ and is not known; one line, with the nearest known name.
    """
    unknown = unknown_variables(os.environ if environ is None else environ)
    if not unknown:
        return
    # What all names share says nothing about likeness.
    endings = [name.removeprefix(_PREFIX) for name in KNOWN_VARIABLES]
    near = difflib.get_close_matches(unknown[0].removeprefix(_PREFIX), endings, n=1)
    advice = f"did you mean {_PREFIX}{near[0]}?" if near else f"known are {', '.join(sorted(KNOWN_VARIABLES))}"
    raise ValueError(f"unknown environment variable {unknown[0]}: {advice}")
