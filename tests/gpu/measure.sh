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
# Masks, where a step takes them: 16384 queries and a width of 2048, as in compare_fa2.py.
for program in "$build"/step0[5-9]; do
  for head_dim in 64 128; do
    for seqlen in 4096 16384; do
      for mask in full causal window:1024 document:8 prefix:$((seqlen / 4)) \
        blocks:0.1 blocks:0.3 blocks:0.5 blocks:0.7 blocks:0.9 random:0.5; do
        "$program" -b $((16384 / seqlen)) -H $((2048 / head_dim)) -n "$seqlen" -d "$head_dim" \
          -m "$mask" --min-time 0.2 --json "$rows" || failed=1
      done
    done
  done
done
exit "$failed"
