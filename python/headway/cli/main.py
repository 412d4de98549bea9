# SPDX-License-Identifier: Apache-2.0
"""The command ``headway``; its subcommands are in ``_COMMANDS``."""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from headway._environment import KNOWN_VARIABLES, check_environment
from headway.cli.one_line_parser import OneLineParser
from headway.cli.process_memory import keep_freed_memory

_DESCRIPTION = """\
Headway moves embedding rows between the ranks of a recommendation model, and lets ranks run a bounded
distance apart, so that one late rank does not stop all others at every exchange.

start here:
  headway doctor         what this machine offers and what Headway will use of it
  headway demo           DLRM inference on 4 processes, with and without lag; table and report
  headway train          trains a small generative recommender on 4 processes
  headway bench --list   the benchmarks
"""


def programs_root() -> Path:
    """Folder with ``benchmarks`` and ``dlrm_examples``: ``_programs`` of an installed package, else the checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_programs"
    return installed if installed.is_dir() else package.parents[1]


def find_benchmarks(root: Path) -> dict[str, str]:
    """Maps the name of each benchmark under ``root`` to its description, without importing any.

    A benchmark is a file ``benchmarks/NAME.py`` that assigns a string to ``DESCRIPTION``.
    """
    found = {}
    for path in sorted((root / "benchmarks").glob("*.py")):
        description = _description_in(path)
        if description is not None:
            found[path.stem] = description
    return found


def _description_in(path: Path) -> str | None:
    for node in ast.parse(path.read_text(encoding="utf-8"), filename=str(path)).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id == "DESCRIPTION" for target in targets):
            return str(ast.literal_eval(node.value))
    return None


def _load_package() -> None:
    """Imports ``headway`` in full.

    The console script (headway_launcher.py) puts an empty package of that name into ``sys.modules``, since the
    import takes seconds and may fail. This removes it first.
    """
    package = sys.modules.get("headway")
    if package is not None and getattr(package, "__file__", None) is None:
        del sys.modules["headway"]
    importlib.import_module("headway")


def _run_program(module_name: str, arguments: Sequence[str], prog: str) -> int:
    """Calls ``main(arguments)`` in a module of ``dlrm_examples`` or ``benchmarks``; returns the exit status."""
    root = str(programs_root())
    sys.path.insert(0, root)
    # Child processes of the program must find the same folders.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    try:
        _load_package()
        program = importlib.import_module(module_name)
    except ImportError as error:
        print(f"{prog}: {_one_line(error)}. `headway doctor` says what is missing.", file=sys.stderr)
        return 1
    sys.argv[0] = prog
    status = program.main(list(arguments))
    return int(status or 0)


def _run_bench(arguments: list[str]) -> int:
    benchmarks = find_benchmarks(programs_root())
    width = max((len(name) for name in benchmarks), default=0)
    lines = [f"  {name:<{width}}  {text}" for name, text in benchmarks.items()]
    listing = "\n".join(lines or ["  (none in this installation)"])
    parser = OneLineParser(
        prog="headway bench",
        usage="headway bench NAME [options]\n       headway bench NAME --help",
        description="Runs one benchmark: a table, plots, and one JSON line a point.",
        epilog=f"benchmarks:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--list", action="store_true", help="print the benchmarks and leave")
    parser.add_argument("name", nargs="?", metavar="NAME", help="one of the benchmarks below")
    chosen = parser.parse_args(arguments[:1])
    if chosen.list:
        print(listing)
        return 0
    if chosen.name is None:
        parser.error("which benchmark?")
    if chosen.name not in benchmarks:
        parser.error(f"unknown benchmark '{chosen.name}': there are {', '.join(benchmarks) or 'none'}")
    return _run_program(f"benchmarks.{chosen.name}", arguments[1:], f"headway bench {chosen.name}")


def _run_demo(arguments: list[str]) -> int:
    return _run_program("dlrm_examples.dlrm_inference.demo", arguments, "headway demo")


def _run_train(arguments: list[str]) -> int:
    keep_freed_memory()
    return _run_program("dlrm_examples.grm.train", arguments, "headway train")


def _run_export(arguments: list[str]) -> int:
    try:
        _load_package()
        from headway.serving.command_line import main as export
    except ImportError as error:
        print(f"headway export: {_one_line(error)}. `headway doctor` says what is missing.", file=sys.stderr)
        return 1
    return export(arguments)


def _run_serve(arguments: list[str]) -> int:
    from headway.cli.serve import main as serve

    return serve(arguments)


def _run_load(arguments: list[str]) -> int:
    from headway.cli.serve import load

    return load(arguments)


def _run_hybrid(arguments: list[str]) -> int:
    try:
        _load_package()
        from headway.cli.hybrid import main as hybrid
    except ImportError as error:
        print(f"headway hybrid: {_one_line(error)}. `headway doctor` says what is missing.", file=sys.stderr)
        return 1
    return hybrid(arguments)


def _run_doctor(arguments: list[str]) -> int:
    from headway.cli.doctor import main as doctor

    return doctor(arguments)


def _run_flight_records(arguments: list[str]) -> int:
    _load_package()
    from headway.cli.flight_records import main as flight_records

    return flight_records(arguments)


def _run_version(arguments: list[str]) -> int:
    OneLineParser(prog="headway version", description="Prints the version of Headway.").parse_args(arguments)
    print(f"headway {version()}")
    return 0


def version() -> str:
    """Version of the installed package, else the version in the checkout's pyproject.toml."""
    try:
        return importlib.metadata.version("headway")
    except importlib.metadata.PackageNotFoundError:
        import tomllib

        project = tomllib.loads((programs_root() / "pyproject.toml").read_text(encoding="utf-8"))
        return str(project["project"]["version"])


_COMMANDS = {
    "doctor": (_run_doctor, "what this host offers, what Headway uses of it, what to fix"),
    "demo": (_run_demo, "DLRM inference with and without lag; table, plots and report"),
    "train": (_run_train, "train a generative recommender; without CONFIG.toml a small one on generated logs"),
    "hybrid": (_run_hybrid, "train with parameter servers: run a job, one role of it, or show its state"),
    "export": (_run_export, "write a checkpoint of `headway train` as a package for serving"),
    "serve": (_run_serve, "serve a package over gRPC"),
    "load": (_run_load, "drive load at a server, and print latencies"),
    "bench": (_run_bench, "one benchmark; `headway bench --list` names them"),
    "version": (_run_version, "print the version"),
    "flight-records": (_run_flight_records, "make of ranks' flight records what PyTorch's analyzer reads"),
}


def _parser() -> argparse.ArgumentParser:
    commands = "\n".join(f"  {name:<14} {text}" for name, (_, text) in _COMMANDS.items())
    variables = "\n".join(f"  {name}\n      {text}" for name, text in KNOWN_VARIABLES.items())
    parser = OneLineParser(
        prog="headway",
        usage="headway COMMAND [options]\n       headway COMMAND --help",
        description=_DESCRIPTION,
        epilog=f"commands:\n{commands}\n\nenvironment:\n{variables}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", metavar="COMMAND", nargs="?", help="one of the commands below")
    return parser


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def main(arguments: list[str]) -> int:
    """Runs ``headway ARGUMENTS``; returns the exit status. A wrong argument or variable exits with status 2."""
    parser = _parser()
    command = parser.parse_args(arguments[:1]).command
    if command is None:
        parser.error("which command?")
    if command not in _COMMANDS:
        parser.error(f"unknown command '{command}': there are {', '.join(_COMMANDS)}")
    try:
        check_environment()
    except ValueError as error:
        parser.error(_one_line(error))
    run, _ = _COMMANDS[command]
    try:
        return run(arguments[1:])
    except BrokenPipeError:  # The reader of the output has exited, as in `headway doctor | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
