#!/usr/bin/env bash
# The shapes that the steps are held to. Usage: tests/gpu/measure.sh DIRECTORY-OF-CUDA-BUILD ROWS.jsonl
set -uo pipefail
build=$1
rows=$2
failed=0

# measure PROGRAM OPTIONS...
measure() {
  "$@" --json "$rows" || failed=1
}

for program in "$build"/step[0-9][0-9]; do
  for shape in "-b 4 -H 16 -n 4096 -d 128" "-b 4 -H 16 -n 4096 -d 128 -m causal" \
    "-b 4 -H 32 -n 4096 -d 64" "-b 1 -H 16 -n 16384 -d 128"; do
    # shellcheck disable=SC2086 # a shape is several words
    measure "$program" $shape
  done
done

# Masks, where a step takes them: 16384 queries and a width of 2048, as beside PyTorch.
for program in "$build"/step0[5-9]; do
  for head_dim in 64 128; do
    heads=$((2048 / head_dim))
    for seqlen in 4096 16384; do
      shape=(-b $((16384 / seqlen)) -H "$heads" -n "$seqlen" -d "$head_dim")
      for mask in full causal window:1024 document:8 prefix:$((seqlen / 4)) blocks:0.{1..9} random:0.5; do
        measure "$program" "${shape[@]}" -m "$mask"
      done
      # What prefetch gives: the same without.
      for mask in full causal window:1024 document:8; do
        measure "$program" "${shape[@]}" -m "$mask" --stages 1
      done
    done
    # As long as these masks are for.
    for seqlen in 65536 131072; do
      for mask in window:1024 document:8; do
        measure "$program" -b 1 -H "$heads" -n "$seqlen" -d "$head_dim" -m "$mask" -c rows:500
      done
    done
  done
done
exit "$failed"
