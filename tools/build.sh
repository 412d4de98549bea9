#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

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
# On a terminal ninja shows one line with its own estimate. Elsewhere such a line is printed every 30 s; all other output
# (warnings, errors) is printed at once.
export NINJA_STATUS='build: %f of %t, %w, about %W left: '
if [ -t 1 ]; then
  ninja -C build -j "$jobs" "${targets[@]}"
else
  last=$SECONDS
  ninja -C build -j "$jobs" "${targets[@]}" 2>&1 | while IFS= read -r line; do
    case $line in
      'build: '*) if ((SECONDS - last < 30)); then continue; fi; last=$SECONDS; line="${line%% left: *} left" ;;
      'ninja: Entering directory'* | 'ninja: no work to do.') continue ;;
    esac
    printf '%s\n' "$line"
  done
fi
echo "build: up to date"
