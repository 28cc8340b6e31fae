#!/usr/bin/env bash
# From a fresh clone to a passing test run: installs what is missing, builds, runs every test.
# Arguments go to ctest; `scripts/test.sh -R recipe` runs one module's tests.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh test
cmake --preset dev >/dev/null
cmake --build --preset dev
ctest --preset all "$@"
