#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Builds this checkout, runs its GPU tests, and measures it on the GPUs of one host. One of:
#   (default)  exchanges of CUDA tensors compared with NCCL: alone, beside other work, in training steps and in DLRM
#              inference
#   --tables   embedding tables on one GPU, compared with HierarchicalKV, FBGEMM and TorchRec; training steps compared
#              with TorchRec, and training steps of a shared table, also on all GPUs
#   --kernels  HSTU attention, HSTU layers and moves of jagged rows on one GPU, compared with Triton, PyTorch and FBGEMM
# Usage: tools/measure_gpu.sh [--quick] [--tables | --kernels] OUTDIR
#   OUTDIR   receives a build folder, one JSON-lines file and one log per stage, and plots
#   --quick  skips the tests and measures fewer sizes
# Environment: HIERARCHICALKV is a folder with merlin_hashtable.cuh, and HSTU_TRITON is a checkout of
# generative-recommenders; without them HierarchicalKV and Triton are not measured. FBGEMM and TorchRec are those that
# Python imports.
# Needs nvcc's cuda.h, CMake, a C++20 compiler and a Python with torch for CUDA; no network. The extension is built into
# python/headway. It reports a stage that fails and continues. Exchanges on two GPUs take 7 to 8 minutes, tables on one
# GPU 6 to 7.
set -uo pipefail

failed=()

# stage NAME LIMIT_S COMMAND...: runs a command with its output in OUTDIR/NAME.log and its end on the terminal.
stage() {
  local name=$1 limit_s=$2 began=$SECONDS status
  shift 2
  echo "==== $name"
  timeout --kill-after=10 "$limit_s" "$@" 2>&1 | tee "$out/$name.log" | tail -70 | cut -c1-160
  status=${PIPESTATUS[0]}
  [ "$status" = 0 ] || failed+=("$name")
  echo "==== $name: status $status, $((SECONDS - began)) s"
}

# bench NAME LIMIT_S ARGUMENT...: runs benchmarks.NAME; writes its points to OUTDIR/NAME.jsonl.
bench() {
  local name=$1 limit_s=$2
  shift 2
  stage "$name" "$limit_s" python3 -m "benchmarks.$name" --ranks "$gpus" --json "$out/$name.jsonl" --out "$out" "$@"
}

build() {
  cmake -S . -B "$out/build" -DCMAKE_BUILD_TYPE=Release -DHEADWAY_BUILD_TESTS="$tests" -DHEADWAY_BUILD_BENCHMARKS=OFF \
    -DPython_EXECUTABLE="$(command -v python3)" --no-warn-unused-cli --log-level=WARNING "$@" &&
    cmake --build "$out/build" -j "$(nproc)" --target $targets >"$out/compiler.log"
}

# test_python NAME LIMIT_S FILE...: runs pytest, with 4 files at a time if xdist is there, because tests spend most of
# their time in starting ranks. Tests of one file never run at the same time.
test_python() {
  local name=$1 limit_s=$2 parallel=
  shift 2
  python3 -c 'import xdist' 2>/dev/null && parallel="-n 4 --dist loadfile"
  # shellcheck disable=SC2086
  stage "$name" "$limit_s" python3 -m pytest "$@" -q -rfEs --timeout 100 -p no:warnings $parallel
}

measure_tables() {
  local table="$out/build/benchmarks/embedding/bench_embedding_cuda_table"
  stage build 300 bash -c 'build "$@"' build -DHEADWAY_BUILD_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90 -DHEADWAY_BUILD_BENCHMARKS=ON \
    ${HIERARCHICALKV:+-DHEADWAY_HIERARCHICALKV_INCLUDE_DIR="$HIERARCHICALKV"}
  if [ "$tests" = ON ]; then
    stage embedding_cuda_test 60 "$out/build/tests/embedding/embedding_cuda_test" --gtest_brief=1
    test_python test_cuda_tables 150 tests/python/embedding/test_cuda_tables.py tests/python/torchrec/test_dynamic_cuda.py
  fi
  stage tables 120 "$table" --capacity 16777216 --loads 0.5,0.75,1.0 --rounds $((rounds * 3)) --commit "$commit" \
    --json "$out/cuda_table.jsonl"
  stage growth 60 "$table" --growth --commit "$commit" --json "$out/cuda_growth.jsonl"
  stage growth_100_million 60 "$table" --growth --first-rows 96000000 --last-rows 100000000 --commit "$commit" \
    --json "$out/cuda_growth_100_million.jsonl"
  stage layer 120 python3 -m benchmarks.cuda_embedding_layer --json "$out/cuda_embedding_layer.jsonl" --out "$out"
  stage sequence_model 500 python3 -m benchmarks.cuda_sequence_model --ranks 1 $([ "$gpus" = 1 ] || echo "$gpus") \
    --json "$out/cuda_sequence_model.jsonl" --out "$out"
  [ "$gpus" = 1 ] || bench dedup_steps 200
}

# attention NAME ARGUMENT...: measures HSTU attention in bfloat16; writes its points to OUTDIR/NAME.jsonl. Triton first
# compiles 50 kernels for each number of columns, which takes minutes.
attention() {
  local name=$1
  shift
  stage "$name" 240 python3 -m benchmarks.hstu_attention --device cuda --dtype bfloat16 --rounds $((rounds * 5)) \
    ${HSTU_TRITON:+--triton "$HSTU_TRITON"} --json "$out/$name.jsonl" --out "$out/$name" "$@"
}

measure_kernels() {
  local name definition
  stage build 300 bash -c 'build "$@"' build -DHEADWAY_BUILD_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90 -DHEADWAY_BUILD_BENCHMARKS=ON
  if [ "$tests" = ON ]; then
    for name in kernels jagged layer; do
      stage "${name}_cuda_test" 120 "$(find "$out/build/tests" -name "${name}_cuda_test")" --gtest_brief=1
    done
    test_python test_kernels 200 tests/python/kernels tests/python/nn
  fi
  stage hstu_points 60 "$out/build/benchmarks/hstu/bench_hstu_attention" && cp "$out/hstu_points.log" "$out/hstu_points.jsonl"
  for definition in production research; do
    stage "hstu_layer_$definition" 60 python3 -m benchmarks.hstu_layer --device cuda --dtype bfloat16 --batch 32 --length 1024 \
      --definition "$definition" --json "$out/hstu_layer_$definition.jsonl" --out "$out"
  done
  stage jagged_moves 100 python3 -m benchmarks.jagged_moves --device cuda --json "$out/jagged_moves.jsonl" --out "$out"
  stage jagged_moves_wide 100 python3 -m benchmarks.jagged_moves --device cuda --dim 128 --operations exchanges \
    --json "$out/jagged_moves_wide.jsonl" --out "$out/jagged_moves_wide"
  attention hstu_attention_long --batch 32 --heads 4 --dim 128 --lengths 2048 4096
  attention hstu_attention_short --batch 32 --heads 4 --dim 128 --lengths 128 256 512
  attention hstu_attention_128 --batch 512 --heads 4 --dim 128 --lengths 128
  attention hstu_attention_512 --batch 128 --heads 4 --dim 128 --lengths 512
  attention hstu_attention_long_tail --batch 128 --heads 2 --dim 256 --longest 3000 --lengths long_tail
}

measure_exchanges() {
  local wire
  stage build 300 bash -c build
  if [ "$tests" = ON ]; then
    stage libcomm_gpu_test 120 "$out/build/tests/libcomm/libcomm_gpu_test" --gtest_brief=1
    test_python test_cuda 400 tests/c10d_backend/test_cuda*.py tests/dlrm_examples/dlrm_inference/test_dlrm_cuda.py
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
}

main() {
  cd "$(dirname "$0")/.."
  sizes=64,4K,64K,1M,16M,128M,512M
  rounds=5
  tests=ON
  local measure=measure_exchanges
  targets="headway_c10d libcomm_gpu_test"
  while [ $# -gt 1 ]; do
    case $1 in
      --quick)
        sizes=4K,1M,128M
        rounds=3
        tests=OFF
        ;;
      --tables)
        measure=measure_tables
        targets="headway_c10d headway_embedding_python embedding_cuda_test bench_embedding_cuda_table"
        ;;
      --kernels)
        measure=measure_kernels
        targets="headway_c10d headway_embedding_python bench_hstu_attention kernels_cuda_test jagged_cuda_test layer_cuda_test"
        ;;
      *) break ;;
    esac
    shift
  done
  if [ $# != 1 ] || [ "${1#-}" != "$1" ]; then
    echo "usage: tools/measure_gpu.sh [--quick] [--tables | --kernels] OUTDIR" >&2
    exit 2
  fi
  mkdir -p "$1"
  out=$(cd "$1" && pwd)
  [ "$tests" = ON ] || targets=$(printf '%s\n' $targets | grep -v _test)
  gpus=$(python3 -c 'import torch; print(torch.cuda.device_count())')
  commit=$(git describe --always --dirty=+ 2>/dev/null || echo unknown)
  export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD/python:$PWD${PYTHONPATH:+:$PYTHONPATH}"
  export out tests targets
  export -f build
  nvidia-smi --query-gpu=name,driver_version,clocks.max.sm --format=csv
  $measure
  [ ${#failed[@]} = 0 ] || { echo "stages that failed: ${failed[*]}"; exit 1; }
}

main "$@"
exit
