#!/usr/bin/env bash
# The end-to-end tests on a GPU, several files of them at a time: most of their time is the host's.
# Usage: tests/gpu/test.sh DIRECTORY-OF-CUDA-BUILD [FILE...], after `make test-e2e BACKEND=cuda PYTEST_ARGS=--collect-only`
set -uo pipefail
BACKEND=cuda
STEP_DIR=$(realpath "$1")
shift
logs=$(mktemp -d)
export BACKEND STEP_DIR logs
trap 'rm -rf "$logs"' EXIT

# One file; its output in one piece, its exit code in a file if it failed.
test_file() {
  local log code
  log=$(python3 -m pytest -q -rs "$1" 2>&1)
  code=$?
  # 5: no test in it is for a GPU
  [ "$code" -eq 0 ] || [ "$code" -eq 5 ] || touch "$logs/failed"
  printf '\n$ BACKEND=cuda python3 -m pytest -q -rs %s\n%s\nexit %d\n' "$1" "$log" "$code"
}
export -f test_file

# Those that fill the card, and those that look at times, come last, alone.
alone=(tests/e2e/gpu/test_gpu_only.py tests/e2e/tools/test_library_time.py)
if [ $# -eq 0 ]; then
  mapfile -t beside < <(find tests/e2e -name 'test_*.py' | sort | grep -vFx "${alone[@]/#/-e}")
else
  beside=("$@") alone=()
fi
printf '%s\0' "${beside[@]}" | xargs -0 -P $(($(nproc) / 3 + 1)) -I{} bash -c 'test_file {}'
for file in "${alone[@]}"; do test_file "$file"; done
[ ! -e "$logs/failed" ]
