# SPDX-License-Identifier: Apache-2.0
"""Builds a wheel, installs it into a new environment that borrows this one's packages, and uses it elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 1800

#: Program of each of two ranks: an all-to-all, an update of a table, and attention, with the installed package.
EXCHANGE = """
import os, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("headway")
rows = torch.tensor([10 * rank, 10 * rank + 1])
out = torch.empty_like(rows)
dist.all_to_all_single(out, rows)
assert out.tolist() == [rank, 10 + rank], out
import headway
assert "site-packages" in headway.__file__, headway.__file__
from headway.embedding import FeatureConfig, HashTableCollection, Sgd, TableConfig
tables = HashTableCollection(tables=[TableConfig("t", dim=2, optimizer=Sgd(lr=1.0))],
                             features=[FeatureConfig("f", table="t")], process_group=dist.group.WORLD)
one = {"f": (torch.tensor([-7, 1 << 40]), torch.tensor([2]))}
before = tables(one)["f"]
before.sum().backward()
tables.optimizer.step()
torch.testing.assert_close(tables(one)["f"], before - 2)
from headway import ops, reference
heads, offsets = torch.randn(5, 2, 8), torch.tensor([0, 2, 5])
ours, plain = (each.hstu_attention(heads, heads, heads, offsets, max_length=3) for each in (ops, reference))
torch.testing.assert_close(ours, plain)
dist.destroy_process_group()
"""


def run(command: list[str], folder: Path) -> str:
    """Runs ``command`` in ``folder`` without the checkout on any path; returns its output. Exits if it fails."""
    print("+", " ".join(command), flush=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    # scikit-build-core searches ninja on PATH.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    finished = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    if finished.returncode != 0:
        sys.exit(f"{finished.stdout}\nexit status {finished.returncode}: {' '.join(command)}")
    return finished.stdout


def build_wheel(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    # The build of the tests has compiled the same sources, the CUDA kernels too. With its flags instead of those of a
    # release, the compiler cache has most objects.
    settings = ["cmake.define.HEADWAY_BUILD_CUDA=OFF", "cmake.build-type=RelWithDebInfo"]
    chosen = [f"--config-settings={setting}" for setting in settings]
    run([*pip, "wheel", "--no-build-isolation", "--no-deps", *chosen, "-w", str(folder), str(ROOT)], folder)
    (wheel,) = folder.glob("headway-*.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    """Checks that the wheel has extensions, types, programs and licence, and no file outside its packages."""
    names = zipfile.ZipFile(wheel).namelist()
    for needed in ("headway/__init__.py", "headway/py.typed", "headway_launcher.py", "headway_autoload.py",
                   "headway/_C.", "headway/_embedding.", "headway/_hybrid.", "headway/bin/headway-ps",
                   "headway/bin/headway-embedding-worker", "headway/hybrid/__init__.py",
                   "headway/libheadway_operators.so", "headway/embedding/__init__.py",
                   "headway/nn/__init__.py", "headway/torchrec/__init__.py", "/LICENSE",
                   "headway/_programs/dlrm_examples/dlrm_inference/demo.py",
                   "headway/_programs/benchmarks/all_to_all.py",
                   "headway/_programs/build/benchmarks/all_to_all/bench_all_to_all_headway"):  # fmt: skip
        if not any(needed in name for name in names):
            sys.exit(f"the wheel lacks {needed}")
    tops = {name.split("/")[0] for name in names}
    foreign = {top for top in tops if not top.startswith("headway")}
    unwanted = [name for name in names if "__pycache__" in name or "/results/" in name]
    if foreign or unwanted:
        sys.exit(f"the wheel also holds {sorted(foreign) + unwanted}")


def make_environment(folder: Path, wheel: Path) -> Path:
    """Creates an environment with the wheel that borrows other packages from this one; returns its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    site = next((folder / "lib").glob("python*/site-packages"))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "-q", "--disable-pip-version-check"]
    run([*pip, "install", "--no-deps", "--no-index", str(wheel)], folder)
    # Python searches a folder named in a .pth file, but reads no .pth files in it. So the checkout is not on the path.
    # After the installation, or pip would take an installed headway there for this one.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="headway-wheel-") as name:
        folder = Path(name)
        wheel = build_wheel(folder)
        print(f"built {wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB")
        check_contents(wheel)
        python = make_environment(folder / "venv", wheel)
        headway = str(python.with_name("headway"))
        for arguments in (["version"], ["doctor"], ["bench", "--list"], ["demo", "--help"]):
            print(run([headway, *arguments], folder))
        (folder / "exchange.py").write_text(EXCHANGE, encoding="utf-8")
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "exchange.py"]
        run([str(python), *torchrun], folder)
    print("the wheel works")
    return 0


if __name__ == "__main__":
    sys.exit(main())
