#!/usr/bin/env bash
# Tests that need a GPU: the end-to-end tests on the device, compute-sanitizer, Nsight Compute's
# counts.
# Usage: tests/gpu/run.sh OUTPUT-DIRECTORY test|test-gpu-only|sanitize|counts|exercises...
# OUTPUT-DIRECTORY gets PART.log, and PART.xml or counts.jsonl; the exit code is 1 if a part has
# failed.
set -uo pipefail
cd "$(dirname "$0")/../.."
mkdir -p "$1"
out=$(realpath "$1")
shift
arch=sm_$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
export build=build/cuda-$arch
failed=0

# Runs compute-sanitizer on one program: TOOL PROGRAM ARGUMENTS..., and prints one line.
sanitize() {
  local log code
  log=$(compute-sanitizer --tool "$1" --error-exitcode 9 "${@:2}" 2>&1)
  code=$?
  [ "$code" -eq 0 ] || tail -40 <<<"$log"
  printf '%s %-9s exit %d: %s\n' "${2#"$build"/}" "$1" "$code" "$(grep -E 'SUMMARY|RACECHECK' <<<"$log" | tail -1)"
  return "$code"
}
export -f sanitize

# Every step with four tools; and with memcheck, every head in an allocation of its own.
sanitize_all() {
  local program cases tool several d
  for program in "$build"/step[0-9][0-9] "$build"/step[0-9][0-9][a-z]; do
    [ -x "$program" ] || continue
    cases=$out/$(basename "$program").cases
    sort -u tests/sanitize*.cases | grep -v '^#' | while read -r options; do # those that it takes
      # shellcheck disable=SC2086
      "$program" --info $options >/dev/null 2>&1 && echo "$options"
    done >"$cases"
    for tool in memcheck racecheck initcheck synccheck; do
      echo "sanitize $tool $program --cases $cases --heads 2 --repeat 0 --check all"
    done
    # More tiles of queries than multiprocessors, so that persistent thread blocks take several.
    # Without racecheck, which has a false alarm there: README.md says why.
    "$program" --info --json - 2>/dev/null | grep -q '"workspace_zero": true' && several=(64 128 256) || several=()
    for d in "${several[@]}"; do
      "$program" --info -n 130 -d "$d" >/dev/null 2>&1 || continue
      for tool in memcheck initcheck synccheck; do
        echo "sanitize $tool $program -b 2 -H 96 -n 130 -k 90 -m causal -d $d --repeat 0 --check all"
      done
    done
    # Decode: a thread block for each row group, and so many of them that some step has no places for their parts.
    "$program" --info -d 128 -n 16 -b 132 -H 4 -G 1 -k 40 --json - 2>/dev/null | grep -q '"kind": "decode"' &&
      echo "sanitize memcheck $program -d 128 -n 16 -b 132 -H 4 -G 1 -k 40 --repeat 0 --check all"
    # Has no such problems: it takes D = 256 alone, or its gradients would lie like K and V.
    "$program" --info -d 64 --json - 2>/dev/null | grep '"kind"' | grep -qv '"kind": "backward"' || continue
    echo "sanitize memcheck $build/under_test/$(basename "$program") guarded"
  done | xargs -P 12 -d '\n' -I{} bash -c '{}'
}

# run_tests NAME PYTEST-OPTIONS...
run_tests() {
  BACKEND=cuda STEP_DIR="$PWD/$build" python3 -m pytest -v -rs --durations 20 -p no:benchmark \
    --junitxml "$out/$1.xml" "${@:2}" > >(tee "$out/$1.log") 2>&1 || failed=1
}

{
  date -u +%Y-%m-%dT%H:%M:%SZ
  nvidia-smi --query-gpu=name,driver_version --format=csv
  nvcc --version | tail -2
  echo "commit ${COMMIT:-$(git rev-parse HEAD 2>/dev/null)}"
} >"$out/versions.txt" 2>&1
make -j"$(nproc)" BACKEND=cuda ARCH="$arch" all "$build/copies" >"$out/build.log" 2>&1 &&
  make -j"$(nproc)" BACKEND=cuda ARCH="$arch" test-e2e PYTEST_ARGS=--collect-only >>"$out/build.log" 2>&1 ||
  { tail -20 "$out/build.log"; exit 1; }
for part; do
  case $part in
    test) run_tests test -n 16 -m "not gpu_only and not exhaustive" ;;
    test-gpu-only)
      alone="do_not_fit or test_report or ceilings" # they fill the memory or measure times
      run_tests test-gpu-only -n 3 -m gpu_only -k "not ($alone)" # up to 20 GB of host memory each
      wait
      run_tests test-alone -n 0 -m gpu_only -k "$alone"
      ;;
    sanitize) sanitize_all > >(tee "$out/sanitize.log") 2>&1 || failed=1 ;;
    counts) tests/gpu/counts.sh "$build" "$out/counts.jsonl" > >(tee "$out/counts.log") 2>&1 || failed=1 ;;
    exercises) BACKEND=cuda BUILD=$build python3 tests/gpu/exercises.py > >(tee "$out/exercises.log") 2>&1 || failed=1 ;;
    *) echo "$part: must be test, test-gpu-only, sanitize, counts or exercises" >&2; exit 2 ;;
  esac
  wait
done
exit "$failed"
