#!/usr/bin/env bash
# full_disk_test.sh OUTRIDER: what cannot be written, to standard output or to a file, ends a command
# with status 2 and one line that says so.
set -uo pipefail
outrider=$1
model=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/models/tiny-v3-mtp3
failures=0

# check WANTED ARGUMENT...: runs outrider with a standard output that is full.
check() {
  local wanted=$1 said status
  shift
  said=$("$outrider" "$@" 2>&1 >/dev/full)
  status=$?
  if [ $status -ne 2 ] || [[ $said != *"outrider: error: $wanted"* ]]; then
    echo "outrider $*: status $status, said: $said"
    failures=$((failures + 1))
  fi
}

bench=(bench latency "$model" --spec-tokens 0 --num-prompts 1 --input-len 4 --output-len 2)
check "standard output cannot be written to" --help
check "standard output cannot be written to" explain "$model"
check "standard output cannot be written to" explain "$model" --json
check "standard output cannot be written to" explain --batch d:4@900
check "standard output cannot be written to" "${bench[@]}"
check "--json: cannot write '/dev/full'" "${bench[@]}" --json /dev/full
check "standard output cannot be written to" generate "$model" --prompt x --max-tokens 2
exit $((failures > 0))
