#!/usr/bin/env bash
# Installs what building Outrider on Debian 12 or Ubuntu 24.04 needs and is not there yet.
#
#   scripts/setup.sh           what building and running need
#   scripts/setup.sh --tests   and what the tests need: GoogleTest, clang, ...
#
# Looks first, and calls apt-get (through sudo when not root) only for what is missing.
set -euo pipefail

build_packages=(
  g++ cmake ninja-build ccache pkg-config patch
  gzip libboost1.81-dev nlohmann-json3-dev libcli11-dev libyaml-cpp-dev libspdlog-dev libfmt-dev
  libpcre2-dev libzmq3-dev pybind11-dev python3-dev python3-jinja2 python3-pip python3-venv prometheus-cpp-dev libssl-dev curl
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  # prometheus-cpp's CMake configuration looks for these:
  libcivetweb-dev zlib1g-dev libcurl4-openssl-dev
)
test_packages=(
  git libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev
  clang-19 clang-tidy-19 clang-format-19 libclang-rt-19-dev
  chromium chromium-driver  # for the web page
  fish zsh                  # for completion
)

wanted=("${build_packages[@]}")
case "${1:-}" in
  "") ;;
  --tests) wanted+=("${test_packages[@]}") ;;
  *)
    echo "setup: error: unknown argument '$1'; use --tests or nothing" >&2
    exit 2
    ;;
esac

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "setup: error: this script installs Debian 12 packages, and there is no apt-get here." >&2
  echo "setup: install by hand what these provide: ${wanted[*]}" >&2
  exit 1
fi

# Ubuntu 24.04, the base of the Dockerfile, has another version.
if grep -qs '^VERSION_ID="24.04"' /etc/os-release; then
  wanted=("${wanted[@]/libboost1.81-dev/libboost1.83-dev}")
fi

missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  if [ "$status" != installed ]; then missing+=("$package"); fi
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "setup: all ${#wanted[@]} packages are installed"
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: error: not root, and no sudo; run as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "setup: installing ${#missing[@]} packages: ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
echo "setup: done"
