# SPDX-License-Identifier: Apache-2.0
"""Probes whether one rank may read another rank's memory with process_vm_readv (cross-memory attach, CMA).

The probe forks two children, because ranks of one host are siblings too. Run it as a script in a process of its own.
It prints a JSON object with one errno per attempt; 0 means success. ``plain`` is the attempt without preparation.
``with_ptracer`` is the attempt after the owner of the memory has called prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY).
"""

from __future__ import annotations

import ctypes
import errno
import json
import os

PR_SET_PTRACER = 0x59616D61
PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)
MESSAGE = b"headway reads a sibling's memory"


class _IoVector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def read_process(pid: int, address: int, size_bytes: int) -> tuple[int, bytes]:
    """Reads ``size_bytes`` bytes at ``address`` in process ``pid``.

    Returns:
        (0, the bytes) or (errno, b""). A short read is EIO.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    buffer = ctypes.create_string_buffer(size_bytes)
    local = _IoVector(ctypes.addressof(buffer), size_bytes)
    remote = _IoVector(address, size_bytes)
    flags, count = ctypes.c_ulong(0), ctypes.c_ulong(1)
    read = libc.process_vm_readv(pid, ctypes.byref(local), count, ctypes.byref(remote), count, flags)
    if read < 0:
        return ctypes.get_errno(), b""
    return (0 if read == size_bytes else errno.EIO), buffer.raw


def _fork_owner(*, allow: bool) -> tuple[int, int, int]:
    """Forks a child that holds MESSAGE until a pipe closes.

    Args:
        allow: the child permits any process to read its memory (PR_SET_PTRACER_ANY).
    Returns:
        (pid, address of the message, write end of the pipe). Closing the write end ends the child.
    """
    buffer = ctypes.create_string_buffer(MESSAGE, len(MESSAGE))
    ready_read, ready_write = os.pipe()
    stop_read, stop_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(stop_write)
        if allow:
            ctypes.CDLL(None).prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0)
        os.write(ready_write, b"1")
        os.read(stop_read, 1)
        os._exit(0)
    os.close(stop_read)
    os.close(ready_write)
    os.read(ready_read, 1)
    os.close(ready_read)
    return pid, ctypes.addressof(buffer), stop_write


def _attempt(*, allow: bool) -> int:
    """Lets one child read MESSAGE from another. Returns 0 if the bytes are right, else an errno."""
    owner, address, stop = _fork_owner(allow=allow)
    reader = os.fork()
    if reader == 0:
        code, content = read_process(owner, address, len(MESSAGE))
        os._exit(code or (0 if content == MESSAGE else errno.EIO))
    _, status = os.waitpid(reader, 0)
    os.close(stop)
    os.waitpid(owner, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    print(json.dumps({"plain": _attempt(allow=False), "with_ptracer": _attempt(allow=True)}))
