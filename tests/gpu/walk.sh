#!/usr/bin/env bash
# What tools that need a GPU say of the stages of docs/profiling.md, in a few minutes.
# Usage: tests/gpu/walk.sh OUTPUT-DIRECTORY
# OUTPUT-DIRECTORY gets walk.log, a section for each command. It belongs in tests/gpu/h200, where
# `make pages` takes the page's transcripts from. Beside it: ncu's reports, for ncu-ui, in reports.tgz.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
mkdir -p "$1"
out=$(realpath "$1")
arch=sm_$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
build=build/cuda-$arch
mapfile -t stages < <(basename -s .patch steps/walk/*.patch)
first=walk/${stages[0]}
step=${stages[0]%%_*} # in which the walk ends
problem="-b 4 -H 16 -n 4096 -d 128"
sections=$(printf -- '--section %s ' SpeedOfLight MemoryWorkloadAnalysis MemoryWorkloadAnalysis_Tables \
  LaunchStats Occupancy WarpStateStats SourceCounters)

make -j"$(nproc)" BACKEND=cuda ARCH="$arch" walk "$step" >"$out/build.log" 2>&1 &&
  make -j"$(nproc)" BACKEND=cuda ARCH="$arch" DEBUG=1 walk >>"$out/build.log" 2>&1 ||
  { tail -20 "$out/build.log"; exit 1; }

# section NAME COMMAND: what it prints, without paths and numbers of this machine and of its host code.
section() {
  echo "=== $1"
  echo "$ $2"
  timeout 200 bash -c "$2" 2>&1 | sed -E "s|$PWD/||g; s/[[:space:]]+\$//
    /^==PROF==|Host Frame|host backtrace|^\[(New )?Thread |^\[(Detaching|Inferior)|^Using host|^\[[0-9]+\] |^warning:/d"
  echo "exit ${PIPESTATUS[0]}"
}

{
  echo "commit ${COMMIT:-$(git rev-parse --short=12 HEAD)}"
  date -u +%Y-%m-%d
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1
  nvcc --version | tail -2 | head -1

  small="$build/$first -b 1 -H 2 -d 64 -r 0"
  section run "$small -n 256"
  section racecheck "compute-sanitizer --tool racecheck $small -n 256 -c none"
  section memcheck "compute-sanitizer --tool memcheck --print-limit 2 $small -n 300 -c none"

  # Where a warp reads the maxima that the others have written, or not yet.
  line=$(grep -n 'w < WARPS; w++) row_max' "$build/$first.cu" | cut -d: -f1)
  cat >build/walk.gdb <<END
set trace-commands on
set pagination off
set breakpoint pending on
break ${stages[0]}.cu:$line
run
info cuda kernels
print blockIdx
print threadIdx
print row_max
print maxima[0][0]
print maxima[1][0]
print maxima[2][0]
print maxima[3][0]
cuda thread (0,3,0)
print row_max
info cuda threads
kill
END
  section gdb "cuda-gdb -batch -x build/walk.gdb --args $build-debug/$first -b 1 -H 1 -n 32 -k 256 -d 64 -r 0 -c none"

  for stage in "${stages[@]:1}" "$step"; do
    program=$build/walk/$stage
    [ "$stage" != "$step" ] || program=$build/$step
    section "profile_$stage" "python3 -m plots.tools.profile $program $problem"
    section "collect_$stage" "ncu -f -o build/$stage ${sections}-k regex:softmax -c 1 $program $problem -c none -r 0"
    section "ncu_$stage" "ncu --import build/$stage.ncu-rep"
    ncu --import "build/$stage.ncu-rep" --page source --csv >"build/$stage.csv" 2>&1
  done
} >"$out/walk.log" 2>&1
(cd build && tar czf "$out/reports.tgz" "$step"*.ncu-rep "$step"*.csv)
grep -E '^(===|exit)' "$out/walk.log"
