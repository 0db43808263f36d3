#!/usr/bin/env bash
# Nsight Compute's counts of every step at several shapes, and of cp.async alone, to compare with
# the lab.
# Usage: tests/gpu/counts.sh DIRECTORY-OF-CUDA-BUILD OUT.jsonl
# Later, without a GPU: python3 -m tests.gpu.compare_counts OUT.jsonl
set -uo pipefail
build=$1
out=$2
here=$(dirname "$0")
metrics=$(tr -d ' \n' <<'METRICS'
l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum,
l1tex__t_requests_pipe_lsu_mem_global_op_st.sum,
l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum,
smsp__sass_inst_executed_op_shared_ld.sum,
smsp__sass_inst_executed_op_shared_st.sum,
l1tex__data_pipe_lsu_wavefronts_mem_shared.sum,
l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum,
sm__sass_inst_executed_op_tma_ld.sum,
sm__sass_inst_executed_op_tma_st.sum,
l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld.sum,
l1tex__m_l1tex2xbar_write_sectors_mem_global_op_tma_st.sum,
l1tex__data_pipe_lsu_wavefronts_mem_shared_op_gmma.sum,
l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_gmma.sum,
inst_executed,
memory_l1_wavefronts_shared,
memory_l1_wavefronts_shared_ideal,
memory_l2_theoretical_sectors_global
METRICS
)
commit=${COMMIT:-$(git rev-parse --short=12 HEAD 2>/dev/null)}
report=$(mktemp -d)
trap 'rm -rf "$report"' EXIT
failed=0

# count PROGRAM OPTIONS...: nothing if the step refuses the problem. What prepares a mask does not count.
count() {
  local step=$1 kernels=copies once=()
  shift
  if [ "$step" != copies ]; then
    kernels=$("$build/$step" "$@" --info --json - 2>/dev/null |
      python3 -c 'import json, sys; print("|".join(json.load(sys.stdin)["launches"]))' 2>/dev/null) || return 0
    once=(-c none -r 1 --min-time 0)
  fi
  rm -f "$report"/*
  ncu --force-overwrite --export "$report/run" --section SourceCounters --metrics "$metrics" \
    --launch-count "$(tr '|' '\n' <<<"$kernels" | wc -l)" --kernel-name "regex:^($kernels)_kernel" \
    "$build/$step" "$@" "${once[@]}" >"$report/log" 2>&1 &&
    ncu --import "$report/run.ncu-rep" --page raw --csv >"$report/raw.csv" &&
    ncu --import "$report/run.ncu-rep" --page source --csv >"$report/source.csv" &&
    python3 "$here/read_ncu.py" "$report/raw.csv" "$report/source.csv" "$commit" "$step" "$*" \
      >>"$out" || { echo "$step $*: failed" >&2; cat "$report/log" >&2; failed=1; }
}

: >"$out"
for program in "$build"/step[0-9][0-9] "$build"/step[0-9][0-9][a-z]; do
  [ -x "$program" ] || continue
  step=$(basename "$program")
  count "$step" -b 1 -H 2 -n 256 -d 64
  count "$step" -b 1 -H 4 -G 2 -n 333 -k 500 -d 128 -m causal
  count "$step" -b 2 -H 2 -n 200 -d 128
  count "$step" -b 1 -H 2 -n 450 -d 64 -m causal
  count "$step" -b 1 -H 2 -n 150 -d 256
  count "$step" -b 1 -H 2 -n 150 -d 96
  count "$step" -b 1 -H 2 -n 450 -d 128 -m window:100
  "$program" --info --json - 2>/dev/null | grep -q '"spans"' || count "$step" -b 1 -H 2 -n 450 -d 64 -m random:0.3
  # Decode: a sequence without a key, one in many parts and one in more than 32, several queries; in pages, and in
  # e4m3, where a step takes these.
  count "$step" -d 64 -b 3 --lengths 0,65,300 -H 8 -G 2 -t bf16
  count "$step" -d 128 -b 1 --lengths 4000 -H 8 -G 2
  count "$step" -d 64 -b 1 --lengths 9000 -H 4 -G 1
  count "$step" -d 256 -n 2 -b 2 --lengths 64,127 -H 4 -G 2 -m window:64
  count "$step" -d 128 -n 4 -b 2 --lengths 3,150 -H 8 -G 2 --page-size 16
  count "$step" -d 64 -b 3 --lengths 0,65,300 -H 8 -G 2 -t bf16 --kv-dtype e4m3
  count "$step" -d 128 -b 2 --lengths 700,33 -H 16 -G 1 --kv-dtype e4m3 --page-size 64
done

for rows in "128 16" "256 16" "512 16" "192 16" "64 16" "128 0" "256 0"; do
  # shellcheck disable=SC2086
  for zeros in none all odd-rows; do count copies $rows row $zeros; done
done
for order in swizzled reversed columns scattered; do
  for zeros in none all odd-lanes quarter; do count copies 128 0 $order $zeros; done
  count copies 128 16 $order odd-rows
done
exit "$failed"
