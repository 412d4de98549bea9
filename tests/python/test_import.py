# SPDX-License-Identifier: Apache-2.0
"""``import headway`` registers the backend and changes nothing else; PyTorch's autoload needs no import at all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: Program that imports headway and prints the attributes of torch, torchrec and fbgemm_gpu that the import changed.
CHANGES = """
import os, sys, types
import torch, torch.distributed, torch.multiprocessing
try:
    import torchrec.distributed
except ImportError:
    pass

def state():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in ("torch", "torchrec", "fbgemm_gpu") and isinstance(module, types.ModuleType):
            for key, value in list(vars(module).items()):
                found[name, key] = id(value)
                if isinstance(value, type):
                    for inner, attribute in list(vars(value).items()):
                        found[name, key, inner] = id(attribute)
    return found

environment, modules, before = dict(os.environ), set(sys.modules), state()
finders = list(sys.meta_path)
import headway
after = state()
assert dict(os.environ) == environment
assert sys.meta_path == finders
imported = {name for name in set(sys.modules) - modules if name.split(".")[0] in ("torch", "torchrec", "fbgemm_gpu")}
changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
changed = {key for key in changed if key[0] not in imported and not (key[0].rpartition(".")[0] and
           f"{key[0]}.{key[1]}" in imported)}
print(sorted(changed))
"""


def run_python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_DEVICE_MAX_CONNECTIONS"}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(ROOT)]), **variables}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=200)


def test_importing_headway_changes_only_the_list_of_backends() -> None:
    """Even where a setting is misspelt (an error at the first group) or a launcher (Open MPI) set its variables."""
    finished = run_python("-c", CHANGES, HEADWAY_TRANSPOT="a misspelt name", OMPI_COMM_WORLD_RANK="0",
                          OMPI_COMM_WORLD_SIZE="1")  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    changed = eval(finished.stdout)
    assert {key[1:] for key in changed} <= {("Backend", "HEADWAY")}, changed


def test_importing_headway_takes_less_than_100_ms() -> None:
    shortest_us = min(import_time_us() for _ in range(3))
    assert shortest_us < 100_000


def import_time_us() -> int:
    """Microseconds of ``import headway`` after torch is imported, its own imports included."""
    finished = run_python("-X", "importtime", "-c", "import torch, torch.distributed; import headway")
    assert finished.returncode == 0, finished.stderr
    found = re.search(r"\|\s*(\d+) \| headway$", finished.stderr, re.MULTILINE)
    assert found is not None
    return int(found.group(1))


@pytest.mark.parametrize("version", ["2.10.1", "2.16.0a0+git1"])
def test_a_torch_outside_the_supported_range_is_refused_in_one_line(version: str) -> None:
    finished = run_python("-c", f"import torch; torch.__version__ = {version!r}; import headway")
    assert finished.returncode != 0
    line = f"ImportError: torch {version} is installed, and headway supports torch 2.11 to 2.15"
    assert finished.stderr.splitlines()[-1] == line


@pytest.fixture
def entry_point(tmp_path: Path) -> Path:
    """Folder for PYTHONPATH whose distribution has the entry point of an installed Headway."""
    metadata = tmp_path / "headway-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: headway\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[torch.backends]\nheadway = headway_autoload:register\n")
    return tmp_path


#: Program that makes a group without an import of headway.
CREATE = """
import sys, torch, torch.distributed as dist
assert "headway" not in sys.modules
dist.init_process_group("headway", rank=0, world_size=1, init_method="file://{store}")
out = torch.zeros(2)
dist.all_to_all_single(out, torch.ones(2))
assert out.tolist() == [1, 1]
dist.destroy_process_group()
print("done")
"""


def test_a_group_needs_no_import_where_headway_is_installed(entry_point: Path) -> None:
    path = os.pathsep.join([str(entry_point), str(ROOT / "python")])
    finished = run_python("-c", CREATE.format(store=entry_point / "store"), PYTHONPATH=path)
    assert finished.stdout == "done\n", finished.stderr


def test_a_headway_for_another_torch_breaks_neither_torch_nor_the_error(entry_point: Path) -> None:
    package = entry_point / "headway"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('headway was built for torch 1.0: reinstall headway')\n")
    (entry_point / "headway_autoload.py").write_text((ROOT / "python/headway_autoload.py").read_text())
    path = str(entry_point)
    assert run_python("-c", "import torch; print('fine')", PYTHONPATH=path).stdout == "fine\n"
    finished = run_python("-c", CREATE.format(store=entry_point / "store"), PYTHONPATH=path)
    assert finished.returncode != 0
    assert "headway was built for torch 1.0: reinstall headway" in finished.stderr.splitlines()[-1]


#: The shim makes TorchRec treat a headway group as a real one, not as a fake group of its tests.
SHIM = """
import torch.distributed as dist, headway
from headway.comm import torchrec_shim
{before}
assert not torchrec_shim.is_installed()
headway.init(rank=0, world_size=1, init_method="file://{store}")
{after}
assert torchrec_shim.is_installed()
assert dist.group.WORLD._get_backend_name() == "headway"
"""


@pytest.mark.parametrize(("before", "after"), [("import torchrec", ""), ("", "import torchrec")])
def test_the_shim_is_installed_when_a_group_and_torchrec_meet(tmp_path: Path, before: str, after: str) -> None:
    pytest.importorskip("torchrec.sparse")  # tests/python/torchrec passes for a package of that name
    finished = run_python("-c", SHIM.format(before=before, after=after, store=tmp_path / "store"))
    assert finished.returncode == 0, finished.stderr
