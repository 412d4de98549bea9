# SPDX-License-Identifier: Apache-2.0
"""The first group requests all 32 hardware queues of CUDA unless the user has set their number.

Streams that share a queue hold each other up while the first one waits for a peer.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch is built without CUDA")
@pytest.mark.parametrize(("given", "wanted"), [(None, "32"), ("1", "1")])
# The name tells the purpose; the test reads the variable only, so it needs no GPU.
def test_streams_that_wait_do_not_hold_up_others(given: str | None, wanted: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if given is not None:
        environment[VARIABLE] = given
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    program = (
        "import os, headway; headway.init(rank=0, world_size=1, init_method='tcp://127.0.0.1:0'); "
        f"print(os.environ['{VARIABLE}'])"
    )
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert run.stdout.strip() == wanted, run.stderr
