#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Runs clang-tidy on the C++ sources that do not use torch. Usage: tools/clang_tidy.sh BUILD_DIR
# Exit status: 1 where there are findings, 77 where clang-tidy is not installed.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly build=${1:?usage: tools/clang_tidy.sh BUILD_DIR}
command -v run-clang-tidy >/dev/null || { echo "clang-tidy is not installed (Debian, Ubuntu: apt install clang-tidy)"; exit 77; }
# Keep one entry per file: clang-tidy would check a file of several targets once per target.
mkdir -p "$build/clang-tidy"
.venv/bin/python - "$build" <<'PYTHON'
import json, sys
entries = json.load(open(f"{sys.argv[1]}/compile_commands.json"))
json.dump(list({entry["file"]: entry for entry in reversed(entries)}.values()),
          open(f"{sys.argv[1]}/clang-tidy/compile_commands.json", "w"))
PYTHON
# It names every file, and counts warnings in system headers even when quiet. Only findings remain, without colours.
run-clang-tidy -quiet -p "$build/clang-tidy" "$PWD/(base|libcomm|kernels|embedding|hybrid|serving)/(?!torch/|front/|load/).*\.cpp\$" 2>&1 |
  sed $'s/\e\\[[0-9;]*m//g' | grep -vE '^clang-tidy(-[0-9]+)? |^[0-9]+ warnings? (generated|treated)|^$' ||
  [ "${PIPESTATUS[0]}" = 0 ]
