#!/usr/bin/env bash
# `pip install .` in a fresh virtual environment, then the README's Python example and the package's tests.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh lint
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check . pytest==9.2.0
"$venv/bin/python" examples/recipe.py .cache/v4_tokenizer.json
"$venv/bin/python" -m pytest --quiet bindings/python
