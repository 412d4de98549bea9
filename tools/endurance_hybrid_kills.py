# SPDX-License-Identifier: Apache-2.0
"""Kills roles of hybrid training at random moments, many times, and looks whether the job resumes each time.

Usage: python tools/endurance_hybrid_kills.py KILLS [ROLE...]
  KILLS  number of kills of each role
  ROLE   server, embedding_worker, dense_worker, loader (default: all)

Each role has a job of its own: ``headway hybrid run`` with two servers, an embedding worker, a dense worker and a
loader process, and a checkpoint every 20 steps. A kill comes at a random moment of a life of the roles, from their
start on. The job has to name the role within LIMIT_S, to start again from a checkpoint, and to make all steps after the
last kill. HEADWAY_TEST_SEED is the seed of the moments. Prints a line for each role; the exit status is 1 if anything
went wrong.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import psutil

LIMIT_S = 90.0  #: From a kill to the line that names the role.
LIFE_S = 180.0  #: From a start of the roles to the first step.
STEPS = 1200  #: Least number of steps of a job.
STEPS_OF_A_LIFE = 150  #: More than a life makes before it is killed.
ROLES = ("server", "embedding_worker", "dense_worker", "loader")

SCRIPT = """
import sys, time
import torch
from headway import hybrid
from headway.embedding import Adam, FeatureConfig, TableConfig

CONFIGS = {"tables": [TableConfig("item", dim=4, optimizer=Adam(lr=0.01))],
           "features": [FeatureConfig("item", table="item", pooling="sum")]}


class Log(torch.utils.data.IterableDataset):
    def __init__(self, first, last):
        self.first, self.last, self.loader = first, last, hybrid.Loader(sys.argv[1], **CONFIGS)

    def __iter__(self):
        for step in range(self.first, self.last):
            draw = torch.Generator().manual_seed(step)
            ids = torch.randint(0, 1000, (32,), generator=draw), torch.full((8,), 4)
            yield hybrid.Batch(self.loader.submit({"item": ids}), torch.zeros(8, 1), torch.zeros(8, 1))


if __name__ == "__main__":
    tables = hybrid.connect(sys.argv[1], **CONFIGS)
    model = torch.nn.Linear(4, 1)
    dense = torch.optim.SGD(model.parameters(), lr=0.01)
    checkpoints = hybrid.Checkpoints(sys.argv[1], tables, model, dense)
    checkpoints.resume()
    print("begins at", tables.step, flush=True)
    source = torch.utils.data.DataLoader(Log(tables.step, int(sys.argv[2])), batch_size=None, num_workers=1)
    for batch in hybrid.batches(tables, source):
        dense.zero_grad()
        (model(tables(batch.features)["item"]) - batch.labels).square().sum().backward()
        dense.step()
        tables.optimizer.step()
        time.sleep(0.005)
        checkpoints.save_if_due()
    print("ends at", tables.step, flush=True)
"""


class Job:
    """A job of one host, whose output is read by threads."""

    def __init__(self, folder: Path, max_restarts: int, num_steps: int) -> None:
        ports = [_free_port() for _ in range(3)]
        self.servers = [f"127.0.0.1:{port}" for port in ports[:2]]
        self.worker = f"127.0.0.1:{ports[2]}"
        config, script = folder / "job.toml", folder / "train.py"
        config.write_text(
            f'mode = "hybrid"\nstaleness = 2\n[job]\ntimeout_s = 60.0\n[servers]\naddresses = {self.servers}\n'
            f'[workers]\naddresses = ["{self.worker}"]\n[checkpoints]\nfolder = "{folder / "checkpoints"}"\n'
            f"every_steps = 20\nmax_restarts = {max_restarts}\n"
        )
        script.write_text(SCRIPT)
        self.folder = folder
        command = [sys.executable, "-m", "headway_launcher", "hybrid", "run", str(config), "--", str(script)]
        self.process = subprocess.Popen(
            [*command, str(config), str(num_steps)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._readers = []
        for stream, lines in ((self.process.stdout, self.out), (self.process.stderr, self.err)):
            assert stream is not None
            self._readers.append(threading.Thread(target=lines.extend, args=(stream,), daemon=True))
            self._readers[-1].start()

    def said(self) -> list[str]:
        """Lines by which ``run`` names roles."""
        return [line.strip() for line in list(self.err) if line.startswith("headway hybrid: ")]

    def end(self) -> None:
        """Ends the job if it has not ended, and reads the rest of its output."""
        self.process.terminate()
        self.process.wait(timeout=90)
        for reader in self._readers:
            reader.join(timeout=10)

    def num_begun(self) -> int:
        """Returns the number of lives that have begun to train. A life that was killed before is none."""
        return sum("begins at" in line for line in list(self.out))

    def has_begun(self, lives: int) -> bool:
        """Have so many lives begun to train, and is there a checkpoint? Or has the job ended?"""
        has_checkpoint = any((self.folder / "checkpoints").glob("step_*/manifest.json"))
        return (has_checkpoint and self.num_begun() >= lives) or self.process.poll() is not None

    def wait_for_moment(self, lives: int, moment_s: float, trained_s: float) -> None:
        """Waits for a time, or until a life has trained for a time. The steps of a life last longer than that."""
        start, began = time.monotonic(), float("inf")
        while time.monotonic() < min(start + moment_s, began + trained_s):
            time.sleep(0.02)
            if began == float("inf") and self.has_begun(lives):
                began = time.monotonic()

    def has_said(self, count: int) -> bool:
        """Has ``run`` named roles so often, or ended?"""
        return len(self.said()) >= count or self.process.poll() is not None

    def find(self, role: str, draw: random.Random, limit_s: float) -> tuple[psutil.Process, str] | None:
        """Waits for a process of a role; returns it and the pattern of the line that names it."""
        index = draw.randrange(len(self.servers))
        server = self.servers[index]
        words, pattern = {
            "server": (server, rf"parameter server {index} at {server} ended \(killed by SIGKILL"),
            "embedding_worker": (self.worker, rf"embedding worker 0 at {self.worker} ended \(killed by SIGKILL"),
            "dense_worker": ("train.py", r"the dense workers ended \(killed by SIGKILL\)"),
            "loader": ("train.py", r"a loader of the dense workers ended \("),
        }[role]
        until = time.monotonic() + limit_s
        while time.monotonic() < until and self.process.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                for each in psutil.Process(self.process.pid).children():
                    command = each.cmdline()
                    # A child has the command of `run` until it executes its own.
                    if "run" in command or not any(words in (word, Path(word).name) for word in command):
                        continue
                    loaders = [] if role != "loader" else [child for child in each.children() if child.cmdline()]
                    if role != "loader" or loaders:
                        return (each if role != "loader" else loaders[0]), pattern
            time.sleep(0.01)
        return None


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait(condition: Callable[[], object], limit_s: float) -> bool:
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.02)
    return False


def run_kills(roles: Sequence[str], draw: random.Random, folder: Path, num_steps: int = STEPS) -> bool:
    """Runs a job, and kills a role in each life but the last; returns whether all went well."""
    began = time.monotonic()
    job = Job(folder, max_restarts=len(roles), num_steps=num_steps)
    hangs, unnamed, durations = 0, 0, [0.0]
    longest = 0.0  # Seconds from the start of a life to a few steps.
    try:
        for number, role in enumerate(roles):
            lives, begun = number + 1, time.monotonic()
            if number == 0 or longest == 0.0:
                if not _wait(partial(job.has_begun, lives), LIFE_S) or job.process.poll() is not None:
                    print(f"life {lives} did not begin within {LIFE_S} s: {job.err[-10:]}", file=sys.stderr)
                    hangs += 1
                    break
                longest = 1.3 * (time.monotonic() - begun)
            else:
                job.wait_for_moment(job.num_begun() + 1, draw.uniform(0.0, longest), trained_s=draw.uniform(0.0, 3.0))
            found = job.find(role, draw, LIFE_S)
            if found is None:
                hangs += job.process.poll() is None  # Else it has made all steps before.
                break
            process, pattern = found
            process.send_signal(signal.SIGKILL)
            killed = time.monotonic()
            if not _wait(partial(job.has_said, lives), LIMIT_S):
                hangs += 1
                break
            durations.append(time.monotonic() - killed)
            if len(job.said()) < lives or not re.search(pattern, job.said()[number]):
                unnamed += 1
                last = "".join(job.err[-40:])
                print(f"kill {number} of {role}: {job.said()[number:]}, after:\n{last}", file=sys.stderr)
        try:
            job.process.wait(timeout=0.0 if hangs else LIFE_S + 0.5 * num_steps)
        except subprocess.TimeoutExpired:
            hangs += 1
    finally:
        job.end()
    has_ended = f"ends at {num_steps}\n" in job.out
    resumed = [int(line.split()[-1]) for line in job.out if line.startswith("begins at")]
    print(
        f"{', '.join(dict.fromkeys(roles))}: {len(durations) - 1} kills, {hangs} hangs, {unnamed} errors without the "
        f"role, {len(resumed)} lives trained, the last one from step {resumed[-1:]}, "
        f"{'all' if has_ended else 'not all'} {num_steps} steps made, exit status {job.process.returncode}; "
        f"a kill was named within {statistics.median(durations[1:] or [0]):.1f} s (median), {max(durations):.1f} s "
        f"(most); {time.monotonic() - began:.0f} s",
        flush=True,
    )
    if not has_ended:
        print("".join(job.err[-40:]), file=sys.stderr)
    return hangs == 0 and unnamed == 0 and has_ended and resumed == sorted(resumed)


def main(argv: list[str]) -> int:
    """Runs the command line; returns the exit status."""
    if not argv or not argv[0].isdecimal() or int(argv[0]) < 1 or any(each not in ROLES for each in argv[1:]):
        print(f"usage: python tools/endurance_hybrid_kills.py KILLS [{' | '.join(ROLES)}]...", file=sys.stderr)
        return 2
    draw = random.Random(int(os.environ.get("HEADWAY_TEST_SEED", "0")))
    went_well = True
    for role in argv[1:] or ROLES:
        with tempfile.TemporaryDirectory() as folder:
            num_steps = max(STEPS, STEPS_OF_A_LIFE * int(argv[0]))
            went_well = run_kills([role] * int(argv[0]), draw, Path(folder), num_steps) and went_well
    return 0 if went_well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
