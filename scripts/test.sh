#!/usr/bin/env bash
# Checks everything that this machine can check, from a fresh clone on.
#
#   scripts/test.sh          what continuous integration runs, in about 25 minutes on two cores (more where
#                            the compiler cache is empty):
#                            release tests, an OpenAI client, a browser on the web page, address and
#                            undefined-behaviour sanitizers with fuzzers, the thread sanitizer where
#                            threads meet, clang-format, clang-tidy of what changed since the last tag
#                            (of five commits, where there is no tag), the CUDA build where nvcc is,
#                            what `docker build` copies, configured, the Python package's wheel
#   scripts/test.sh --full   before a release: also the sanitizers' slow tests and the thread sanitizer
#                            in every room, clang-tidy of all sources, longer fuzzing, schemathesis on
#                            the HTTP API, agents and other client packages, lm_eval, wheels for
#                            python3.10 to python3.13 where these are
#
# No environment variable and no clock changes what is run. The last line reads "N passed, N failed";
# the exit status is 1 when anything failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

full=false
case "${1:-}" in
  "") ;;
  --full) full=true ;;
  -h | --help)
    sed -n '2,/^set/p' scripts/test.sh | sed -n 's/^# \{0,1\}//p'
    exit 0
    ;;
  *)
    echo "test: error: unknown argument '$1'; use --full or nothing" >&2
    exit 2
    ;;
esac
test_jobs=$(($(nproc) + 1)) # many tests wait: for a browser, a server, a stub's next step
python=$PWD/build/venv/bin/python

# record NAME PASSED FAILED SECONDS: a line of the file, as what runs beside other checks records too.
record() { printf '%s\t%d\t%d\t%d\n' "$1" "$2" "$3" "$4" >>"$records"; }
say() { printf '\n== %s (%d s)\n' "$1" "$SECONDS"; }

# check NAME COMMAND...: one pass or failure by the exit status.
check() {
  local name=$1 start=$SECONDS status=0
  shift
  say "$name"
  "$@" || status=1
  record "$name" $((1 - status)) $status $((SECONDS - start))
  return $status
}

# beside LOG COMMAND...: runs it in the background; join waits for it and shows what it printed. It has no files
# in $tmp, where run_ctest looks for what tests leave.
beside() {
  local log=$1
  shift
  "$@" >"$log" 2>&1 &
  beside_id=$!
  beside_log=$log
}
join() {
  wait "$beside_id"
  beside_id=
  cat "$beside_log"
}

# configure_and_build PRESET [CMAKE ARGUMENT...] [-- TARGET...]: what cmake prints while configuring is
# shown only when it fails.
configure_and_build() {
  local preset=$1 arguments=() targets=()
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    arguments+=("$1")
    shift
  done
  if [ $# -gt 1 ]; then targets=(--target "${@:2}"); fi
  if ! cmake --preset "$preset" -UOUTRIDER_TEST_ROOMS -DOUTRIDER_TEST_PYTHON="$python" \
    -DOUTRIDER_CLIENTS_PYTHON="$clients_python" \
    -DOUTRIDER_LLAMA_INDEX_PYTHON="$llama_index_python" \
    -DOUTRIDER_OPERATORS_PYTHON="$operators_python" "${arguments[@]}" \
    >build/configure.log 2>&1; then
    cat build/configure.log
    return 1
  fi
  cmake --build --preset "$preset" "${targets[@]}"
}

# run_ctest NAME DIRECTORY [CTEST ARGUMENT...]: adds each test of a build's directory to the counts. A
# file that tests leave in the temporary directory is a failure.
run_ctest() {
  local name=$1 directory=$2 start=$SECONDS log=build/ctest.log left
  shift 2
  say "$name"
  TMPDIR=$tmp ctest --test-dir "$directory" -j "$test_jobs" --output-on-failure --no-tests=error "$@" 2>&1 |
    tee "$log" |
    grep -vE '^ *(Start +[0-9]+:|[0-9]+/[0-9]+ Test .* Passed )|^(Internal|Test project)'
  if [[ $(<"$log") =~ tests\ passed,\ ([0-9]+)\ tests\ failed\ out\ of\ ([0-9]+) ]]; then
    record "$name" $((BASH_REMATCH[2] - BASH_REMATCH[1])) "${BASH_REMATCH[1]}" $((SECONDS - start))
  else
    record "$name" 0 1 $((SECONDS - start))
  fi
  left=$(find "$tmp" -mindepth 1 -maxdepth 1)
  if [ -n "$left" ]; then
    printf 'test: error: left in the temporary directory by %s:\n%s\n' "$name" "$left"
    record "$name: left-over files" 0 1 0
    find "$tmp" -mindepth 1 -delete
  fi
}

# install_python_packages DIRECTORY FILE: a virtual environment with the packages of the file, which
# the stamp is a copy of.
install_python_packages() {
  cmp -s "$2" "$1/installed.txt" && return
  rm -rf "$1"
  /usr/bin/python3 -m venv "$1" &&
    "$1/bin/python" -m pip install -q -r "$2" &&
    cp "$2" "$1/installed.txt"
}

# Configures what `docker build` would copy: all but what .dockerignore names.
configure_as_in_image() {
  local tree=$beside_tmp/image log=build/configure-image.log status=0
  mkdir -p "$tree/build" build/downloads
  git ls-files -z | grep -zvE "^($(paste -sd'|' .dockerignore))(/|\$)" |
    xargs -0 cp --parents -t "$tree"
  ln -s "$PWD/build/downloads" "$tree/build/downloads"
  (cd "$tree" && cmake --preset release -DOUTRIDER_BUILD_TESTS=OFF) \
    >$log 2>&1 || status=1
  rm -rf "$tree"
  if [ $status -ne 0 ]; then cat $log; fi
  return $status
}

# check_wheel PYTHON: the package's tests, in a fresh virtual environment with the wheel that pip builds,
# against the program of the release build.
check_wheel() {
  local name="wheel: $1" start=$SECONDS environment=$beside_tmp/wheel log=build/wheel-tests.log
  check "$name: build" scripts/wheel.sh --python "$1" --gpu $gpu || return
  say "$name: tests"
  # The log's last line reads "= 78 passed, 1 failed in 30.00s =".
  if "$1" -m venv "$environment" &&
    "$environment/bin/pip" install -q build/dist/*.whl "${wheel_packages[@]}" &&
    OUTRIDER_BINARY=$PWD/build/release/outrider TMPDIR=$beside_tmp \
      "$environment/bin/python" -m pytest -q -p no:cacheprovider --mixes $python_mixes python/tests 2>&1 |
    tee "$log" &&
    [[ $(tail -n 1 "$log") =~ ([0-9]+)\ passed ]]; then
    record "$name: tests" "${BASH_REMATCH[1]}" 0 $((SECONDS - start))
  elif [[ $(tail -n 1 "$log") =~ ([0-9]+)\ failed ]]; then
    record "$name: tests" 0 "${BASH_REMATCH[1]}" $((SECONDS - start))
  else
    record "$name: tests" 0 1 $((SECONDS - start))
  fi
  find "$beside_tmp" -mindepth 1 -delete
}

say "Packages"
scripts/setup.sh --tests || exit 1
mkdir -p build
tmp=$(mktemp -d) # of the tests; its path is short, as paths of sockets have to be
beside_tmp=$(mktemp -d)
records=$(mktemp)
beside_id=
trap 'rm -rf "$tmp" "$beside_tmp" "$records"; [ -z "$beside_id" ] || kill "$beside_id"' EXIT
check "python packages" install_python_packages build/venv tests/requirements.txt
clients_python=
llama_index_python=
operators_python=
if $full; then
  check "client packages" install_python_packages build/venv-clients tests/requirements_clients.txt &&
    clients_python=$PWD/build/venv-clients/bin/python
  check "llama-index" install_python_packages build/venv-llama-index tests/requirements_llama_index.txt &&
    llama_index_python=$PWD/build/venv-llama-index/bin/python
  check "operators' packages" install_python_packages build/venv-operators tests/requirements_operators.txt &&
    operators_python=$PWD/build/venv-operators/bin/python
fi

# The labels of tests that are left out (tests/CMakeLists.txt says what they mean).
if $full; then
  left_out='part|fuzz'
  tidy_since=()
  fuzz_seconds=60
  exactness_requests=50000
  # Tests take longer than their compilation here.
  sanitizer_flags=-DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1"
  wheel_packages=(-r python/tests/requirements.txt -r python/tests/requirements_lm_eval.txt)
  python_mixes=200
  asan_options=(-DOUTRIDER_SANITIZE_XGRAMMAR=ON)
  tsan_rooms=()
else
  left_out='full|fuzz'
  tidy_since=("$(git describe --tags --abbrev=0 2>/dev/null || git rev-list -n 6 HEAD | tail -n 1)")
  fuzz_seconds=5
  exactness_requests=5000
  sanitizer_flags=-DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O0 -g1"
  wheel_packages=(-r python/tests/requirements.txt)
  python_mixes=12
  asan_options=(-DOUTRIDER_SANITIZE_XGRAMMAR=OFF)
  # Threads meet in the pool, the template interpreter, the executor's and the engine's thread, and
  # the server.
  tsan_rooms=(-DOUTRIDER_TEST_ROOMS="base;text;execute;engine;server"
    -- tests/{base,execute,engine,server}/all chat_template_test)
fi

# Code for GPUs is part of the release build where a GPU is, and is compiled by itself elsewhere.
gpu=AUTO
if [ ! -e /dev/nvidiactl ]; then gpu=OFF; fi
pythons=(/usr/bin/python3)
if $full; then
  for version in 3.10 3.11 3.12 3.13; do
    found=$(command -v "python$version") && [ ! "$found" -ef /usr/bin/python3 ] && pythons+=("$found")
  done
fi
# Most of it is one process that computes and another that waits for it.
exactness_fuzz_and_wheels() {
  # Another seed for each commit.
  check "exactness fuzz" build/release/tests/engine/outrider_exactness_fuzz \
    --requests "$exactness_requests" --seed $((16#$(git rev-parse HEAD | cut -c 1-3)))
  for wheel_python in "${pythons[@]}"; do check_wheel "$wheel_python"; done
  check "image: configure" configure_as_in_image
}
if check "release: build" configure_and_build release -DOUTRIDER_CUDA=$gpu; then
  beside build/beside.log exactness_fuzz_and_wheels
  run_ctest "release: tests" build/release -LE "$left_out"
  join
fi
check "clang-format" scripts/lint.sh format
if check "asan+ubsan: build" \
  configure_and_build asan "$sanitizer_flags" -DOUTRIDER_FUZZ_SECONDS="$fuzz_seconds" \
    "${asan_options[@]}"; then
  run_ctest "asan+ubsan: tests" build/asan -LE "$left_out"
  run_ctest "fuzzers: $fuzz_seconds s each" build/asan -L fuzz
fi
if check "tsan: build" configure_and_build tsan "$sanitizer_flags" "${tsan_rooms[@]}"; then
  run_ctest "tsan: tests" build/tsan -LE "$left_out"
fi
check "clang-tidy" scripts/lint.sh tidy build/asan "${tidy_since[@]}"
notes=()
if [ $gpu = AUTO ]; then
  notes+=("cuda: tests of the label gpu are among the release tests where nvcc and cuDNN are (docs/gpu.md)")
elif command -v nvcc >/dev/null; then
  check "cuda: build" configure_and_build cuda -DOUTRIDER_BUILD_TESTS=OFF -- \
    src/outrider/{kernels/cuda,ops/cuda}/all
else
  notes+=("cuda: skipped: no nvcc on this machine; the code for GPUs was not compiled")
fi

say "Summary"
awk -F'\t' '{printf "%-34s %5d passed %5d failed %6d s\n", $1, $2, $3, $4}' "$records"
printf '%s' "${notes[@]/%/$'\n'}"
passed=$(awk -F'\t' '{n += $2} END {print n + 0}' "$records")
failed=$(awk -F'\t' '{n += $3} END {print n + 0}' "$records")
echo "$(nproc) cores, $SECONDS s"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
