# SPDX-License-Identifier: Apache-2.0
"""The snippets in README.md run, with small stand-ins for what they leave to the reader, and have at most six lines."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
#: Code before each snippet, by a word that only this snippet has.
PRELUDES = {
    "LagQueue": """
import torch
batches = [(torch.empty(4), torch.full((4,), float(step))) for step in range(5)]
done = []
use = done.append
""",
    "EmbeddingBagCollection": """
import torch, torch.distributed as dist, headway
from torchrec import EmbeddingBagConfig
dist.init_process_group("headway")
configs = [EmbeddingBagConfig(name="item", embedding_dim=8, num_embeddings=100, feature_names=["history"])]
Model = lambda bags: torch.nn.ModuleDict({"bags": bags})
""",
    "hstu_attention": "",
}
#: Code behind each snippet.
CHECKS = {
    "LagQueue": "done += queue.drain(); assert len(done) == 5; dist.destroy_process_group()",
    "EmbeddingBagCollection": "assert list(headway.torchrec.statistics(model)); dist.destroy_process_group()",
    "hstu_attention": "assert out.shape == (300, 4, 128) and out.isfinite().all()",
}


def snippets() -> dict[str, str]:
    """Maps the word of each snippet to the snippet."""
    blocks = re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return {word: block for block in blocks for word in PRELUDES if word in block}


@pytest.mark.parametrize("word", PRELUDES)
def test_a_snippet_runs_on_two_cpu_ranks(word: str, tmp_path: Path) -> None:
    if word == "EmbeddingBagCollection" and importlib.util.find_spec("torchrec") is None:
        pytest.skip("TorchRec is not installed")
    snippet = snippets()[word]
    assert len([line for line in snippet.splitlines() if line.strip()]) <= 6
    program = tmp_path / "snippet.py"
    program.write_text(PRELUDES[word] + snippet.replace('"cuda"', '"cpu"') + CHECKS[word], encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
