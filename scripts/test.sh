#!/usr/bin/env bash
# Every test that this machine can run, from a fresh clone on.
#
#   scripts/test.sh           release, exactness fuzz, address+undefined sanitizers and fuzzers,
#                             thread sanitizer, clang-format, clang-tidy, a real OpenAI client, a browser on
#                             the web page, CUDA where nvcc is
#   scripts/test.sh --quick   release tests only
#
# OUTRIDER_FUZZ_SECONDS (default 5): how long each fuzzer runs. OUTRIDER_EXACTNESS_SECONDS (default
# 60): how long random requests are compared bit for bit. With CI set, the sanitizers leave out most
# of the engine's tests, the thread sanitizer those of rooms without threads, and clang-tidy stops
# after OUTRIDER_TIDY_SECONDS (30). The last line reads "N passed, N failed"; the exit status is 1
# when anything failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

quick=false
case "${1:-}" in
  "") ;;
  --quick) quick=true ;;
  -h | --help)
    sed -n '2,/^set/p' scripts/test.sh | sed -n 's/^# \{0,1\}//p'
    exit 0
    ;;
  *)
    echo "test: error: unknown argument '$1'; use --quick or nothing" >&2
    exit 2
    ;;
esac
export OUTRIDER_FUZZ_SECONDS=${OUTRIDER_FUZZ_SECONDS:-5}
OUTRIDER_EXACTNESS_SECONDS=${OUTRIDER_EXACTNESS_SECONDS:-60}
fast=false
if [ -n "${CI:-}" ]; then
  fast=true
  export OUTRIDER_TIDY_SECONDS=${OUTRIDER_TIDY_SECONDS:-30}
fi
jobs=$(nproc)

passed=0
failed=0
summary=()
# record NAME PASSED FAILED SECONDS
record() {
  passed=$((passed + $2))
  failed=$((failed + $3))
  summary+=("$(printf '%-34s %5d passed %5d failed %6d s' "$1" "$2" "$3" "$4")")
}
note() { summary+=("$(printf '%-34s %s' "$1" "$2")"); }
say() { printf '\n== %s (%d s)\n' "$1" "$SECONDS"; }

# check NAME COMMAND...: one pass or failure by the exit status.
check() {
  local name=$1 start=$SECONDS
  shift
  say "$name"
  if "$@"; then record "$name" 1 0 $((SECONDS - start)); else record "$name" 0 1 $((SECONDS - start)); fi
}

# build NAME PRESET [CMAKE ARGUMENT...] [-- TARGET...]: configures and builds; a failure counts as
# one. What cmake prints while configuring is shown only when it fails.
build() {
  local name=$1 preset=$2 start=$SECONDS log arguments=() targets=()
  shift 2
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    arguments+=("$1")
    shift
  done
  if [ $# -gt 1 ]; then targets=(--target "${@:2}"); fi
  say "$name"
  log=$(mktemp)
  if ! cmake --preset "$preset" "${arguments[@]}" >"$log" 2>&1; then
    cat "$log"
    rm -f "$log"
    record "$name" 0 1 $((SECONDS - start))
    return 1
  fi
  rm -f "$log"
  if cmake --build --preset "$preset" "${targets[@]}"; then
    record "$name" 1 0 $((SECONDS - start))
  else
    record "$name" 0 1 $((SECONDS - start))
    return 1
  fi
}

# run_ctest NAME DIRECTORY [CTEST ARGUMENT...]: adds each test of a build's directory to the counts.
run_ctest() {
  local name=$1 directory=$2 start=$SECONDS log line status
  shift 2
  say "$name"
  log=$(mktemp)
  ctest --test-dir "$directory" -j "$jobs" --output-on-failure --no-tests=error "$@" 2>&1 | tee "$log" |
    grep -vE '^ *(Start +[0-9]+:|[0-9]+/[0-9]+ Test .* Passed )|^(Internal|Test project)'
  status=${PIPESTATUS[0]}
  line=$(grep -E 'tests passed, [0-9]+ tests failed out of [0-9]+' "$log" || true)
  rm -f "$log"
  if [[ $line =~ ([0-9]+)\ tests\ failed\ out\ of\ ([0-9]+) ]]; then
    record "$name" $((BASH_REMATCH[2] - BASH_REMATCH[1])) "${BASH_REMATCH[1]}" $((SECONDS - start))
  else
    record "$name" 0 1 $((SECONDS - start))
  fi
  return "$status"
}

# run_sanitized NAME DIRECTORY [TESTS]: the tests of a sanitizer build. When CI is set, of the slowest
# suites one case per kind: of the engine random mixes on several threads and grammars, of the
# drafters' state the chain of three, of forced calls one format; of kernels those that are shipped,
# which are compared with the reference; and without TESTS.
run_sanitized() {
  if $fast; then
    run_ctest "$1: tests but the engine's" "$2" -LE 'engine|fuzz' \
      -E "^Isas/.*/reference|(DrafterState|SharedBlocks)Test.*/(Repeated|Chain[12]|Chain3Padded)|FamilyGoldenTest.*/tiny_v3_mtp3|WhateverIsDrawn/(deepseek_v31|glm|kimi)${3:+|$3}"
    run_ctest "$1: tests of the engine" "$2" -L engine \
      -R '/chain3(_uniform_pad)?( |$)|GrammarScenarioTest\.(Ends|Refuses|Preempted|WithThe).*/Chain( |$)'
  else
    run_ctest "$1: tests" "$2" -LE fuzz
  fi
}

# The Python that has the openai and selenium packages, in a virtual environment under build/.
client_python() {
  local python=$PWD/build/venv/bin/python log
  if ! "$python" -c 'import openai, selenium' 2>/dev/null; then
    log=$(mktemp)
    if ! { /usr/bin/python3 -m venv build/venv && "$python" -m pip install -q openai selenium; } >"$log" 2>&1; then
      tail -n 3 "$log" >&2
      rm -f "$log"
      return 1
    fi
    rm -f "$log"
  fi
  echo "$python"
}

say "Packages"
scripts/setup.sh --tests || exit 1

if ! $quick; then
  say "A virtual environment with the openai and selenium packages"
  if python=$(client_python); then
    export OUTRIDER_PYTHON_TESTS=$python
    echo "$python"
  else
    note "openai client, web page" "skipped: the packages could not be installed"
  fi
fi

build "release: build" release -DOUTRIDER_BUILD_TESTS=ON && run_ctest "release: tests" build/release

if ! $quick; then
  check "exactness fuzz: $OUTRIDER_EXACTNESS_SECONDS s" build/release/tests/engine/outrider_exactness_fuzz \
    --seconds "$OUTRIDER_EXACTNESS_SECONDS" --seed "$(date +%j%H)"
  check "clang-format" scripts/lint.sh format
  if build "asan+ubsan: build" asan; then
    run_sanitized "asan+ubsan" build/asan server_load_test # the thread sanitizer has it
    run_ctest "fuzzers: $OUTRIDER_FUZZ_SECONDS s each" build/asan -L fuzz
  fi
  # Threads meet in the pool, the template interpreter, the engine's thread and the server.
  tsan_rooms=(-UOUTRIDER_TEST_ROOMS)
  if $fast; then
    tsan_rooms=(-DOUTRIDER_TEST_ROOMS="base;text;engine;server" -- tests/{base,text,engine,server}/all)
  fi
  build "tsan: build" tsan "${tsan_rooms[@]}" && run_sanitized "tsan" build/tsan
  check "clang-tidy" scripts/lint.sh tidy build/asan
  cuda=src/outrider/kernels/cuda
  if ! command -v nvcc >/dev/null; then
    note "cuda" "skipped: no nvcc on this machine; the CUDA kernels were not compiled"
  elif [ ! -f "$cuda/CMakeLists.txt" ]; then
    note "cuda" "skipped: $cuda has no CMakeLists.txt"
  else
    build "cuda: build" cuda -DOUTRIDER_BUILD_TESTS=OFF -- "$cuda/all"
  fi
fi

say "Summary"
printf '%s\n' "${summary[@]}"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
