# SPDX-License-Identifier: Apache-2.0
"""Makes the creation of C++ threads fail."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

#: More than the address space: no stack of this size can be mapped.
_IMPOSSIBLE_STACK_BYTES = 1 << 47
_LIBC = ctypes.CDLL(None, use_errno=True)


def _set_default_stack(size_bytes: int | None) -> None:
    """Sets the stack size of threads that C++ makes from now on. None sets the usual size."""
    attributes = ctypes.create_string_buffer(256)
    assert _LIBC.pthread_attr_init(attributes) == 0
    if size_bytes is None:
        size_bytes = 8 << 20
    assert _LIBC.pthread_attr_setstacksize(attributes, ctypes.c_size_t(size_bytes)) == 0
    assert _LIBC.pthread_setattr_default_np(attributes) == 0
    _LIBC.pthread_attr_destroy(attributes)


@contextlib.contextmanager
def no_threads() -> Iterator[None]:
    """Makes the creation of each C++ thread fail with EAGAIN, as at a limit of the system."""
    _set_default_stack(_IMPOSSIBLE_STACK_BYTES)
    try:
        yield
    finally:
        _set_default_stack(None)
