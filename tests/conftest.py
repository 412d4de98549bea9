# SPDX-License-Identifier: Apache-2.0
"""Lets signals that tests send reach the processes that tests start."""

import signal

# A background job of a shell ignores SIGINT, and its children inherit that. With a handler here, they get the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
