#!/usr/bin/env bash
# Runs every fuzz target for an equal share of SECONDS (default 60), from its corpus. Needs a built `asan` preset.
#   scripts/fuzz.sh [SECONDS] [TARGET ...]
set -euo pipefail
cd "$(dirname "$0")/.."
[ -d build/asan/fuzz ] || { echo "fuzz: first: cmake --preset asan && cmake --build --preset asan --target fuzzers" >&2; exit 1; }
seconds=${1:-60}
[ $# -eq 0 ] || shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(find build/asan/fuzz -maxdepth 1 -name '*_fuzz' -printf '%f\n' | sort)
share=$((seconds / ${#targets[@]}))
[ "$share" -ge 1 ] || share=1
# In CI the same inputs every time: a change fails for what it brings, not by chance. Long runs by hand explore.
seed=()
[ "${CI:-}" != true ] || seed=(-seed=1)
total=0
for target in "${targets[@]}"; do
  found=$(mktemp -d)
  log=$(mktemp)
  # New inputs go to a scratch folder: the committed corpus grows only by hand.
  if ! "build/asan/fuzz/$target" -max_total_time="$share" -timeout=10 -rss_limit_mb=3000 -print_final_stats=1 "${seed[@]}" \
      -artifact_prefix="$found/" "$found" "fuzz/corpus/${target%_fuzz}" >"$log" 2>&1; then
    tail -n 60 "$log" >&2
    echo "fuzz: $target failed; its input is in $found" >&2
    exit 1
  fi
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  printf 'fuzz: %-24s %10s runs in %s s\n' "$target" "$runs" "$share"
  total=$((total + runs))
  rm -rf "$found" "$log"
done
printf 'fuzz: %-24s %10s runs, no crash, leak or time-out\n' total "$total"
