#!/usr/bin/env bash
# Everything that only a GPU can show, in one go: builds, tests, compute-sanitizer, measurements.
# Usage: tests/gpu/run.sh OUTPUT-DIRECTORY; run it at the root of a clean checkout on a machine with a GPU.
# Where there is no git history, COMMIT says which commit this is.
set -uo pipefail
out=$1
mkdir -p "$out"
arch=sm_$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
build=build/cuda-$arch
failed=0

run() {
  local log=$1
  shift
  printf '\n$ %s\n' "$*" | tee -a "$out/$log"
  "$@" 2>&1 | tee -a "$out/$log"
  local code=${PIPESTATUS[0]}
  printf 'exit %d\n' "$code" | tee -a "$out/$log"
  [ "$code" -eq 0 ] || failed=1
}

{
  date -u +%Y-%m-%dT%H:%M:%SZ
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm --format=csv
  nvcc --version | tail -2
  compute-sanitizer --version | tail -1
  echo "commit ${COMMIT:-$(git rev-parse HEAD 2>/dev/null)}"
} >"$out/versions.txt" 2>&1

run build.log make -j"$(nproc)" all BACKEND=cuda ARCH="$arch"
run test.log make test BACKEND=cuda ARCH="$arch"
run sanitize.log tests/gpu/sanitize.sh "$build"
run measure.log tests/gpu/measure.sh "$build" "$out/rows.jsonl"
exit "$failed"
