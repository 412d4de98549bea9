#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Runs a command in a copy of this checkout, out/torch-VERSION/, with the variable TORCH set. The copy has its own .venv/
# and build/, because the extensions of two torches cannot stand in one source tree. Each call brings the copy up to date:
# it gets the files that git tracks or does not ignore. Their times stay, so that only changes are compiled.
# Usage: tools/in_torch.sh VERSION COMMAND...    for example: tools/in_torch.sh 2.15 make test
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 2 ] || { echo "usage: tools/in_torch.sh VERSION COMMAND..." >&2; exit 2; }
export TORCH=$1
shift
versions=$(tools/setup.sh --print-versions)
version=${versions%% *} # 2.15.0, also if TORCH is 2.15
copy=out/torch-${version%.*}
mkdir -p "$copy"

# A file may be in git's index and yet be deleted.
git ls-files --cached --others --exclude-standard -z | LC_ALL=C sort -zu |
  while IFS= read -r -d '' file; do
    if [ -e "$file" ] || [ -L "$file" ]; then printf '%s\0' "$file"; fi
  done >"$copy/.copied_files.new"
if [ -e "$copy/.copied_files" ]; then
  LC_ALL=C comm -z -23 "$copy/.copied_files" "$copy/.copied_files.new" | (cd "$copy" && xargs -0 rm -f --)
fi
tar --create --null --files-from="$copy/.copied_files.new" --file=- | tar --extract --preserve-permissions --directory="$copy"
mv "$copy/.copied_files.new" "$copy/.copied_files"

cd "$copy"
exec "$@"
