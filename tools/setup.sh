#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Installs what building and testing need: .venv/ in the checkout, and Debian packages where that is allowed.
# Does nothing when a stamp in .venv/ says that this very set-up has been done.
# Usage: [TORCH=2.15] tools/setup.sh [--ci | --docs | --print-versions]
#   TORCH             a version of torch_versions.txt, such as 2.11 or 2.11.0 (default: 2.14)
#   --docs            adds what `make docs` needs
#   --ci              adds all that only .ci/run needs
#   --print-versions  prints the versions of torch, TorchRec and FBGEMM that would be installed, and ends
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

# Prints the row of tools/torch_versions.txt for a torch such as 2.11 or 2.11.0.
find_versions() {
  awk -v wanted="$1" '
    /^#/ || NF == 0 { next }
    { known = known " " $1 }
    $1 == wanted || (wanted ~ /[.]/ && index($1, wanted ".") == 1) { row = $1 " " $2 " " $3 }
    END { if (row == "") { print known; exit 1 } print row }' tools/torch_versions.txt
}

versions=$(find_versions "${TORCH:=2.14}") || die "there is no torch $TORCH in tools/torch_versions.txt, only$versions"
read -r torch torchrec fbgemm <<<"$versions"
readonly venv=.venv torch torchrec fbgemm
readonly stamp="$venv/headway-setup-$( (cat tools/setup.sh tools/requirements.txt; echo "$versions") | sha256sum | cut -c1-16)"

# Runs apt-get as root or through a sudo that asks for no password; fails where neither is to be had.
apt_get() {
  command -v apt-get >/dev/null || return 1
  if [ "$(id -u)" = 0 ]; then
    DEBIAN_FRONTEND=noninteractive apt-get -q "$@" </dev/null
  else
    sudo -n env DEBIAN_FRONTEND=noninteractive apt-get -q "$@" </dev/null
  fi
}

apt_is_updated=no
install_packages() {
  if [ $apt_is_updated = no ]; then
    apt_get update >/dev/null 2>&1 || true
    apt_is_updated=yes
  fi
  apt_get install -y --no-install-recommends "$@" >/dev/null 2>&1
}

# need REASON PACKAGE...: installs the packages or stops with the command that the user has to run.
need() {
  local reason=$1; shift
  say "$reason: installing $*"
  install_packages "$@" || die "$reason, and it could not be installed. As root: apt-get install $*"
}

# want LOSS PACKAGE...: installs the packages, or says what is lost without them and goes on.
want() {
  local loss=$1; shift
  say "installing $*"
  install_packages "$@" || say "note: $* could not be installed: $loss"
}

find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  die "Python 3.11 to 3.14 was not found (set PYTHON=/path/to/python3)"
}

make_venv() {
  local python
  python=$(find_python)
  say "making $venv with $python"
  "$python" -m venv "$venv" >/dev/null 2>&1 && return
  rm -rf "$venv"
  if "$python" -m virtualenv --version >/dev/null 2>&1; then
    "$python" -m virtualenv -q "$venv"
    return
  fi
  need "python3 has no venv module" python3-venv
  "$python" -m venv "$venv" || die "$python -m venv $venv failed"
}

check_compiler() {
  local compiler=${CXX:-c++}
  command -v "$compiler" >/dev/null || need "no C++ compiler" g++
  echo 'int main() { return []<typename T>(T t) { return t; }(0); }' |
    "$compiler" -std=c++20 -x c++ -fsyntax-only - 2>/dev/null ||
    die "$compiler does not accept C++20: g++ 12 or clang++ 14 or newer is needed"
}

check_python_headers() {
  local header
  header=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include") + "/Python.h")')
  [ -e "$header" ] || need "$header is missing" "python$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-dev"
}

install_optional_packages() {
  [ -e /usr/src/googletest/CMakeLists.txt ] || want "the C++ tests are not built" libgtest-dev
  command -v ccache >/dev/null || want "a clean build takes longer" ccache
  command -v spin >/dev/null || want "the model check of bounded lag is skipped" spin
  command -v mpicxx >/dev/null || want "no comparison with MPI" libopenmpi-dev openmpi-bin
  [ -e /usr/include/infiniband/verbs.h ] || want "transport verbs (RDMA) is not built" libibverbs-dev
  [ -e /usr/include/nlohmann/json.hpp ] && command -v grpc_cpp_plugin >/dev/null && pkg-config --exists grpc++ protobuf ||
    want "headway serve and headway load are not built" nlohmann-json3-dev libgrpc++-dev libprotobuf-dev protobuf-compiler-grpc pkg-config
  [ -e /usr/include/prometheus/exposer.h ] || want "headway serve and headway hybrid have no metrics" prometheus-cpp-dev
}

install_ci_packages() {
  command -v clang-tidy >/dev/null || want "no clang-tidy" clang-tidy
  command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null ||
    want "no aarch64 tests" g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
}

# Does nothing when a stamp says that these very packages are installed.
install_docs_packages() {
  local docs_stamp
  docs_stamp="$venv/headway-docs-$(sha256sum docs/requirements.txt | cut -c1-16)"
  command -v doxygen >/dev/null || want "the documents cannot be built" doxygen
  [ -e "$docs_stamp" ] && return
  say "installing what builds the documents in $venv"
  "$venv/bin/python" -m pip install -q --disable-pip-version-check -r docs/requirements.txt
  rm -f "$venv"/headway-docs-*
  touch "$docs_stamp"
}

# torch is about 4.7 GB: look before pip fails half-way.
check_disk() {
  local free_kb
  free_kb=$(df -Pk . | awk 'NR == 2 { print $4 }')
  [ "$free_kb" -ge 9000000 ] || die "9 GB of free disk are needed for torch, $((free_kb / 1000000)) GB are free here"
}

# Prints the version of torch in .venv, such as 2.14.0; nothing if there is none.
installed_torch() {
  "$venv/bin/python" -c 'import importlib.metadata; print(importlib.metadata.version("torch").split("+")[0])' 2>/dev/null || true
}

install_python_packages() {
  local pip=("$venv/bin/python" -m pip --disable-pip-version-check)
  if [ "$(installed_torch)" != "$torch" ]; then
    check_disk
    say "installing torch $torch and the rest in $venv (4.7 GB, a few minutes)"
  else
    say "checking the Python packages in $venv"
  fi
  "${pip[@]}" install -q --use-pep517 "torch==$torch" -r tools/requirements.txt
  if [ "$torchrec" = - ]; then
    # Those of another torch would not load.
    "${pip[@]}" uninstall -qq -y torchrec fbgemm-gpu-cpu
  else
    "${pip[@]}" install -q --no-deps "torchrec==$torchrec" "fbgemm-gpu-cpu==$fbgemm"
  fi
}

# The checkout is importable in .venv as it stands: no reinstall after an edit.
link_checkout() {
  local site
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  printf '%s\n%s\n' "$PWD/python" "$PWD" >"$site/headway_checkout.pth"
  cat >"$venv/bin/headway" <<SCRIPT
#!$PWD/$venv/bin/python
import sys

from headway_launcher import main

if __name__ == "__main__":  # Processes that are spawned import this file again.
    sys.exit(main())
SCRIPT
  chmod +x "$venv/bin/headway"
}

with_docs=no
case "${1:-}" in
  "") ;;
  --docs) with_docs=yes ;;
  --ci) with_docs=yes; install_ci_packages ;;
  --print-versions) echo "$versions"; exit 0 ;;
  *) die "unknown argument '$1'" ;;
esac
if [ -e "$stamp" ]; then
  [ $with_docs = no ] || install_docs_packages
  link_checkout # the checkout may have been moved
  exit 0
fi
started=$SECONDS
[ -x "$venv/bin/python" ] || make_venv
check_compiler
check_python_headers
install_optional_packages
install_python_packages
link_checkout
[ $with_docs = no ] || install_docs_packages
rm -f "$venv"/headway-setup-*
touch "$stamp"
say "done in $((SECONDS - started)) s"
