#!/usr/bin/env bash
# Checks the form of the sources: clang-format, then clang-tidy.
#
#   scripts/lint.sh format           every C++ and CUDA source against .clang-format
#   scripts/lint.sh format --fix     and rewrites them
#   scripts/lint.sh tidy BUILD_DIR   every .cc of src/outrider against .clang-tidy; BUILD_DIR is
#                                    configured. Where several sources are compiled at a time (the
#                                    asan preset), so they are checked: three times as fast. What was
#                                    found clean is not checked again while nothing that the checker
#                                    reads differs; ~/.cache/outrider/clang-tidy remembers.
#   scripts/lint.sh tidy BUILD_DIR COMMIT   only where a source or its header differs from COMMIT
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

# A hash of all that clang-tidy reads for one source: its command, every file that it includes, the
# checks. Paths inside the checkout do not count.
tidy_key() {
  local command
  command=$(grep -F -B 1 "\"file\": \"$2\"" "$1/compile_commands.json" |
    sed -n 's/^ *"command": "\(.*\)",$/\1/p' | sed 's/\\"/"/g; s/ -o [^ ]*//') &&
    {
      clang-tidy-19 --version && cat .clang-tidy && echo "$command" &&
        (cd "$1" && eval "$command -M -MT x" | tr -d '\\\n' | cut -d: -f 2- | xargs cat)
    } | sed "s#$PWD##g" | sha256sum | cut -d ' ' -f 1
}

# One source of tidy, run by xargs; prints only when there is something to say.
tidy_one() {
  local output clean
  clean=${XDG_CACHE_HOME:-$HOME/.cache}/outrider/clang-tidy/$(tidy_key "$1" "$2") || {
    echo "lint: error: clang cannot say what $2 includes"
    return 1
  }
  if [ -e "$clean" ]; then return; fi
  if ! output=$(clang-tidy-19 -p "$1" --quiet "$2" 2>/dev/null); then
    printf '%s\n' "$output"
    return 1
  fi
  mkdir -p "${clean%/*}" && touch "$clean"
}

# What the compiler was given for src/outrider: sources, and files that include several of them. Not
# what protoc has written.
compiled_sources() {
  sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' "$1/compile_commands.json" | grep '/src/outrider/' |
    grep -v '\.pb\.cc$'
}

# Of the sources on standard input those that are, or include, a file that differs from a commit. A
# changed header counts as the source of the same name.
differing_from() {
  local names source
  names=$(git diff --name-only --diff-filter=d "$1" -- src/outrider | sed -n 's/\(\.h\|\.cc\)$/.cc/p')
  while read -r source; do
    if { echo "$source" && cat "$source"; } | grep -Ff <(sort -u <<<"$names" | grep .) >/dev/null; then
      echo "$source"
    fi
  done
}

tidy() {
  local build=${1:?"lint: error: tidy needs the build directory"} sources total status=0
  [ -f "$build/compile_commands.json" ] || {
    echo "lint: error: $build has no compile_commands.json; configure it first" >&2
    exit 2
  }
  sources=$(compiled_sources "$build")
  total=$(wc -l <<<"$sources")
  if [ -n "${2:-}" ]; then
    git rev-parse -q --verify "$2^{commit}" >/dev/null || {
      echo "lint: error: there is no commit $2" >&2
      exit 2
    }
    sources=$(differing_from "$2" <<<"$sources")
  fi
  if [ -z "$sources" ]; then
    echo "lint: clang-tidy: nothing differs from $2"
    return
  fi
  export -f tidy_one tidy_key
  # shellcheck disable=SC2016
  xargs -P "$(nproc)" -I{} bash -o pipefail -c 'tidy_one "$1" "$2"' tidy "$build" {} \
    <<<"$sources" || status=1
  echo "lint: clang-tidy: $(wc -l <<<"$sources") of $total compiled sources"
  return $status
}

case "${1:-}" in
  format | tidy) "$@" ;;
  *)
    echo "usage: scripts/lint.sh format [--fix] | tidy BUILD_DIR [COMMIT]" >&2
    exit 2
    ;;
esac
