"""Signals that tests send must arrive in what they start."""

import signal

# A background job of a shell ignores the interrupt and hands that on. What is started under a handler gets the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
