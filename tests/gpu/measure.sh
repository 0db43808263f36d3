#!/usr/bin/env bash
# The shapes that the steps are held to. Usage: tests/gpu/measure.sh DIRECTORY-OF-CUDA-BUILD ROWS.jsonl
set -uo pipefail
build=$1
rows=$2
failed=0
for program in "$build"/step[0-9][0-9]; do
  for shape in "-b 4 -H 16 -n 4096 -d 128" "-b 4 -H 16 -n 4096 -d 128 -m causal" \
    "-b 4 -H 32 -n 4096 -d 64" "-b 1 -H 16 -n 16384 -d 128"; do
    # shellcheck disable=SC2086 # a shape is several words
    "$program" $shape --json "$rows" || failed=1
  done
done
exit "$failed"
