#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Runs the checks that are too long for CI: 1,000 kills and 100 stops per transport, 10^6 random histories of exchanges,
# random histories of embedding tables under sanitizers, and fuzzing.
# Usage: tools/endurance_cpu.sh OUTDIR [FUZZER_SECONDS]
#   OUTDIR          receives a build folder and one log per stage
#   FUZZER_SECONDS  duration of the table histories and of the fuzzers; each runs one process per core (default: 240)
# Needs a C++20 compiler, CMake, Ninja and GoogleTest. The fuzzers need clang or an existing build-fuzz/; otherwise they
# are skipped. It takes about 12 minutes with 16 cores, plus FUZZER_SECONDS for the tables.
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p "${1:?usage: tools/endurance_cpu.sh OUTDIR [FUZZER_SECONDS]}"
out=$(cd "$1" && pwd)
readonly out fuzzer_s=${2:-240} histories=1000000
cores=$(nproc)
readonly cores
failed=0

cmake -S . -B "$out/build" -G Ninja -DHEADWAY_BUILD_TORCH=OFF -DHEADWAY_BUILD_BENCHMARKS=OFF --log-level=WARNING &&
  ninja -C "$out/build" --quiet libcomm_group_test libcomm_group_rank_process all_to_all_stress >"$out/build.log" 2>&1 || {
  tail -20 "$out/build.log"
  exit 1
}

tools/endurance_kills.sh "$out/build" 1000 50 shm tcp || failed=1

began=$SECONDS
seeds=()
for ((i = 1; i <= cores; ++i)); do
  "$out/build/tests/libcomm/stress/all_to_all_stress" --histories $((histories / cores)) --seed $((7000 + i)) \
    >"$out/histories_$i.log" 2>&1 &
  seeds+=($!)
done
for job in "${seeds[@]}"; do wait "$job" || failed=1; done
echo "histories: $histories, $(grep -lx '1 passed, 0 failed' "$out"/histories_*.log | wc -l) of $cores runs passed," \
  "seeds 7001 to $((7000 + cores)), $((SECONDS - began)) s"

if cmake -S . -B "$out/build-asan" -G Ninja -DHEADWAY_BUILD_TORCH=OFF -DHEADWAY_BUILD_BENCHMARKS=OFF \
  -DHEADWAY_SANITIZE=address --log-level=WARNING &&
  ninja -C "$out/build-asan" --quiet table_stress >"$out/build_asan.log" 2>&1; then
  tables=()
  for ((i = 1; i <= cores; ++i)); do
    "$out/build-asan/tests/embedding/table_stress" --seed $((i * 1000000)) --seconds "$fuzzer_s" \
      >"$out/tables_$i.log" 2>&1 &
    tables+=($!)
  done
  for job in "${tables[@]}"; do wait "$job" || failed=1; done
  echo "tables: $(awk '/^[0-9]+ histories/ { h += $1; o += $3; d += $5; ++n }
    END { print h + 0 " histories, " o + 0 " operations, " d + 0 " differences, " n + 0 " runs" }' "$out"/tables_*.log)" \
    "of $cores ended, seeds from 1000000, each $fuzzer_s s"
else
  tail -20 "$out/build_asan.log"
  failed=1
fi

if [ ! -x build-fuzz/tests/fuzz/fuzz_frame ] && command -v clang++ >/dev/null; then
  cmake -S . -B build-fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DHEADWAY_BUILD_TORCH=OFF \
    -DHEADWAY_BUILD_BENCHMARKS=OFF -DHEADWAY_BUILD_FUZZERS=ON --log-level=WARNING &&
    ninja -C build-fuzz --quiet fuzz_frame fuzz_handshake >"$out/build_fuzz.log" 2>&1
fi
if [ -x build-fuzz/tests/fuzz/fuzz_handshake ]; then
  fuzzers=()
  for ((i = 0; i < cores; ++i)); do
    name=$([ $((i % 2)) = 0 ] && echo fuzz_frame || echo fuzz_handshake)
    mkdir -p "$out/corpus_$name"
    build-fuzz/tests/fuzz/$name -seed=$((i + 1)) -max_total_time="$fuzzer_s" -max_len=4096 -print_final_stats=1 \
      -artifact_prefix="$out/${name}_" "$out/corpus_$name" >"$out/${name}_$i.log" 2>&1 &
    fuzzers+=($!)
  done
  for job in "${fuzzers[@]}"; do wait "$job" || failed=1; done
  for name in fuzz_frame fuzz_handshake; do
    echo "$name: $(awk '/number_of_executed_units/ { n += $2 } END { print n }' "$out/$name"_*.log) inputs," \
      "$(find "$out" -maxdepth 1 -name "${name}_*-*" | wc -l) failures, $((fuzzer_s * (cores / 2) / 60)) minutes of one core"
  done
else
  echo "fuzzers: skipped, no clang++"
fi
[ $failed = 0 ] && echo "all passed" || echo "FAILED"
exit $failed
