#!/usr/bin/env bash
# compute-sanitizer's four tools on every step. Usage: tests/gpu/sanitize.sh DIRECTORY-OF-CUDA-BUILD
set -uo pipefail
build=$1
tests=$(dirname "$0")/..
failed=0
for program in "$build"/step[0-9][0-9]; do
  cases=$(mktemp)
  cat "$tests/sanitize.cases" >"$cases"
  case $program in *step01 | *step02) cat "$tests/sanitize_any_d.cases" >>"$cases" ;; esac
  for tool in memcheck racecheck initcheck synccheck; do
    log=$(compute-sanitizer --tool "$tool" --error-exitcode 9 \
      "$program" --cases "$cases" --heads 2 --repeat 0 --check all 2>&1)
    code=$?
    printf '%s %-9s exit %d: %s\n' "$(basename "$program")" "$tool" "$code" \
      "$(grep -E 'SUMMARY|RACECHECK' <<<"$log" | tail -1)"
    if [ "$code" -ne 0 ]; then
      printf '%s\n' "$log" | tail -40
      failed=1
    fi
  done
  rm -f "$cases"
done
exit "$failed"
