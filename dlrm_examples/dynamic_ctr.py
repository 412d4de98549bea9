# SPDX-License-Identifier: Apache-2.0
"""Former name of :mod:`dlrm_examples.streaming_ctr`, kept for one release: ``python -m dlrm_examples.dynamic_ctr``."""

from __future__ import annotations

import runpy
import warnings

if __name__ == "__main__":
    warnings.warn(
        "dlrm_examples.dynamic_ctr is deprecated and will be removed: use dlrm_examples.streaming_ctr",
        DeprecationWarning,
        stacklevel=1,
    )
    runpy.run_module("dlrm_examples.streaming_ctr", run_name="__main__", alter_sys=True)
