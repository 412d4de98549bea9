#!/usr/bin/env bash
# Builds this checkout, runs its GPU tests and measures exchanges of CUDA tensors beside NCCL on the GPUs of one host:
# alone, beside other work, in training steps and in DLRM inference.
# Usage: tools/measure_gpu.sh [--quick] OUTDIR
#   OUTDIR   gets a build folder, one JSON-lines file and one log a stage, and plots
#   --quick  no tests, and few sizes
# Needs nvcc's cuda.h, CMake, a C++20 compiler and a Python with torch for CUDA; no network. The extension is built
# into python/headway. A stage that fails is named, and the others go on. Two GPUs take 7 to 8 minutes.
set -uo pipefail

failed=()

# stage NAME LIMIT_S COMMAND...: output on the terminal and in OUTDIR/NAME.log.
stage() {
  local name=$1 limit_s=$2 began=$SECONDS status
  shift 2
  echo "==== $name"
  timeout --kill-after=10 "$limit_s" "$@" 2>&1 | tee "$out/$name.log" | tail -70 | cut -c1-160
  status=${PIPESTATUS[0]}
  [ "$status" = 0 ] || failed+=("$name")
  echo "==== $name: status $status, $((SECONDS - began)) s"
}

# bench NAME LIMIT_S ARGUMENT...: its points in OUTDIR/NAME.jsonl.
bench() {
  local name=$1 limit_s=$2
  shift 2
  stage "$name" "$limit_s" python3 -m "benchmarks.$name" --ranks "$gpus" --json "$out/$name.jsonl" --out "$out" "$@"
}

build() {
  cmake -S . -B "$out/build" -DCMAKE_BUILD_TYPE=Release -DHEADWAY_BUILD_TESTS="$tests" -DHEADWAY_BUILD_BENCHMARKS=OFF \
    -DPython_EXECUTABLE="$(command -v python3)" --no-warn-unused-cli --log-level=WARNING &&
    cmake --build "$out/build" -j "$(nproc)" --target headway_c10d $targets >"$out/compiler.log"
}

main() {
  cd "$(dirname "$0")/.."
  local sizes=64,4K,64K,1M,16M,128M,512M rounds=5 wire
  tests=ON
  targets=libcomm_gpu_test
  if [ "${1:-}" = --quick ]; then
    sizes=4K,1M,128M
    rounds=3
    tests=OFF
    targets=
    shift
  fi
  [ $# = 1 ] || { echo "usage: tools/measure_gpu.sh [--quick] OUTDIR" >&2; exit 2; }
  mkdir -p "$1"
  out=$(cd "$1" && pwd)
  gpus=$(python3 -c 'import torch; print(torch.cuda.device_count())')
  export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD/python:$PWD"
  nvidia-smi --query-gpu=name,driver_version,clocks.max.sm --format=csv
  export out tests targets
  export -f build
  stage build 300 bash -c build
  if [ "$tests" = ON ]; then
    stage libcomm_gpu_test 120 "$out/build/tests/libcomm/libcomm_gpu_test" --gtest_brief=1
    # A test spends most of its time in starting its ranks; those of one file share no time with each other.
    python3 -c 'import xdist' 2>/dev/null && parallel="-n 4 --dist loadfile"
    # shellcheck disable=SC2086
    stage test_cuda 400 python3 -m pytest tests/c10d_backend/test_cuda*.py tests/dlrm_examples/bls_dlrm/test_dlrm_cuda.py \
      -q -rfEs --timeout 100 -p no:warnings ${parallel:-}
  fi
  bench cuda_all_to_all 200 --sizes "$sizes" --rounds "$rounds"
  for wire in tcp shm; do
    stage "cuda_hosts_$wire" 100 python3 -m benchmarks.cuda_all_to_all --ranks "$gpus" --hosts 2 --wire "$wire" --split even \
      --sizes 64,64K,1M,16M,128M --rounds "$rounds" --repetitions 10 --json "$out/cuda_hosts_$wire.jsonl" --out "$out/hosts"
  done
  bench cuda_overlap 120 --rounds $((rounds * 3))
  bench cuda_training 120 --rounds "$rounds" --trace "$out/traces"
  stage dlrm 180 python3 -m benchmarks.dlrm --device cuda --ranks "$gpus" --settings short_delays balanced --no-ali-ccp \
    --runs "$rounds" --store "$out/store" --out "$out/dlrm" --json "$out/dlrm.jsonl"
  [ ${#failed[@]} = 0 ] || { echo "stages that failed: ${failed[*]}"; exit 1; }
}

main "$@"
exit
