#!/usr/bin/env bash
# clang-tidy over every source file that ships (not tests, not generated tables, not the Python module), two at a time: half an
# hour on two idle cores. Needs a configured build/tsan.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -f build/tsan/compile_commands.json ] || { echo "lint: first: cmake --preset tsan && cmake --build --preset tsan" >&2; exit 1; }
files=$(git ls-files 'src/*.cc' 'apps/*.cc' 'bindings/*.cc' | grep -v '^bindings/python/' | grep -v '_test\.cc$' | grep -v 'unicode_tables\.cc$')
# shellcheck disable=SC2086
printf '%s\n' $files | xargs -P 2 -n 4 clang-tidy-19 -p build/tsan --quiet --warnings-as-errors='*' 2> >(grep -v 'warnings generated' >&2)
echo "clang-tidy: $(wc -w <<<"$files") files clean"
