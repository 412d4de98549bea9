# SPDX-License-Identifier: Apache-2.0
"""``ServingRanks``: the processes of the ranks that ``headway serve`` starts on one host.

Idea: one loop looks at the processes ten times a second. A rank that a signal has ended is started again, since the
others wait for it. If it ends again within a second, the next start waits, each time twice as long. A rank that has
ended by itself would do so again, so all are ended.

With ``drains`` the loop also looks at the package. For another version it lets all ranks answer what they have accepted
and end, and starts them with the new one, so there is never memory for two versions. Example: a link points to v1, and
then to v2. v2 is checked. All ranks get SIGTERM, and start with v2 once they have ended. If one of them ends by itself
within ten minutes, or three do by signals, as for lack of memory, all start with v1 again, and v2 is refused.

Invariant: all ranks are started with the same folder.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

_POLL_S = 0.1
_TRIAL_S, _MOST_DEATHS = 600.0, 2  #: A new version has so long, and so many lost ranks.
_QUICK_S, _FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 0.5, 30.0


class ServingRanks:
    """The processes of all ranks.

    Args:
        size: number of ranks.
        command_of: command of a rank that serves a folder.
        package: folder, or a link to one.
        drains: whether a new version restarts the ranks. Otherwise they follow the package themselves.
    """

    def __init__(self, size: int, command_of: Callable[[int, Path], list[str]], package: Path, *, drains: bool) -> None:
        self._size = size
        self._command_of = command_of
        self._package = package
        self._drains = drains
        self._served = package.resolve() if drains else package
        self._before: Path | None = None  # Served before the last restart, while the new version is on trial.
        self._trial_ends = 0.0
        self._num_deaths = 0  # By signals, during the trial.
        self._signalled: set[int] = set()  # Processes that were told to end.
        self._refused: Path | None = None
        self._next: Path | None = None  # Served once all ranks have drained.
        self._is_ending = False
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._started_at = dict.fromkeys(range(size), 0.0)
        self._start_at: dict[int, float] = {}  # Ranks that have to be started again.
        self._pause_s = dict.fromkeys(range(size), 0.0)

    def run(self) -> int:
        """Runs until a signal ends it, or a rank cannot serve. Returns the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        signal.signal(signal.SIGUSR1, self._pass_on)
        self._start_all()
        status = 0
        while True:
            ended = self._take_ended()
            if self._is_ending or self._next is not None:
                self._drain()  # A process may have been started while the signal came.
            if time.monotonic() > self._trial_ends:
                self._before = None
            if self._is_ending:
                status = next((each for each in (status, *ended.values()) if each != 0), 0)
                if not self._processes:
                    return abs(status)
            elif self._next is not None:
                if not self._processes:
                    self._restart()
            else:
                for rank, status_of_rank in ended.items():
                    self._num_deaths += status_of_rank < 0
                    if self._before is not None and (status_of_rank >= 0 or self._num_deaths > _MOST_DEATHS):
                        self._return_to(self._before)
                        break
                    if status_of_rank < 0:
                        self._plan_start(rank, -status_of_rank)
                    else:
                        status = status_of_rank or 1
                        self._end()
                if not self._is_ending and self._next is None:
                    for rank in [rank for rank, when in self._start_at.items() if when <= time.monotonic()]:
                        self._start(rank)
                    if self._drains:
                        self._look_at_package()
            time.sleep(_POLL_S)

    def _start_all(self) -> None:
        for rank in range(self._size):
            if not self._is_ending:
                self._start(rank)

    def _restart(self) -> None:
        """Serves the next version. It is on trial, unless it is the one before."""
        assert self._next is not None
        is_return = self._next == self._before
        self._before, self._served, self._next = None if is_return else self._served, self._next, None
        self._trial_ends, self._num_deaths = time.monotonic() + _TRIAL_S, 0
        self._start_all()

    def _start(self, rank: int) -> None:
        self._start_at.pop(rank, None)
        self._started_at[rank] = time.monotonic()
        self._processes[rank] = subprocess.Popen(self._command_of(rank, self._served))

    def _plan_start(self, rank: int, number: int) -> None:
        """Starts a rank again that a signal has ended, at once or after a pause."""
        is_quick = time.monotonic() < self._started_at[rank] + _QUICK_S
        self._pause_s[rank] = min(max(_FIRST_PAUSE_S, 2 * self._pause_s[rank]), _LONGEST_PAUSE_S) if is_quick else 0.0
        self._start_at[rank] = time.monotonic() + self._pause_s[rank]
        print(f"headway serve: signal {number} ended rank {rank}; it is started again", flush=True)

    def _take_ended(self) -> dict[int, int]:
        """Ranks that have ended, and their exit status, below 0 for a signal."""
        ended = {}
        for rank, process in list(self._processes.items()):
            status = process.poll()
            if status is not None:
                ended[rank] = status
                self._signalled.discard(process.pid)
                del self._processes[rank]
        return ended

    def _look_at_package(self) -> None:
        folder = self._package.resolve()
        if folder in (self._served, self._refused):
            return
        from headway.serving.package import Manifest, PackageError, describe_difference  # Imports torch.

        try:
            manifest = Manifest.read(folder)
            manifest.expect_files(folder)
            difference = describe_difference(Manifest.read(self._served), manifest)
        except PackageError as error:
            difference = str(error)
        if difference:
            print(f"headway serve: {folder} is refused: {difference}", flush=True)
            self._refused = folder
            return
        print(f"headway serve: ranks drain, and start again with {folder}", flush=True)
        self._next = folder
        self._drain()

    def _return_to(self, folder: Path) -> None:
        """Serves a folder again, as a rank could not serve the newer one."""
        print(f"headway serve: {self._served} is refused, as a rank has ended; ranks return to {folder}", flush=True)
        self._refused, self._next = self._served, folder
        self._drain()

    def _drain(self) -> None:
        self._start_at.clear()
        for process in list(self._processes.values()):
            if process.pid not in self._signalled:
                self._signalled.add(process.pid)
                process.send_signal(signal.SIGTERM)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        for process in self._processes.values():
            process.send_signal(number)

    def _end(self, number: int = signal.SIGTERM, frame: FrameType | None = None) -> None:
        self._is_ending = True
        self._drain()
