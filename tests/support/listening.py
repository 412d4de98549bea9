# SPDX-License-Identifier: Apache-2.0
"""Addresses at which this process listens, as the kernel reports them."""

from __future__ import annotations

import psutil


def listening_addresses() -> set[str]:
    """Numeric IPv4 and IPv6 addresses at which this process listens."""
    sockets = psutil.Process().net_connections("tcp")
    return {each.laddr.ip for each in sockets if each.status == psutil.CONN_LISTEN}
