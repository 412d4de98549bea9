# SPDX-License-Identifier: Apache-2.0
"""Public names of :mod:`headway.comm.metrics`: statistics of a group for Prometheus."""

from headway.comm.metrics import GroupCollector, register

__all__ = ["GroupCollector", "register"]
