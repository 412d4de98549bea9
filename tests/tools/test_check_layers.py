# SPDX-License-Identifier: Apache-2.0
"""The layer check finds a planted violation of each rule, and accepts allowed includes and imports."""

from pathlib import Path

import check_layers
import pytest
from check_layers import ROOT, check_tree


def plant(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "line", "reason"),
    [
        ("libcomm/src/channel/ring.cpp", "#include <torch/extension.h>", "libcomm may not include torch"),
        ("libcomm/src/channel/ring.cpp", "  #  include <ATen/ATen.h>", "libcomm may not include torch"),
        ("libcomm/include/headway/comm/ring.hpp", '#include "c10/util/Half.h"', "libcomm may not include torch"),
        ("libcomm/src/channel/ring.cpp", "#include <Python.h>", "libcomm may not include torch"),
        ("base/src/status.cpp", "#include <headway/comm/group.hpp>", "base may not include libcomm"),
        ("base/include/headway/base/log.hpp", "#include <torch/torch.h>", "base may not include torch"),
        ("libcomm/src/channel/ring.cpp", "#include <headway/embedding/table.hpp>", "libcomm may not include embedding"),
        ("kernels/src/hstu.cpp", "#include <headway/comm/group.hpp>", "kernels may not include libcomm"),
        ("kernels/src/hstu.cpp", "#include <torch/torch.h>", "kernels may not include torch"),
        ("embedding/src/table.cpp", "#include <torch/torch.h>", "embedding may not include torch"),
        ("c10d_backend/work/work.cpp", "#include <headway/kernels/hstu.hpp>", "c10d_backend may not include kernels"),
        ("c10d_backend/work/work.cpp", "#include <gtest/gtest.h>", "c10d_backend may not include gtest"),
        ("python/headway/plan.py", "import dlrm_examples.dlrm_inference", "python may not import dlrm_examples"),
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
    plant(tmp_path, "libcomm/src/channel/ring.hpp", "#pragma once\n")
    plant(tmp_path, "c10d_backend/work/work.cpp", '#include "../../libcomm/src/channel/ring.hpp"\n')
    assert check_tree(tmp_path) == [
        "c10d_backend/work/work.cpp:1: c10d_backend may not reach into libcomm/src/channel/ring.hpp"
    ]


@pytest.mark.parametrize(
    ("name", "target", "reason"),
    [
        ("system/epoll.hpp", "channel/ring.hpp", "upward include of channel/ring.hpp: system may not include channel"),
        ("channel/ring.cpp", "transport/tcp/frame.hpp", "upward include"),
        ("channel/ring.cpp", "transport/socket.hpp", "sideways include"),
        ("transport/shm/init.cpp", "transport/tcp/frame.hpp", "transport/shm may not include transport/tcp"),
        ("device/peer_copy/link.hpp", "device/group.hpp", "device/peer_copy may not include device"),
        ("transport/shm/init.cpp", "../../group/group.hpp", "upward include of group/group.hpp"),
    ],
)
def test_finds_an_include_of_the_same_or_a_higher_level(tmp_path: Path, name: str, target: str, reason: str) -> None:
    plant(tmp_path, f"libcomm/src/{name}", f'#include <vector>\n#include "{target}"\n')
    plant(tmp_path, f"libcomm/src/{target.removeprefix('../../')}", "#pragma once\n")
    (violation,) = check_tree(tmp_path)
    assert violation.startswith(f"libcomm/src/{name}:2: ")
    assert reason in violation


def test_passes_includes_of_the_same_folder_and_of_lower_levels(tmp_path: Path) -> None:
    plant(tmp_path, "libcomm/src/system/epoll.hpp", "#pragma once\n")
    plant(tmp_path, "libcomm/src/transport/socket.hpp", '#include "system/epoll.hpp"\n')
    plant(tmp_path, "libcomm/src/transport/tcp/frame.hpp", '#include "transport/socket.hpp"\n')
    plant(tmp_path, "libcomm/src/transport/tcp/init.cpp", '#include "transport/tcp/frame.hpp"\n#include "frame.hpp"\n')
    plant(tmp_path, "libcomm/src/group/connect.cpp", '#include "transport/tcp/frame.hpp"\n')
    assert check_tree(tmp_path) == []


def test_finds_a_source_in_a_folder_without_a_level(tmp_path: Path) -> None:
    plant(tmp_path, "libcomm/src/wires/wire.hpp", "#pragma once\n")
    plant(tmp_path, "libcomm/src/wire.hpp", "#pragma once\n")
    assert check_tree(tmp_path) == [
        f"libcomm/src/{name}:1: its folder has no level in _FOLDER_LEVELS" for name in ("wire.hpp", "wires/wire.hpp")
    ]


def test_passes_an_upward_include_that_is_listed_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, "libcomm/src/system/epoll.hpp", '#include "group/group.hpp"\n')
    plant(tmp_path, "libcomm/src/group/group.hpp", "#pragma once\n")
    assert len(check_tree(tmp_path)) == 1
    known = {("libcomm/src/system/epoll.hpp", "libcomm/src/group/group.hpp"): "a test"}
    monkeypatch.setattr(check_layers, "_UPWARD_INCLUDES", known)
    assert check_tree(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("libcomm/src/channel/ring.cpp", "#include <sys/mman.h>"),
        ("libcomm/src/channel/ring.cpp", "#include <headway/comm/group.hpp>"),
        ("libcomm/src/channel/ring.cpp", "#include <headway/base/status.hpp>"),
        ("kernels/src/hstu.cpp", "#include <headway/base/status.hpp>"),
        ("libcomm/src/channel/ring.cpp", "// #include <torch/torch.h>"),
        ("c10d_backend/work/work.cpp", "#include <torch/csrc/distributed/c10d/Work.hpp>"),
        ("c10d_backend/work/work.cpp", "#include <headway/comm/group.hpp>"),
        ("embedding/torch/ops.cpp", "#include <torch/library.h>"),
        ("kernels/torch/ops.cpp", "#include <torch/library.h>"),
        ("python/headway/plan.py", "from headway import _C"),
        ("dlrm_examples/model.py", "import torch, torchrec, headway"),
        ("dlrm_examples/model.py", "from headway import __version__"),
        ("benchmarks/dlrm.py", "from dlrm_examples.dlrm_inference import demo"),
        ("tests/dlrm_examples/test_model.py", "import benchmarks.dlrm"),
    ],
)
def test_passes_what_is_allowed(tmp_path: Path, name: str, line: str) -> None:
    plant(tmp_path, name, f"{line}\n")
    assert check_tree(tmp_path) == []


def test_this_checkout_has_no_violation() -> None:
    assert check_tree(ROOT) == []
