# SPDX-License-Identifier: Apache-2.0
"""A project outside of the build tree finds the installed libraries, exchanges data and looks up embeddings."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
CMAKE = Path(sys.executable).parent / "cmake"
LIMIT_S = 240


def run(*command: str | Path) -> None:
    finished = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=LIMIT_S)
    assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.fixture(scope="module")
def consumer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the consumer's programs against an installation. Returns their folder."""
    if not (BUILD / "CMakeCache.txt").exists():
        pytest.skip("build/ is not configured: run `make build`")
    folder = tmp_path_factory.mktemp("package")
    for component in ("headway_comm", "headway_embedding"):
        run(CMAKE, "--install", BUILD, "--component", component, "--prefix", folder / "installed")
    run(CMAKE, "-S", ROOT / "examples/cmake_consumer", "-B", folder / "build", "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_PREFIX_PATH={folder / 'installed'}")  # fmt: skip
    run(CMAKE, "--build", folder / "build")
    return folder / "build"


def run_ranks(program: Path, size: int, store: Path) -> list[str]:
    """Runs a program on several ranks, which must all succeed. Returns what each printed."""
    ranks = [
        subprocess.Popen([str(program), str(rank), str(size), str(store)], stdout=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    try:
        outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * size, outputs
    return outputs


@pytest.mark.parametrize("size", [1, 3])
def test_a_consumer_of_the_package_exchanges_data(consumer: Path, tmp_path: Path, size: int) -> None:
    outputs = run_ranks(consumer / "exchange", size, tmp_path / "store")
    assert outputs == [f"rank {rank} of {size}: all numbers are right\n" for rank in range(size)]


# After one step id 7 has 1 - 1.5 * size, and a rank's own id 0.5: the sums of the bags (7, own) and (7, 7).
@pytest.mark.parametrize(("size", "sums"), [(1, "0 and -1"), (2, "-1.5 and -4")])
def test_a_consumer_of_the_package_looks_up_embeddings(consumer: Path, tmp_path: Path, size: int, sums: str) -> None:
    outputs = run_ranks(consumer / "lookup", size, tmp_path / "store")
    assert outputs == [f"rank {rank} of {size}: sums {sums}, as expected\n" for rank in range(size)]


def test_the_installed_package_does_not_name_the_build_tree(consumer: Path) -> None:
    installed = consumer.parent / "installed"
    configs = list(installed.rglob("*.cmake"))
    assert configs
    assert [path for path in configs if str(ROOT) in path.read_text(encoding="utf-8")] == []
