#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Builds the fuzzers with AddressSanitizer and UndefinedBehaviorSanitizer, and runs them one after the other.
# Usage: tools/fuzz.sh [SECONDS] [FUZZER...]
#   SECONDS  duration of each fuzzer (default: 60)
#   FUZZER   fuzz_frame, fuzz_handshake, fuzz_hybrid, fuzz_package or fuzz_request (default: all that can be built)
# Needs clang++, CMake, Ninja and GoogleTest; fuzz_request also needs gRPC. The build is in build-fuzz/. Inputs that
# found new code are in out/fuzz/FUZZER/ for the next run, and those that failed are out/fuzz/FUZZER-*.
set -euo pipefail
cd "$(dirname "$0")/.."
[ ! -d .venv/bin ] || PATH=$PWD/.venv/bin:$PATH
seconds=${1:-60}
shift || true

cmake -S . -B build-fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DHEADWAY_BUILD_TORCH=OFF -DHEADWAY_BUILD_CUDA=OFF \
  -DHEADWAY_BUILD_BENCHMARKS=OFF -DHEADWAY_BUILD_FUZZERS=ON --log-level=WARNING
fuzzers=("$@")
if [ ${#fuzzers[@]} = 0 ]; then
  mapfile -t fuzzers < <(ninja -C build-fuzz -t targets all | sed -n 's/^\(fuzz_[a-z]*\): phony$/\1/p' | sort)
fi
ninja -C build-fuzz "${fuzzers[@]}"

mkdir -p out/fuzz
# fuzz_package writes a package for each input: into memory, if there is a folder for that.
TMPDIR=$([ -w /dev/shm ] && mktemp -d -p /dev/shm || mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
failed=0
for name in "${fuzzers[@]}"; do
  mkdir -p "out/fuzz/$name"
  log=out/fuzz/$name.log
  max_len=$([ "$name" = fuzz_package ] && echo 16384 || echo 4096)
  "build-fuzz/tests/fuzz/$name" -max_total_time="$seconds" -max_len="$max_len" -timeout=10 -rss_limit_mb=2048 \
    -malloc_limit_mb=1024 -print_final_stats=1 -artifact_prefix="out/fuzz/$name-" "out/fuzz/$name" >"$log" 2>&1 || {
    failed=1
    grep -m 5 -E 'ERROR|runtime error|does not hold|SUMMARY|Test unit written' "$log" || tail -5 "$log"
  }
  echo "$name: $(sed -n 's/.*number_of_executed_units: //p' "$log") inputs," \
    "$(grep -o 'cov: [0-9]*' "$log" | tail -1 | cut -d' ' -f2) edges, log in $log"
done
exit $failed
