#!/usr/bin/env bash
# From a fresh clone to an answering server: installs what is missing, builds, runs `galley serve`.
# Arguments go to `galley serve`; try `scripts/serve.sh --help`.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
[ -f build/release/build.ninja ] || cmake --preset release -DBUILD_TESTING=OFF
cmake --build --preset release --target galley
# The model that ships answers, unless flags, variables or a file may say what does.
case " $* ${!GALLEY_*} " in
  *' --model '* | *' --model='* | *' --script '* | *' --script='* | *' --config '* | *' --config='*) ;;
  *' GALLEY_MODEL '* | *' GALLEY_SCRIPT '* | *' GALLEY_CONFIG '*) ;;
  *) set -- --model models/mini "$@" ;;
esac
exec build/release/apps/galley serve "$@"
