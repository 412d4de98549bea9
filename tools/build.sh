#!/usr/bin/env bash
# Configures build/ if needed and builds all targets, or only the given ones. Usage: tools/build.sh [jobs [target...]]
set -euo pipefail
cd "$(dirname "$0")/.."
readonly jobs=${1:-$(nproc)} targets=("${@:2}")
# cmake must find the ninja of .venv, also in a shell that has not activated it.
export PATH="$PWD/.venv/bin:$PATH"

# CMake rejects a cache of another folder, which is there if the checkout was moved: start anew.
if [ -e build/CMakeCache.txt ] && ! grep -qx "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" build/CMakeCache.txt; then
  rm -rf build
fi
if [ ! -e build/build.ninja ]; then
  echo "build: configuring build/"
  # Without a GPU the build only checks that kernels compile: one architecture is enough.
  only_sm_90=()
  [ -e /dev/nvidiactl ] || only_sm_90=(-DCMAKE_CUDA_ARCHITECTURES=90)
  cmake -S . -B build -G Ninja -DPython_EXECUTABLE="$PWD/.venv/bin/python" --log-level=WARNING "${only_sm_90[@]}"
fi
if ! ninja -C build -n "${targets[@]}" | grep -q 'no work to do'; then
  echo "build: compiling with $jobs jobs (the torch extension takes a minute or two when it changed)"
fi
ninja -C build -j "$jobs" --quiet "${targets[@]}"
echo "build: up to date"
