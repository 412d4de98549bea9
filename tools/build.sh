#!/usr/bin/env bash
# Configures build/ once and brings it up to date, or only some of its targets. Usage: tools/build.sh [jobs [target...]]
set -euo pipefail
cd "$(dirname "$0")/.."
readonly jobs=${1:-$(nproc)} targets=("${@:2}")
# Outside a shell that has activated it, .venv's ninja must be found by its cmake.
export PATH="$PWD/.venv/bin:$PATH"

# A cache of another folder, left by a move of the checkout, cannot be used again.
if [ -e build/CMakeCache.txt ] && ! grep -qx "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" build/CMakeCache.txt; then
  rm -rf build
fi
if [ ! -e build/build.ninja ]; then
  echo "build: configuring build/"
  # Without a GPU the build only shows that kernels compile, for which one kind of GPU is enough.
  only_sm_90=()
  [ -e /dev/nvidiactl ] || only_sm_90=(-DCMAKE_CUDA_ARCHITECTURES=90)
  cmake -S . -B build -G Ninja -DPython_EXECUTABLE="$PWD/.venv/bin/python" --log-level=WARNING "${only_sm_90[@]}"
fi
if ! ninja -C build -n "${targets[@]}" | grep -q 'no work to do'; then
  echo "build: compiling with $jobs jobs (the torch extension takes a minute or two when it changed)"
fi
ninja -C build -j "$jobs" --quiet "${targets[@]}"
echo "build: up to date"
