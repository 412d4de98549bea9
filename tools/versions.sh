#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Builds and tests with several versions of torch, each in an environment of its own (tools/in_torch.sh), and ends in a
# table. The parts are: the build, with the CUDA code where nvcc is found; the tests of the process group; PyTorch's own
# suite; the other Python tests, which include those of the TorchRec plug-in where there is a TorchRec.
# An environment takes about 8 GB. Logs are in out/versions/. The exit status is 1 if anything failed.
# Usage: tools/versions.sh [--remove] [VERSION...]    (default: all of tools/torch_versions.txt)
#   --remove  removes each environment after its tests
set -euo pipefail
cd "$(dirname "$0")/.."
readonly logs=out/versions
readonly limit_s=7200 # Of each part. ctest and pytest bound the single tests.
remove=no
if [ "${1:-}" = --remove ]; then
  remove=yes
  shift
fi
[ $# -gt 0 ] || set -- $(awk '!/^#/ && NF { print $1 }' tools/torch_versions.txt)
for version in "$@"; do TORCH=$version tools/setup.sh --print-versions >/dev/null; done # refuses unknown ones at once
mkdir -p "$logs"
rm -f "$logs"/*.log
rows=()
failed=no

# run_part NAME COMMAND...: runs a part with torch $version and keeps its output. Returns the status of the command.
run_part() {
  local log=$logs/$version-$1.log
  echo "versions: torch $version: $1"
  timeout --kill-after=30 "$limit_s" tools/in_torch.sh "$version" "${@:2}" >"$log" 2>&1
}

# run_tests NAME CTEST: runs one test of ctest, and sets `counts` to its numbers of passed, failed and skipped tests.
run_tests() {
  run_part "$1" .venv/bin/python tools/run_ctest.py build -R "^$2\$" || failed=yes
  local log=$logs/$version-$1.log
  counts=$(tail -n 1 "$log" | sed -nE 's/^([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \/ \2 \/ \3/p')
  if [ -z "$counts" ]; then
    counts=none
    failed=yes
  fi
  if grep -q '^== failed' "$log"; then sed -n '/^== failed/,$p' "$log"; fi
}

for version in "$@"; do
  read -r torch torchrec fbgemm < <(TORCH=$version tools/setup.sh --print-versions)
  built=no c10d=- suite=- python=-
  if run_part build sh -c 'tools/setup.sh && tools/build.sh'; then
    built=yes
    grep -q ' CUDA_COMPILER__' "out/torch-${torch%.*}/build/build.ninja" && built=CUDA
    run_tests c10d 'pytest[.]c10d_backend'
    c10d=$counts
    run_tests suite torch_suite
    suite=$counts
    run_tests python 'pytest[.]python'
    python=$counts
  else
    failed=yes
    tail -n 30 "$logs/$version-build.log"
  fi
  rows+=("$torch|$torchrec|$fbgemm|$built|$c10d|$suite|$python")
  [ $remove = no ] || rm -rf "out/torch-${torch%.*}"
done

echo
echo 'built: CUDA is a build with the CUDA code. Tests: passed / failed / skipped.'
printf '%s\n' 'torch|TorchRec|FBGEMM|built|process group|PyTorch suite|other Python' "${rows[@]}" |
  awk -F '|' '{ printf "%-8s %-9s %-7s %-6s %-17s %-17s %s\n", $1, $2, $3, $4, $5, $6, $7 }'
[ $failed = no ]
