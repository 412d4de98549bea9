#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Builds this checkout and measures it against the performance targets on one host, best with 16 cores or more.
# Usage: tools/measure_cpu.sh [--quick | --trial] OUTDIR
#   OUTDIR   receives a build folder, one JSON-lines file and one log per stage, and plots
#   --quick  only the C++ all-to-all with even splits (about 90 s)
#   --trial  every stage with 2 ranks and a few calls, to try this script; its figures mean nothing
# Needs a C++20 compiler, CMake and Python 3.11 with numpy; Open MPI and torch for the comparisons with them. Installs
# nothing and needs no network. It reports a stage that fails and continues. The table of targets comes last.
# With 16 cores it takes about 6 minutes in all.
set -uo pipefail

usage() {
  echo "usage: tools/measure_cpu.sh [--quick | --trial] OUTDIR" >&2
  exit 2
}

# finish NAME STATUS BEGAN: reports the end of a stage.
failed=()
finish() {
  if [ "$2" = 0 ]; then
    echo "==== $1: $((SECONDS - $3)) s"
  else
    failed+=("$1")
    echo "==== $1 FAILED with status $2 after $((SECONDS - $3)) s"
  fi
  return "$2"
}

# quiet NAME LIMIT_S COMMAND...: runs a command with its output in OUTDIR/NAME.log; prints the errors if it fails.
quiet() {
  local name=$1 limit_s=$2 began=$SECONDS status
  shift 2
  timeout --kill-after=10 "$limit_s" "$@" >"$out/$name.log" 2>&1
  status=$?
  [ $status = 0 ] || grep -E 'error|Error|FAILED|fatal' "$out/$name.log" | head -20 | cut -c1-300
  finish "$name" $status $began
}

# shown NAME LIMIT_S COMMAND...: runs a command with its output in OUTDIR/NAME.log and on the terminal.
shown() {
  local name=$1 limit_s=$2 began=$SECONDS
  shift 2
  echo "==== $name"
  timeout --kill-after=10 "$limit_s" "$@" 2>&1 | tee "$out/$name.log" |
    grep --line-buffered -v -e '^plot:' -e ': round ' | cut -c1-160
  finish "$name" "${PIPESTATUS[0]}" $began
}

# bench NAME LIMIT_S MODULE ARGUMENT...: runs one benchmark; writes its points to OUTDIR/NAME.jsonl.
bench() {
  local name=$1 limit_s=$2 module=$3
  shift 3
  shown "$name" "$limit_s" "$python" -m "benchmarks.$module" --ranks "$ranks" --json "$out/$name.jsonl" --out "$out" \
    "$@" "${fewer[@]}"
}

describe_host() {
  local model load
  model=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -1)
  load=$(cut -d' ' -f1-3 /proc/loadavg)
  echo "==== host: $jobs processors, ${model:-unknown}, load $load, Linux $(uname -r)"
  lscpu 2>/dev/null | grep -E '^(Thread|Core|Socket|NUMA node\(s\)|L2|L3)' | tr -s ' ' | paste -sd';'
  echo "Yama ptrace_scope: $(cat /proc/sys/kernel/yama/ptrace_scope 2>/dev/null || echo absent)"
  echo "huge pages in shared memory: $(cat /sys/kernel/mm/transparent_hugepage/shmem_enabled 2>/dev/null || echo absent)"
  echo "MPI: $(mpirun --version 2>/dev/null | head -1 || true)"
}

# configure ON|OFF: configures the build with or without the torch extension.
configure() {
  cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DHEADWAY_BUILD_TESTS=OFF -DHEADWAY_BUILD_TORCH="$1" \
    -DPython_EXECUTABLE="$(command -v "$python")" --no-warn-unused-cli --log-level=WARNING
}
build_all() { cmake --build "$build" -j "$jobs"; }

build_programs() {
  quiet configure 60 bash -c 'configure OFF' || return 1
  quiet build_programs 300 cmake --build "$build" -j "$jobs" --target bench_all_to_all_headway || return 1
  quiet build_mpi_program 120 cmake --build "$build" -j "$jobs" --target bench_all_to_all_mpi
  return 0
}

build_torch_extension() {
  if [ $mode = trial ] && "$python" -c 'import headway' 2>/dev/null; then
    echo "==== headway is importable already: its extension is not built again"
  elif "$python" -c 'import torch' 2>/dev/null; then
    quiet build_torch_extension 300 bash -c 'configure ON && build_all'
  else
    echo "==== $python has no torch: it is not measured"
    return 1
  fi
}

measure_even() {
  bench all_to_all_even 120 all_to_all --programs "$programs" --split even --rounds 4 --sizes "$1"
}

measure_all() {
  local has_torch=yes
  build_torch_extension || has_torch=no
  measure_even "$sizes,256M"
  bench all_to_all_zipf 100 all_to_all --programs "$programs" --split zipf --rounds 3 --sizes "$sizes"
  bench sequence 60 sequence --programs "$programs" --counts 1 10 100 1000 10000 --rounds 3
  bench lag_cost 90 lag_cost --programs "$programs"
  bench oversubscribed 90 oversubscribed --programs "$programs" --num-cores 2
  [ $has_torch = no ] || bench torch_all_to_all 90 torch_all_to_all
}

main() {
  cd "$(dirname "$0")/.."
  mode=all
  sizes=8,64,512,4K,32K,256K,2M,16M,128M
  ranks=8
  fewer=()
  case "${1:-}" in
    --quick) mode=quick; shift ;;
    --trial) mode=trial; ranks=2; fewer=(--rounds 1 --repetitions 5); shift ;;
    -*) usage ;;
  esac
  [ $# = 1 ] || usage
  mkdir -p "$1"
  out=$(cd "$1" && pwd)
  build=$out/build
  programs=$build/benchmarks/all_to_all
  jobs=$(nproc)
  python=${PYTHON:-python3}
  if [ -z "${PYTHON:-}" ] && [ -x .venv/bin/python ]; then
    python=$PWD/.venv/bin/python
    PATH="$PWD/.venv/bin:$PATH"
  fi
  PATH="$PATH:/usr/lib/x86_64-linux-gnu/openmpi/bin:/usr/lib64/openmpi/bin"
  export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD/python:$PWD" PATH build python jobs
  export -f configure build_all

  describe_host
  if build_programs; then
    if [ $mode = quick ]; then measure_even "$sizes"; else measure_all; fi
    echo "==== bars"
    "$python" -m benchmarks.harness.bars "$out"
  fi
  if [ ${#failed[@]} != 0 ]; then
    echo "stages that failed: ${failed[*]}"
    exit 1
  fi
}

main "$@"
exit
