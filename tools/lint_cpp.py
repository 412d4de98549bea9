"""Runs clang-format or clang-tidy on the C++ sources that git tracks or does not ignore."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_HERE = 77  #: exit status for "skipped: the tool is not installed"


def sources(folders: list[str], endings: tuple[str, ...]) -> list[Path]:
    """Lists the files under ``folders`` with one of ``endings``, without build output."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *folders],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    paths = (ROOT / name for name in listing.stdout.split("\0") if name.endswith(endings))
    return sorted(path for path in paths if path.exists())


def find_clang_format() -> str:
    beside = Path(sys.executable).parent / "clang-format"
    return str(beside) if beside.exists() else "clang-format"


def check_format(*, fix: bool) -> int:
    """Checks all sources against .clang-format, or rewrites them if ``fix``; returns the exit status."""
    files = sources(["."], (".hpp", ".cpp", ".h", ".cc", ".cu", ".cuh"))
    if not files:
        return 0
    mode = ["-i"] if fix else ["--dry-run", "-Werror"]
    status = subprocess.run([find_clang_format(), *mode, *map(str, files)], cwd=ROOT, timeout=300).returncode
    print(f"clang-format: {len(files)} files, {'ok' if status == 0 else 'run `make format`'}")
    return 1 if status else 0


def check_tidy(build_dir: Path) -> int:
    """Runs clang-tidy on the sources that do not use torch, with the compile commands of the build."""
    if shutil.which("clang-tidy") is None:
        print("clang-tidy is not installed (Debian, Ubuntu: apt install clang-tidy)")
        return NOT_HERE
    entries = json.loads((build_dir / "compile_commands.json").read_text())
    # Keep one entry per file. clang-tidy would check a file of several targets once per target.
    commands = {Path(entry["file"]): entry for entry in reversed(entries)}
    found = sources(["libcomm", "kernels", "embedding"], (".cpp",))
    files = [file for file in found if file in commands and file.parent.name != "torch"]
    bad = 0
    with tempfile.TemporaryDirectory() as database, ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        (Path(database) / "compile_commands.json").write_text(json.dumps([commands[file] for file in files]))
        for output in pool.map(lambda file: _tidy_file(file, database), files):
            if output:
                bad += 1
                print(output, flush=True)
    print(f"clang-tidy: {len(files)} files, {bad} with findings")
    return 1 if bad else 0


def _tidy_file(file: Path, database: str) -> str:
    """Returns the findings in one file, or an empty text. ``database`` is the folder of ``compile_commands.json``."""
    finished = subprocess.run(
        ["clang-tidy", "-p", database, "--quiet", "--warnings-as-errors=*", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if finished.returncode == 0:
        return ""
    # Drop the counts of warnings in system headers, which clang-tidy prints even when quiet.
    lines = (finished.stdout + finished.stderr).splitlines()
    return "\n".join(line for line in lines if not re.match(r"\d+ warnings? (generated|treated)", line))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lint_cpp", description=__doc__)
    parser.add_argument("check", choices=["format", "tidy"])
    parser.add_argument("--fix", action="store_true", help="rewrite the files (format only)")
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build", help="folder with compile_commands.json")
    chosen = parser.parse_args(arguments)
    if chosen.fix and chosen.check != "format":
        parser.error("--fix is for format")
    return check_format(fix=chosen.fix) if chosen.check == "format" else check_tidy(chosen.build_dir)


if __name__ == "__main__":
    sys.exit(main())
