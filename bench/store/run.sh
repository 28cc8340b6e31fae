#!/usr/bin/env bash
# The store and fio on the same disk in the same minute: bench/store/run.sh BUILD_FOLDER SCRATCH_FOLDER
# Needs fio (scripts/setup.sh bench). Scratch takes 8 GB and is emptied again.
set -euo pipefail
bench=$1/bench/store/store_bench
scratch=$2/store_bench.$$
mkdir -p "$scratch"
trap 'rm -rf "$scratch"' EXIT

fio_rate() {  # OPTIONS... -> MB/s
  fio --name=peer --filename="$scratch/fio" --size=2g --direct=1 --ioengine=io_uring --output-format=json "$@" |
    python3 -c 'import json, sys; job = json.load(sys.stdin)["jobs"][0]
print(round(max(job[way]["bw_bytes"] for way in ("read", "write")) / 1e6))'
}

echo "fio         $(fio_rate --rw=write --bs=8m --iodepth=1 --fdatasync=1) MB/s, sequential writes of 8 MiB, each synced"
"$bench" disk "$scratch/store" --blocks 18000 --seconds 12
echo "fio         $(fio_rate --rw=randread --bs=112k --iodepth=32 --time_based --runtime=12) MB/s, random reads of 112 KiB, 32 under way"
echo "fio         $(fio_rate --rw=write --bs=1m --iodepth=8 --end_fsync=1) MB/s, sequential writes of 1 MiB, 8 under way, one sync"
rm -rf "$scratch/store" "$scratch/fio"
"$bench" start "$scratch/start"
"$bench" index --keys 10000000
