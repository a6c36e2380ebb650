#!/usr/bin/env bash
# Checks the form of the sources: clang-format, then clang-tidy.
#
#   scripts/lint.sh format           every C++ and CUDA source against .clang-format
#   scripts/lint.sh format --fix     and rewrites them
#   scripts/lint.sh tidy BUILD_DIR   every .cc of src/outrider against .clang-tidy; BUILD_DIR is
#                                    configured. Where several sources are compiled at a time (the
#                                    asan preset), so they are checked: three times as fast.
#
# With OUTRIDER_TIDY_SECONDS=N, tidy starts nothing after N seconds and says how much it left out;
# sources that differ from the main branch come first.
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

# One source of tidy, run by xargs; prints only when there is something to say.
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

# What the compiler was given for src/outrider: sources, and files that include several of them.
compiled_sources() {
  sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' "$1/compile_commands.json" | grep '/src/outrider/'
}

# Puts those first that are, or include, a file that differs from the main branch.
changed_first() {
  local changed=$1 source
  while read -r source; do
    if printf '%s\n' "$source" | cat - "$source" | grep -qFf "$changed"; then
      echo "0 $source"
    else
      echo "1 $source"
    fi
  done | sort -s -k 1,1 | cut -d ' ' -f 2-
}

tidy() {
  local build=${1:?"lint: error: tidy needs the build directory"}
  [ -f "$build/compile_commands.json" ] || {
    echo "lint: error: $build has no compile_commands.json; configure it first" >&2
    exit 2
  }
  local changed sources total skipped status=0
  changed=$(mktemp)
  { git diff --name-only --diff-filter=d origin/main -- 'src/outrider/*.cc' 2>/dev/null || true; } >"$changed"
  sources=$(compiled_sources "$build" | changed_first "$changed")
  OUTRIDER_TIDY_BUILD=$build
  OUTRIDER_TIDY_SKIPPED=$(mktemp)
  OUTRIDER_TIDY_UNTIL=
  if [ -n "${OUTRIDER_TIDY_SECONDS:-}" ]; then
    OUTRIDER_TIDY_UNTIL=$(($(date +%s) + OUTRIDER_TIDY_SECONDS))
  fi
  export OUTRIDER_TIDY_BUILD OUTRIDER_TIDY_SKIPPED OUTRIDER_TIDY_UNTIL
  export -f tidy_one
  xargs -P "$(nproc)" -I{} bash -c 'tidy_one {}' <<<"$sources" || status=1
  skipped=$(wc -l <"$OUTRIDER_TIDY_SKIPPED")
  total=$(wc -l <<<"$sources")
  rm -f "$OUTRIDER_TIDY_SKIPPED" "$changed"
  echo "lint: clang-tidy: $((total - skipped)) of $total compiled sources"
  if [ "$skipped" -gt 0 ]; then
    echo "lint: $skipped left out after $OUTRIDER_TIDY_SECONDS s; scripts/lint.sh tidy $build checks all"
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
