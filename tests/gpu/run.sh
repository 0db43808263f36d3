#!/usr/bin/env bash
# Everything that only a GPU can show: tests, compute-sanitizer, the benchmark, profiles, counts.
# Usage: tests/gpu/run.sh OUTPUT-DIRECTORY [test] [sanitize] [bench] [profile] [counts]
# Without a part named, all of them. Run it at the root of a clean checkout on a machine with a GPU.
# Where there is no git history, COMMIT says which commit this is.
set -uo pipefail
out=$1
shift
parts=${*:-test sanitize bench profile counts}
mkdir -p "$out"
arch=sm_$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
build=build/cuda-$arch
failed=0

run() {
  local log=$1
  shift
  printf '\n$%s\n' "$(printf ' %q' "$@")" | tee -a "$out/$log"
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

run build.log make -j"$(nproc)" all libraries BACKEND=cuda ARCH="$arch"
for part in $parts; do
  case $part in
    test)
      run test.log make -j"$(nproc)" test-e2e BACKEND=cuda ARCH="$arch" PYTEST_ARGS="--collect-only -qq"
      run test.log tests/gpu/test.sh "$build"
      ;;
    sanitize) run sanitize.log tests/gpu/sanitize.sh "$build" ;;
    bench) run bench.log make -j"$(nproc)" bench BACKEND=cuda ARCH="$arch" RESULTS="$out" ;;
    profile)
      for program in "$build"/step[0-9][0-9] "$build"/step[0-9][0-9][a-z]; do
        run profile.log make -s profile STEP="${program#"$build"/step}" BACKEND=cuda ARCH="$arch"
      done
      # A mask with short rows, where step 05 misses a goal.
      for shape in "-H 32 -d 64" "-H 16 -d 128"; do
        for mask in full document:8; do
          run profile.log make -s profile STEP=05 BACKEND=cuda ARCH="$arch" \
            PROBLEM="-b 4 $shape -n 4096 -m $mask"
        done
      done
      ;;
    counts)
      run build.log make BACKEND=cuda ARCH="$arch" "$build/copies"
      run counts.log tests/gpu/counts.sh "$build" "$out/counts.jsonl"
      ;;
    *)
      echo "$part: must be test, sanitize, measure, compare, profile or counts" >&2
      exit 2
      ;;
  esac
done
exit "$failed"
