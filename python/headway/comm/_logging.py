# SPDX-License-Identifier: Apache-2.0
"""Log records of the C++ library as records of Python's ``logging``.

The library logs what an operator may want to know: which transport serves which peer, failures, a slow start. A record
of subsystem "group" goes to the logger ``headway.group``. Its rank is part of the message and an attribute, ``rank``,
for formats such as ``"%(rank)s %(message)s"``; it is -1 if the event belongs to no group.

The levels of the loggers decide what is shown, as always in Python. ``HEADWAY_LOG=info`` does both at once: it sets the
level of the logger ``headway`` and prints its records on stderr.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from datetime import timedelta

from headway.comm._extension import flush_log, set_log_function

_VARIABLE = "HEADWAY_LOG"
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}
_FORMAT = "%(asctime)s %(name)s %(levelname)s: %(message)s"


def install(environ: Mapping[str, str] | None = None) -> None:
    """Passes the library's records to ``logging`` from now on.

    Args:
        environ: environment variables; None: ``os.environ``.
    Raises:
        ValueError: ``HEADWAY_LOG`` names no level.
    """
    name = (os.environ if environ is None else environ).get(_VARIABLE)
    if name is not None:
        _print_records(name)
    set_log_function(_pass_on)


_installed_for: int | None = None  #: Pid of the process in which install_once() has already run.


def install_once() -> None:
    """Does what ``install()`` does, once per process; called before each group is created.

    A forked child inherits the logging handler, but must set the library's log function again.
    """
    global _installed_for
    if _installed_for == os.getpid():
        return
    if _installed_for is None:
        install()
    else:
        set_log_function(_pass_on)
    _installed_for = os.getpid()


def end(timeout: timedelta) -> None:
    """Delivers pending records, and sends later ones to stderr. For the exit of the program.

    Args:
        timeout: longest wait; records that are not delivered by then go to stderr.
    """
    flush_log(timeout)
    set_log_function(None)
    flush_log(timeout)  # The log's thread may have been inside the function.


def _print_records(name: str) -> None:
    if name not in _LEVELS:
        raise ValueError(f"{_VARIABLE} must be debug, info or warning, not '{name}'")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT))
    logger = logging.getLogger("headway")
    logger.addHandler(handler)
    logger.setLevel(_LEVELS[name])
    logger.propagate = False  # A handler of the root logger would print each record again.


def _pass_on(level: int, subsystem: str, rank: int, message: str) -> None:
    """Called by the library, on the thread of its log."""
    prefix = f"rank {rank}: " if rank >= 0 else ""
    logging.getLogger(f"headway.{subsystem}").log(level, "%s%s", prefix, message, extra={"rank": rank})
