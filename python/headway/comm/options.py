# SPDX-License-Identifier: Apache-2.0
"""Completes the options of a group from environment variables."""

from __future__ import annotations

import copy
import os
import pathlib
import stat
from collections.abc import Mapping
from datetime import timedelta

from torch.distributed.distributed_c10d import GroupName

from headway._deprecation import warn_renamed
from headway.comm._extension import Options


def complete_options(
    given: Options | None,
    *,
    timeout: timedelta,
    group_name: str,
    global_ranks: list[int],
    environ: Mapping[str, str] | None = None,
) -> Options:
    """Merges the options of one group: given options win over the environment, which wins over the defaults.

    Args:
        given: the caller's ``pg_options``, which are not changed, or None.
        timeout: timeout of ``init_process_group()`` or ``new_group()``; a timeout in ``given`` takes precedence.
        group_name: c10d's name of the group.
        global_ranks: the group's ranks in the default group; empty for the default group itself.
        environ: variables to read; None: ``os.environ``. ``_environment.py`` lists them.
    Raises:
        TypeError: ``given`` is not ``headway.Options``.
        ValueError: a variable has an invalid value.
    """
    if given is not None and not isinstance(given, Options):
        raise TypeError(f"pg_options of a headway group must be headway.Options, not {type(given).__name__}")
    environ = os.environ if environ is None else environ
    options = Options() if given is None else copy.deepcopy(given)
    if "HEADWAY_ENGINE" in environ:
        warn_renamed("HEADWAY_ENGINE", "HEADWAY_TRANSPORT")
    transport = environ.get("HEADWAY_TRANSPORT", environ.get("HEADWAY_ENGINE", "auto"))
    if options.transport == "auto" and transport != "auto":
        options.transport = transport
    if not options.interface:
        options.interface = environ.get("HEADWAY_INTERFACE", "")
    if not options.rdma_device:
        options.rdma_device = environ.get("HEADWAY_RDMA_DEVICE", "")
    if not options.has_slot_bytes and "HEADWAY_SLOT_BYTES" in environ:
        options.slot_bytes = _read_integer("HEADWAY_SLOT_BYTES", environ)
    if not options.has_secret:
        _set_secret(options, environ)
    options._flight_folder = prepare_flight_folder(environ)
    if options.timeout is None:
        options._timeout = timeout
    options.group_name = GroupName(group_name)
    options.global_ranks_in_group = global_ranks
    return options


def _set_secret(options: Options, environ: Mapping[str, str]) -> None:
    try:
        options._set_secret(read_secret(environ))
    except ValueError as error:
        if str(error).startswith("secret "):  # The library rejected the value; the message lacks the variable.
            name = "HEADWAY_GROUP_SECRET" if environ.get("HEADWAY_GROUP_SECRET") else "HEADWAY_GROUP_SECRET_FILE"
            raise ValueError(f"{name}: {error}") from None
        raise


def read_secret(environ: Mapping[str, str]) -> str:
    """The job's secret from ``HEADWAY_GROUP_SECRET_FILE`` or ``HEADWAY_GROUP_SECRET``; empty if neither is set.

    Ranks prove to each other that they know the secret when they connect.

    Raises:
        ValueError: both are set, or the file cannot be read or is empty.
    """
    path, value = environ.get("HEADWAY_GROUP_SECRET_FILE"), environ.get("HEADWAY_GROUP_SECRET", "")
    if path is None:
        return value
    if value:
        raise ValueError("set HEADWAY_GROUP_SECRET or HEADWAY_GROUP_SECRET_FILE, not both")
    try:
        secret = pathlib.Path(path).read_text().strip()
    except OSError as error:
        raise ValueError(f"HEADWAY_GROUP_SECRET_FILE: {error}") from error
    if not secret:
        raise ValueError(f"HEADWAY_GROUP_SECRET_FILE: {path} is empty")
    return secret


def prepare_flight_folder(environ: Mapping[str, str]) -> str:
    """Creates the folder that ``HEADWAY_FLIGHT_RECORDER`` names, if missing, and checks it.

    A failing group writes its last operations there. The check happens now, because it would be too late then.

    Returns:
        the absolute path; empty if the variable is not set.
    Raises:
        ValueError: the folder cannot be created or written to, or other users could tamper with it.
    """
    name = environ.get("HEADWAY_FLIGHT_RECORDER")
    if name is None:
        return ""
    if not name:
        raise ValueError("HEADWAY_FLIGHT_RECORDER is empty: it names a folder")
    folder = pathlib.Path(name).absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _expect_own(folder, folder.lstat())
        folder = folder.resolve()
        status = folder.stat()
    except OSError as error:
        raise ValueError(f"HEADWAY_FLIGHT_RECORDER: {error}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"HEADWAY_FLIGHT_RECORDER: {name!r} is not a folder that can be written to")
    _expect_own(folder, status)
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise ValueError(
            f"HEADWAY_FLIGHT_RECORDER: {folder} can be written to by everybody, and is not sticky: they could put"
            " links where a rank writes; use a folder of your own"
        )
    return str(folder)


def _expect_own(path: pathlib.Path, status: os.stat_result) -> None:
    """Rejects a path whose owner is neither this user nor root: the owner could redirect files by symbolic links."""
    if status.st_uid not in (os.geteuid(), 0):
        raise ValueError(
            f"HEADWAY_FLIGHT_RECORDER: {path} belongs to another user ({status.st_uid}); use a folder of your own"
        )


def _read_integer(name: str, environ: Mapping[str, str]) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise ValueError(f"{name} must be a number of bytes, not {environ[name]!r}") from None
