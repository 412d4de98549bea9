# SPDX-License-Identifier: Apache-2.0
"""From training to served predictions on one host: trains a small GRM, exports it, serves it by several ranks in three
ways, and shows how latency grows with the rate of requests.

Run it from a checkout, with the environment of ``make``: ``python examples/serving/train_and_serve.py``. It takes some
four minutes on two cores, most of them for the compiler. Each rank waits 0 to 10 ms for the ids of a batch, as if it
had to ask a service for features: that is where bounded lag pays.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HEADWAY = [sys.executable, "-m", "headway_launcher"]  # The command `headway`, also where it is not installed.
WAYS = {
    "ring, max_lag 0": ["--fetch", "ring", "--max-lag", "0"],
    "ring, max_lag 2": ["--fetch", "ring", "--max-lag", "2"],
    "pairwise": ["--fetch", "pairwise"],
}
RATES = (100, 200, 400, 800, 1600)  # Requests a second, of 8 items each.
START_S = 120


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2, help="processes that serve (default: 2)")
    parser.add_argument("--seconds", type=int, default=3, help="of each rate (default: 3)")
    parser.add_argument("--out", type=Path, default=Path("out/serving"), help="gets everything (default: out/serving)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    package = options.out / "package"
    if not package.exists():
        step("train a GRM on generated logs")
        run("train", "--out", str(options.out / "grm"))
        step("export it: compile its dense part for two sizes of batches")
        run("export", str(options.out / "grm"), str(package), "--bucket", "16,2,256", "--bucket", "128,16,2048")
    rows = []
    for way, words in WAYS.items():
        step(f"serve it by {options.ranks} ranks: {way}")
        with serve(package, options.ranks, words, options.out / "serve.log") as addresses:
            for rate in RATES:
                rows.append((way, rate, send(package, addresses, rate, options.seconds, options.out / "load.json")))
    print_table(rows)
    draw(rows, options.out / "latency.png")


def step(text: str) -> None:
    print(f"\n== {text}", flush=True)


def run(*words: str) -> None:
    """Runs a command of headway, and ends the program if it fails."""
    if subprocess.run([*HEADWAY, *words]).returncode != 0:
        sys.exit(f"headway {words[0]} has failed")


@contextlib.contextmanager
def serve(package: Path, ranks: int, words: Sequence[str], log: Path) -> Iterator[list[str]]:
    """Starts ``headway serve``, waits until all ranks serve, and yields their addresses."""
    port = free_ports(ranks)
    command = [*HEADWAY, "serve", str(package), "--ranks", str(ranks), "--port", str(port), *words]
    command += ["--key-delay", "5000", "--max-rows", "64", "--batch-delay", "0"]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        ends = time.monotonic() + START_S
        while log.read_text().count(" serves version ") < ranks:
            if process.poll() is not None or time.monotonic() > ends:
                sys.exit(f"headway serve has failed:\n{log.read_text()}")
            time.sleep(0.05)
        yield [f"127.0.0.1:{port + rank}" for rank in range(ranks)]
    finally:
        process.terminate()
        process.wait(START_S)


def free_ports(count: int) -> int:
    """First of several ports that nobody listens at."""
    while True:
        with socket.socket() as first, contextlib.ExitStack() as stack, contextlib.suppress(OSError, OverflowError):
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            for each in range(port + 1, port + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", each))
            return port


def send(package: Path, addresses: Sequence[str], rate: int, seconds: int, results: Path) -> dict[str, Any]:
    """Sends requests at random times, and returns what ``headway load`` reports."""
    results.unlink(missing_ok=True)
    run("load", "--package", str(package), "--address", ",".join(addresses), "--rate", str(rate), "--rows", "8",
        "--history", "10", "--ids", "300", "--seconds", str(seconds), "--json", str(results))  # fmt: skip
    found: dict[str, Any] = json.loads(results.read_text())
    return found


def print_table(rows: Sequence[tuple[str, int, dict[str, Any]]]) -> None:
    print(f"\n{'rows come by':18}{'offered/s':>11}{'answered/s':>12}{'refused':>9}{'p50':>10}{'p99':>10}")
    for way, rate, found in rows:
        refused = sum(found["statuses"].values()) - found["statuses"].get("OK", 0)
        print(f"{way:18}{rate:11}{found['answered_per_s']:12.0f}{refused:9}"
              f"{found['p50_ms']:7.1f} ms{found['p99_ms']:7.1f} ms")  # fmt: skip


def draw(rows: Sequence[tuple[str, int, dict[str, Any]]], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)  # Draws without a display.
    axes = figure.subplots()
    for way in WAYS:
        points = [(rate, found["p99_ms"]) for name, rate, found in rows if name == way and found["answered_per_s"] > 0]
        axes.plot(*zip(*points, strict=True), marker="o", label=way)
    axes.set(xscale="log", yscale="log", xlabel="requests a second", ylabel="99% of answers came within (ms)")
    axes.set_title("Each batch waits 0 to 10 ms for its ids")
    axes.legend()
    figure.savefig(path, dpi=120)
    print(f"\n{path}")


if __name__ == "__main__":
    main()
