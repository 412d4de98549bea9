# SPDX-License-Identifier: Apache-2.0
"""Probes whether the GPUs of this host can export their memory as dma-buf. Creates no CUDA context.

Run it as a script in a process of its own. It prints a JSON object. ``devices`` holds one bool per GPU: True if the GPU
exports dma-buf. If there is no CUDA driver, or cuInit() fails, ``devices`` is empty and ``problem`` says why.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any

CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124


def probe() -> dict[str, Any]:
    """Queries the CUDA driver; returns the object that the script prints."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {"devices": [], "problem": "no CUDA driver"}
    if code := driver.cuInit(0):
        return {"devices": [], "problem": f"cuInit failed with CUDA error {code}"}
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    if not hasattr(driver, "cuMemGetHandleForAddressRange"):
        return {"devices": [False] * count.value}
    return {"devices": [_exports_dma_buf(driver, ordinal) for ordinal in range(count.value)]}


def _exports_dma_buf(driver: ctypes.CDLL, ordinal: int) -> bool:
    device, answer = ctypes.c_int(), ctypes.c_int()
    if driver.cuDeviceGet(ctypes.byref(device), ordinal):
        return False
    code = driver.cuDeviceGetAttribute(ctypes.byref(answer), CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, device)
    return code == 0 and answer.value != 0


if __name__ == "__main__":
    print(json.dumps(probe()))
