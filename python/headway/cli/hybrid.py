# SPDX-License-Identifier: Apache-2.0
"""The command ``headway hybrid``: roles of a hybrid training, from one configuration file.

``run`` starts and watches all roles on this host. The dense workers run a script, or without one ``headway train`` by
the same file. ``ps`` becomes one parameter server, as Kubernetes, Slurm or systemd start it. ``status`` asks servers
and embedding workers for their state.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from headway._hybrid import ServerStatus, WorkerStatus, query_status, query_worker_status
from headway.cli.built_programs import program_path
from headway.cli.one_line_parser import OneLineParser
from headway.config_files import ConfigError, read_toml
from headway.hybrid.checkpoints import newest_checkpoint
from headway.hybrid.config import TRAINING_OUT, HybridConfig
from headway.hybrid.worker_members import find_workers

_POLL_S = 0.1
_WORKERS_END_S = 45.0  #: Time in which dense workers have to end after SIGTERM. torchrun gives its workers 30 s.
_SERVERS_END_S = 10.0
_LAST_ERRORS_S = 1.0  #: Time in which the last errors of dense workers come after their end.
_PR_SET_PDEATHSIG = 1
_WRONG_USAGE = 2  #: Exit status.
_STATUS_TIMEOUT_S = 5.0
_SECRET = "HEADWAY_GROUP_SECRET"


@dataclasses.dataclass
class _Role:
    name: str
    process: subprocess.Popen[bytes]


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = OneLineParser(prog="headway hybrid", description="trains with parameter servers")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    run = commands.add_parser("run", help="start and watch all roles on this host")
    ps = commands.add_parser("ps", help="become one parameter server")
    worker = commands.add_parser("worker", help="become one embedding worker")
    status = commands.add_parser("status", help="show the state of servers and embedding workers")
    for each in (run, ps, worker, status):
        each.add_argument("config", type=Path, help="TOML file")
    run.add_argument("--workers", type=int, default=1, metavar="N", help="dense workers (default: 1)")
    for role, section in ((ps, "servers"), (worker, "workers")):
        role.add_argument("--index", type=int, help=f"of its address in {section}.addresses")
        role.add_argument("--listen", metavar="HOST:PORT", help="numeric address, if that in the file is a name")
        role.add_argument("--metrics", metavar="HOST:PORT", help="for Prometheus (default: as [metrics] says)")
    status.add_argument("--json", action="store_true", help="one JSON line per server and embedding worker")
    status.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds over which rates are measured (default: 1)"
    )
    run.usage = (
        "headway hybrid run CONFIG.toml [--workers N] -- SCRIPT.py [argument ...]\n"
        "       headway hybrid run CONFIG.toml [--workers N] [-- option of headway train ...]"
    )
    words = list(argv)
    arguments = words[words.index("--") + 1 :] if "--" in words else []
    options = parser.parse_args(words[: words.index("--")] if "--" in words else words)
    try:
        config = HybridConfig.load(options.config)
    except ConfigError as error:
        parser.error(str(error))
    if options.command in ("ps", "worker"):
        is_server = options.command == "ps"
        addresses = config.servers.addresses if is_server else config.workers.addresses
        if not is_server and config.workers.discover:
            if options.index is not None:
                parser.error("--index is for workers.addresses, and the file has workers.discover")
            addresses, options.index = (f"0.0.0.0:{config.workers.discovered_port}",), 0
        if options.index is None:
            parser.error("--index is missing")
        if not 0 <= options.index < len(addresses):
            parser.error(f"--index must be from 0 to {len(addresses) - 1}, not {options.index}")
        command_of = server_command if is_server else worker_command
        metrics = options.metrics or config.metrics_address("server" if is_server else "worker", options.index)
        command = command_of(config, options.listen or addresses[options.index], metrics)
        os.execv(command[0], command)
    if options.command == "status":
        if not 0 <= options.interval <= 3600:
            parser.error(f"--interval must be from 0 to 3600, not {options.interval:g}")
        return _print_status(config, as_json=options.json, interval_s=options.interval)
    if config.workers.discover:
        parser.error("run starts the embedding workers of workers.addresses, and the file has workers.discover")
    if options.workers < 1:
        parser.error(f"--workers must be from 1, not {options.workers}")
    has_script = bool(arguments) and not arguments[0].startswith("-")
    if not has_script and "data" not in read_toml(options.config):
        parser.error(f"run needs a script (headway hybrid run CONFIG.toml -- train.py), or [data] in {options.config}")
    if has_script:
        return _run(config, script_command(arguments, num_workers=options.workers))
    folder = checkpoints_of_train(arguments)
    config = dataclasses.replace(config, checkpoints=dataclasses.replace(config.checkpoints, folder=str(folder)))
    command = train_command(options.config, arguments, num_workers=options.workers)
    return _run(config, command, again=("--resume", "auto"))


def script_command(script: Sequence[str], *, num_workers: int) -> list[str]:
    """Returns the command of dense workers that run a script."""
    if num_workers == 1:
        return [sys.executable, *script]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    return [*torchrun, str(num_workers), *script]


def train_command(config: Path, options: Sequence[str], *, num_workers: int) -> list[str]:
    """Returns the command of dense workers that run ``headway train``, which starts them itself."""
    return [sys.executable, "-m", "headway_launcher", "train", str(config), "--ranks", str(num_workers), *options]


def server_command(config: HybridConfig, address: str, metrics: str | None) -> list[str]:
    """Returns the command of a server that listens at ``address``, and for Prometheus at ``metrics``."""
    return [
        str(program_path("headway-ps")),
        *("--address", address),
        *("--job", config.job.name),
        *("--threads", str(config.servers.threads)),
        *("--max-request-mib", str(config.servers.max_request_mib)),
        *("--strict", str(int(config.servers.strict))),
        *(("--metrics", metrics) if metrics else ()),
    ]


def worker_command(config: HybridConfig, address: str, metrics: str | None) -> list[str]:
    """Returns the command of an embedding worker that listens at ``address``, and for Prometheus at ``metrics``."""
    return [
        str(program_path("headway-embedding-worker")),
        *("--servers", ",".join(config.servers.addresses)),
        *("--address", address),
        *("--job", config.job.name),
        *("--threads", str(config.workers.threads)),
        *("--timeout", str(round(config.job.timeout_s * 1000))),
        *("--connect-timeout", str(round(config.job.connect_timeout_s * 1000))),
        *("--max-request-mib", str(config.servers.max_request_mib)),
        *("--buffer-mib", str(config.workers.buffer_mib)),
        *("--leave-timeout", str(round(config.workers.leave_timeout_s * 1000))),
        *(("--metrics", metrics) if metrics else ()),
    ]


def checkpoints_of_train(options: Sequence[str]) -> Path:
    """Returns the folder of checkpoints of ``headway train`` with these options."""
    parser = OneLineParser(prog="headway train", add_help=False)
    parser.add_argument("--out", type=Path, default=TRAINING_OUT)
    out: Path = parser.parse_known_args(options)[0].out
    return out / "checkpoints"


def _print_status(config: HybridConfig, *, as_json: bool, interval_s: float) -> int:
    """Prints a line for each server and embedding worker; returns 1 if one does not answer."""
    roles = [(f"server {index}", address, _server_fields) for index, address in enumerate(config.servers.addresses)]
    try:
        workers = find_workers(config)
    except OSError as error:
        _say(f"workers.discover = {config.workers.discover}: {error}")
        workers = []
    roles += [(f"worker {index}", address, _worker_fields) for index, address in enumerate(workers)]
    before = {name: _ask(name, address, fields_of, config) for name, address, fields_of in roles}
    if interval_s > 0:
        time.sleep(interval_s)
    is_complete = bool(workers) or not config.workers.are_there
    for name, address, fields_of in roles:
        first = before[name]
        fields = first if first is None or interval_s == 0 else _ask(name, address, fields_of, config)
        if first is None or fields is None:
            is_complete = False
            continue
        kind, index = name.split()
        if interval_s > 0:
            elapsed_s = fields["asked_at"] - first["asked_at"]
            for each in _RATES[kind]:
                fields[f"{each}_per_s"] = round((fields[each] - first[each]) / elapsed_s, 1)
        del fields["asked_at"]
        if as_json:
            print(json.dumps({kind: int(index), "address": address, **fields}))
        else:
            print(f"{name} at {address}:")
            print("".join(f"  {key}: {_text_of(value)}\n" for key, value in fields.items()), end="")
    return 0 if is_complete else 1


#: Bytes of messages, without their compression and as they were sent.
_MESSAGE_BYTES = ("plain_id_bytes", "sent_id_bytes", "plain_value_bytes", "sent_value_bytes")
#: Counters of which rates are shown.
_RATES = {"server": ("num_applied", "samples", "lookups", "parts"), "worker": ("submitted", "trained", "read")}


def _ask(
    name: str, address: str, fields_of: Callable[[str, HybridConfig], dict[str, Any]], config: HybridConfig
) -> dict[str, Any] | None:
    """Returns the state of a role; None: it does not answer, which is told on stderr."""
    try:
        fields = fields_of(address, config)
    except (RuntimeError, ValueError) as error:
        print(f"headway hybrid: {name} at {address}: {' '.join(str(error).split())}", file=sys.stderr)
        return None
    return {**fields, "asked_at": time.monotonic()}


def _server_fields(address: str, config: HybridConfig) -> dict[str, Any]:
    status: ServerStatus = query_status(address, job=config.job.name, timeout_s=_STATUS_TIMEOUT_S)
    names = ("generation", "num_applied", "lookups", "reads", "samples", "parts", "voids", "lost", "held", "rows",
             "cold_rows", "pending", "bytes", "evicted", "refused", "dropped_gradients", *_MESSAGE_BYTES,
             "staleness")  # fmt: skip
    fields = {name: getattr(status, name) for name in names}
    fields["waited_for"] = [{"lookups": count, "seconds": round(seconds, 6)} for count, seconds in status.waits]
    fields["alpha"] = {
        name: round(top / max(1, status.samples), 6)
        for table in status.tables
        for name, top in table["top_lookups"].items()
    }
    fields["tables"] = {
        "+".join(table["top_lookups"]): {name: value for name, value in table.items() if name != "top_lookups"}
        for table in status.tables
    }
    return fields


def _worker_fields(address: str, config: HybridConfig) -> dict[str, Any]:
    status: WorkerStatus = query_worker_status(address, job=config.job.name, timeout_s=_STATUS_TIMEOUT_S)
    names = ("generation", "submitted", "fetched", "trained", "read", "dropped", "lost", "waiting_loaders", "buffered",
             "buffered_bytes", "in_flight", "loader_waits", "loader_wait_s", "answered", *_MESSAGE_BYTES,
             "servers")  # fmt: skip
    return {name: getattr(status, name) for name in names}


def _text_of(value: Any) -> str:
    """Returns a value in one line; a dictionary without its zeros."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text_of(each)}" for name, each in value.items() if each) or "none"
    if isinstance(value, list):
        return "; ".join(map(_text_of, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


class _EndSignal:
    """Remembers the SIGTERM or SIGINT that ends the job; 0: none has come."""

    def __init__(self) -> None:
        self.number = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._take)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.number = number


def _run(config: HybridConfig, workers_command: Sequence[str], *, again: Sequence[str] = ()) -> int:
    """Runs a job, also again from its newest checkpoint when it has lost a role; returns the exit status.

    The last line of a job that fails names the first role that has ended. A restart prints the same line, and goes on.
    Its dense workers get the arguments ``again``, too. Wrong arguments or settings (exit status 2) stay wrong.
    """
    end = _EndSignal()
    environ = dict(os.environ)
    if _SECRET not in environ and f"{_SECRET}_FILE" not in environ:
        environ[_SECRET] = secrets.token_hex(16)
    num_restarts, most = 0, config.checkpoints.max_restarts
    while True:
        arguments = again if num_restarts else ()
        status, why = _run_roles(config, [*workers_command, *arguments], environ, end)
        may_restart = bool(why) and status != _WRONG_USAGE and not end.number and num_restarts < most
        checkpoint = newest_checkpoint(config) if may_restart else None
        if checkpoint is None or end.number:
            break
        num_restarts += 1
        _say(f"{why}: all roles start again, from {checkpoint} (restart {num_restarts} of {most})")
    if why:
        _say(why)
    return status


def _say(text: str) -> None:
    print(f"headway hybrid: {text}", file=sys.stderr, flush=True)


def _run_roles(
    config: HybridConfig, workers_command: Sequence[str], environ: Mapping[str, str], end: _EndSignal
) -> tuple[int, str]:
    """Starts all roles, and ends all when one does; returns the exit status, and why the job has failed."""
    servers: list[_Role] = []
    workers: _Role | None = None
    try:
        if config.mode != "local":
            for kind, addresses, command_of in (
                ("parameter server", config.servers.addresses, server_command),
                ("embedding worker", config.workers.addresses, worker_command),
            ):
                for index, address in enumerate(addresses):
                    metrics = config.metrics_address("server" if command_of is server_command else "worker", index)
                    process = _start(command_of(config, address, metrics), environ, stdout=subprocess.DEVNULL)
                    servers.append(_Role(f"{kind} {index} at {address}", process))
        workers = _Role("the dense workers", _start(workers_command, environ, stderr=subprocess.PIPE))
        errors = _ErrorOutput(workers.process)
        while not end.number:
            for role in (*servers, workers):
                status = role.process.poll()
                if status is None:
                    continue
                if role is workers and status == 0:
                    return 0, ""
                lost = errors.lost_loader() if role is workers and status > 0 else ""
                return status if status > 0 else 1, lost or f"{role.name} ended ({_described(status)})"
            time.sleep(_POLL_S)
        return 128 + end.number, f"ended by {signal.Signals(end.number).name}"
    finally:
        # Servers last: workers may still wait for them.
        _end_all([] if workers is None else [workers.process], _WORKERS_END_S)
        _end_all([role.process for role in servers], _SERVERS_END_S)


class _ErrorOutput:
    """Passes the error output of dense workers on, and looks for the loss of a loader in its end.

    Loaders are processes of PyTorch's DataLoader, which raises an error in the dense worker when one is lost. If it is
    lost while a batch is taken from it, the error is that of the connection by which its memory is passed on. A loader
    has such an error, too, when its dense worker is lost, but not in the call that takes a batch.
    """

    _KEPT_BYTES = 1 << 16
    _LOST_LOADER = re.compile(rb"RuntimeError: (DataLoader worker \(pid[^\n]*(?:killed by signal|exited)[^\n]*)")
    _LOST_CONNECTION = re.compile(
        rb'in _try_get_data.*multiprocessing/resource_sharer\.py".*'
        rb"^((?:Connection\w+Error|FileNotFoundError|EOFError)[^\n]*)",
        re.DOTALL | re.MULTILINE,
    )

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        self._stream = process.stderr
        self._end = b""
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def _pass_on(self) -> None:
        while block := os.read(self._stream.fileno(), 1 << 12):
            with contextlib.suppress(OSError):  # Nobody reads the errors of this process.
                sys.stderr.buffer.write(block)
                sys.stderr.buffer.flush()
            self._end = (self._end + block)[-self._KEPT_BYTES :]

    def lost_loader(self) -> str:
        """Describes the loader whose loss has ended the dense workers; empty if it was something else."""
        self._thread.join(timeout=_LAST_ERRORS_S)
        found = self._LOST_LOADER.search(self._end) or self._LOST_CONNECTION.search(self._end)
        if found is None:
            return ""
        return f"a loader of the dense workers ended ({found[1].decode(errors='replace').strip()})"


def _start(command: Sequence[str], environ: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts a role in a process group of its own, which ends with this process."""
    return subprocess.Popen(command, env=environ, process_group=0, preexec_fn=_end_with_parent, **options)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _described(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _end_all(processes: Sequence[subprocess.Popen[bytes]], limit_s: float) -> None:
    """Ends processes by SIGTERM, and what is left of their process groups by SIGKILL."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    until = time.monotonic() + limit_s
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=max(0.0, until - time.monotonic()))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
