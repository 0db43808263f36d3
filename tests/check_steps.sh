#!/bin/sh
# Runs programs on small problems that reach every path of a kernel, with more head dimensions and masks where a step
# takes them. Prints a line for each problem, and for each step whether it is right in all problems that it takes.
# Leaves out steps that refuse this GPU. The exit code is 1 if a step is wrong, or takes none of its problems.

# Whether a step takes an option, perhaps not together with its other default values.
takes() { # step, options for --info, the one in question
  ! "$1" --info $2 2>&1 >/dev/null | grep -q -e ": $3"
}

files_of() {
  if takes "$1" "--lengths 5-5" --lengths; then
    echo tests/sanitize_decode.cases
    if takes "$1" "--page-size 16" --page-size; then echo tests/sanitize_pages.cases; fi
    if takes "$1" "--kv-dtype e4m3" --kv-dtype; then echo tests/sanitize_kv_e4m3.cases; fi
    return
  fi
  if takes "$1" "--scales head" --scales; then echo tests/sanitize_e4m3.cases; else echo tests/sanitize.cases; fi
  if takes "$1" "-d 17" --head-dim; then echo tests/sanitize_any_d.cases; fi
  if takes "$1" "-m empty" --mask; then echo tests/sanitize_masks.cases; fi
}

# Prints the lines of a run, and last what they say of the step.
judge() { # name of the step
  awk -v name="$1" '
    /^exit code / { crashed += $3 > 3; next }
    { print; fflush() }
    /^[^ ]*: refused: / { refused++; next }
    /^[^ ]*: right: / { right++; next }
    { wrong++ }
    END {
      left_out = refused ? sprintf(" (it refuses %d of %d problems)", refused, refused + right + wrong) : ""
      if (wrong || crashed) verdict = "WRONG" left_out
      else if (right) verdict = "right" left_out
      else verdict = sprintf("NOT CHECKED: it refuses all %d problems", refused)
      print name ": " verdict
      exit !right || wrong || crashed
    }'
}

failed=0
for step in "$@"; do
  name=${step##*/}
  why=$("$step" --info 2>&1 >/dev/null)
  case $why in *": this GPU has"*) echo "$name: left out: ${why#*: }"; continue; esac
  for file in $(files_of "$step"); do
    "$step" --cases "$file" --heads 2 --repeat 0 --check all
    echo "exit code $?"
  done | judge "$name" || failed=1
done
exit $failed
