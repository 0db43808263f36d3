#!/usr/bin/env bash
# compute-sanitizer's four tools on every step, and memcheck on tensors whose heads are allocations of their own.
# Usage: tests/gpu/sanitize.sh DIRECTORY-OF-CUDA-BUILD, after `make test-e2e BACKEND=cuda`
set -uo pipefail
build=$1
tests=$(dirname "$0")/..
failed=0

# check TOOL PROGRAM ARGUMENTS...
check() {
  local log code
  log=$(compute-sanitizer --tool "$1" --error-exitcode 9 "${@:2}" 2>&1)
  code=$?
  printf '%s %-9s exit %d: %s\n' "${2#"$build"/}" "$1" "$code" \
    "$(grep -E 'SUMMARY|RACECHECK' <<<"$log" | tail -1)"
  [ "$code" -eq 0 ] && return
  printf '%s\n' "$log" | tail -40
  failed=1
}

for program in "$build"/step[0-9][0-9]; do
  cases=$(mktemp)
  cat "$tests/sanitize.cases" >"$cases"
  case $program in *step01 | *step02) cat "$tests/sanitize_any_d.cases" >>"$cases" ;; esac
  for tool in memcheck racecheck initcheck synccheck; do
    check "$tool" "$program" --cases "$cases" --heads 2 --repeat 0 --check all
  done
  rm -f "$cases"
  check memcheck "$build/under_test/$(basename "$program")" guarded
done
exit "$failed"
