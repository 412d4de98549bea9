# SPDX-License-Identifier: Apache-2.0
"""Public names of :mod:`headway.comm.slots`: exchanges of CUDA tensors whose result is the receive buffer."""

from headway.comm.slots import Ring, Slot

__all__ = ["Ring", "Slot"]
