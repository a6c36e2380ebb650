#!/usr/bin/env bash
# Checks the form of the sources: clang-format, then clang-tidy.
#
#   scripts/lint.sh format           every C++ and CUDA source against .clang-format
#   scripts/lint.sh format --fix     and rewrites them
#   scripts/lint.sh tidy BUILD_DIR   every .cc of src/outrider against .clang-tidy; BUILD_DIR has a
#                                    compile_commands.json
#
# With OUTRIDER_TIDY_SECONDS=N, tidy starts no file after N seconds and says how many it left out;
# files that differ from the main branch come first.
set -euo pipefail
cd "$(dirname "$0")/.."

format() {
  local files
  mapfile -t files < <(git ls-files -- '*.h' '*.cc' '*.cu' '*.cuh')
  if [ "${1:-}" = --fix ]; then
    clang-format-19 -i "${files[@]}"
  else
    clang-format-19 --dry-run -Werror "${files[@]}"
  fi
  echo "lint: clang-format: ${#files[@]} files"
}

# One file of tidy, run by xargs; prints only when there is something to say.
tidy_one() {
  if [ -n "${OUTRIDER_TIDY_UNTIL:-}" ] && [ "$(date +%s)" -ge "$OUTRIDER_TIDY_UNTIL" ]; then
    echo "$1" >>"$OUTRIDER_TIDY_SKIPPED"
    return 0
  fi
  local output
  if ! output=$(clang-tidy-19 -p "$OUTRIDER_TIDY_BUILD" --quiet "$1" 2>/dev/null); then
    printf '%s\n' "$output"
    return 1
  fi
}

tidy() {
  local build=${1:?"lint: error: tidy needs the build directory"}
  [ -f "$build/compile_commands.json" ] || {
    echo "lint: error: $build has no compile_commands.json; configure it first" >&2
    exit 2
  }
  local changed all status=0
  changed=$(git diff --name-only --diff-filter=d origin/main -- 'src/outrider/*.cc' 2>/dev/null || true)
  all=$(git ls-files -- 'src/outrider/*.cc')
  OUTRIDER_TIDY_BUILD=$build
  OUTRIDER_TIDY_SKIPPED=$(mktemp)
  OUTRIDER_TIDY_UNTIL=
  if [ -n "${OUTRIDER_TIDY_SECONDS:-}" ]; then
    OUTRIDER_TIDY_UNTIL=$(($(date +%s) + OUTRIDER_TIDY_SECONDS))
  fi
  export OUTRIDER_TIDY_BUILD OUTRIDER_TIDY_SKIPPED OUTRIDER_TIDY_UNTIL
  export -f tidy_one
  printf '%s\n%s\n' "$changed" "$all" | awk 'NF && !seen[$0]++' |
    xargs -P "$(nproc)" -I{} bash -c 'tidy_one {}' || status=1
  local skipped total
  skipped=$(wc -l <"$OUTRIDER_TIDY_SKIPPED")
  total=$(wc -l <<<"$all")
  rm -f "$OUTRIDER_TIDY_SKIPPED"
  echo "lint: clang-tidy: $((total - skipped)) of $total files"
  if [ "$skipped" -gt 0 ]; then
    echo "lint: $skipped files left out after $OUTRIDER_TIDY_SECONDS s; scripts/lint.sh tidy $build checks all"
  fi
  return $status
}

case "${1:-}" in
  format | tidy) "$@" ;;
  *)
    echo "usage: scripts/lint.sh format [--fix] | tidy BUILD_DIR" >&2
    exit 2
    ;;
esac
