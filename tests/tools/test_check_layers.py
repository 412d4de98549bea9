"""The layer check finds a planted violation of each rule, and accepts allowed includes and imports."""

from pathlib import Path

import pytest
from check_layers import ROOT, check_tree


def plant(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "line", "reason"),
    [
        ("libcomm/src/ring.cpp", "#include <torch/extension.h>", "libcomm may not include torch"),
        ("libcomm/src/ring.cpp", "  #  include <ATen/ATen.h>", "libcomm may not include torch"),
        ("libcomm/include/headway/comm/ring.hpp", '#include "c10/util/Half.h"', "libcomm may not include torch"),
        ("libcomm/src/ring.cpp", "#include <Python.h>", "libcomm may not include torch"),
        ("libcomm/src/ring.cpp", "#include <headway/embedding/table.hpp>", "libcomm may not include embedding"),
        ("kernels/src/hstu.cpp", "#include <headway/comm/group.hpp>", "kernels may not include libcomm"),
        ("kernels/src/hstu.cpp", "#include <torch/torch.h>", "kernels may not include torch"),
        ("embedding/src/table.cpp", "#include <torch/torch.h>", "embedding may not include torch"),
        ("c10d_backend/src/work.cpp", "#include <headway/kernels/hstu.hpp>", "c10d_backend may not include kernels"),
        ("c10d_backend/src/work.cpp", "#include <gtest/gtest.h>", "c10d_backend may not include gtest"),
        ("python/headway/plan.py", "import dlrm_examples.bls_dlrm", "python may not import dlrm_examples"),
        ("python/headway/plan.py", "def f():\n    from benchmarks import dlrm", "python may not import benchmarks"),
        ("dlrm_examples/model.py", "from benchmarks.dlrm import run", "dlrm_examples may not import benchmarks"),
        ("dlrm_examples/model.py", "import tests.fixtures", "dlrm_examples may not import tests"),
        ("dlrm_examples/model.py", "from headway import _C", "headway._C, which is private to headway"),
        ("benchmarks/dlrm.py", "from tests.fixtures import logs", "benchmarks may not import tests"),
    ],
)
def test_finds_a_planted_violation(tmp_path: Path, name: str, line: str, reason: str) -> None:
    plant(tmp_path, name, f"{line}\n")
    (violation,) = check_tree(tmp_path)
    assert violation.startswith(f"{name}:{1 + line.count(chr(10))}: ")
    assert reason in violation


def test_finds_an_include_of_another_parts_private_header(tmp_path: Path) -> None:
    plant(tmp_path, "libcomm/src/ring.hpp", "#pragma once\n")
    plant(tmp_path, "c10d_backend/src/work.cpp", '#include "../../libcomm/src/ring.hpp"\n')
    assert check_tree(tmp_path) == ["c10d_backend/src/work.cpp:1: c10d_backend may not reach into libcomm/src/ring.hpp"]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("libcomm/src/ring.cpp", "#include <sys/mman.h>"),
        ("libcomm/src/ring.cpp", "#include <headway/comm/group.hpp>"),
        ("libcomm/src/ring.cpp", "// #include <torch/torch.h>"),
        ("c10d_backend/src/work.cpp", "#include <torch/csrc/distributed/c10d/Work.hpp>"),
        ("c10d_backend/src/work.cpp", "#include <headway/comm/group.hpp>"),
        ("embedding/torch/ops.cpp", "#include <torch/library.h>"),
        ("kernels/torch/ops.cpp", "#include <torch/library.h>"),
        ("python/headway/plan.py", "from headway import _C"),
        ("dlrm_examples/model.py", "import torch, torchrec, headway"),
        ("dlrm_examples/model.py", "from headway import __version__"),
        ("benchmarks/dlrm.py", "from dlrm_examples.bls_dlrm import demo"),
        ("tests/dlrm_examples/test_model.py", "import benchmarks.dlrm"),
    ],
)
def test_passes_what_is_allowed(tmp_path: Path, name: str, line: str) -> None:
    plant(tmp_path, name, f"{line}\n")
    assert check_tree(tmp_path) == []


def test_this_checkout_has_no_violation() -> None:
    assert check_tree(ROOT) == []
