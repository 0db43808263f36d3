#!/usr/bin/env bash
# What Nsight Compute counts in one forward pass of every step, at B=1, H=16, N=4096, D=128, fp16.
# Usage: tests/gpu/counters.sh DIRECTORY-OF-CUDA-BUILD
#
# Bank conflicts: the l1tex counters of loads and stores hold collisions between warps as well ("arbitration");
# memory_l1_wavefronts_shared beside its ideal, and the sass counters, hold those of the instructions alone.
set -uo pipefail
build=$1
metrics=$(tr -d ' \n' <<'METRICS'
gpu__time_duration.sum,
dram__bytes.sum,
lts__t_bytes.sum,
sm__warps_active.avg.pct_of_peak_sustained_active,
sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_elapsed,
sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_elapsed,
sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_elapsed,
smsp__inst_executed_op_local_ld.sum,
smsp__inst_executed_op_local_st.sum,
l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed,
l1tex__data_pipe_lsu_wavefronts_mem_shared.sum,
memory_l1_wavefronts_shared,
memory_l1_wavefronts_shared_ideal,
l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum,
l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum,
l1tex__data_bank_conflicts_type_arbitration.sum,
sm__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ldsm.sum,
sm__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ldgsts.sum
METRICS
)
failed=0
for program in "$build"/step[0-9][0-9]; do
  case $program in *step01) launches=3 ;; *) launches=1 ;; esac
  log=$(ncu --metrics "$metrics" --launch-count $launches \
    --kernel-name 'regex:^(attention|scores|softmax|output)_kernel' \
    "$program" -b 1 -H 16 -n 4096 -d 128 -c none -r 1 --min-time 0 2>&1) || failed=1
  grep -vE '^==PROF==|^$|^ *(-|Metric Name)' <<<"$log" | grep -A99 '_kernel'
done
exit "$failed"
