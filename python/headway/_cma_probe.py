"""May one rank read another's memory with process_vm_readv? Tries it between two children, as ranks are siblings.

Run as a script in a process of its own: prints a JSON object with an errno for each attempt, 0 where it worked.
``plain`` is as the system stands, ``with_ptracer`` after the owner has allowed it with PR_SET_PTRACER.
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
    """Reads memory of process ``pid``; returns (errno or 0, what was read)."""
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
    """Child that holds MESSAGE until a pipe closes; returns (pid, address of the message, the pipe's write end)."""
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
    """errno of a sibling's attempt to read; 0 where the right bytes came."""
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
