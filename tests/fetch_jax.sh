#!/usr/bin/env bash
# Brings the real JAX (for the CPU, some 90 MB) into a Python environment of its own in .cache/ of the checkout, with
# what llmtop's training side needs beside it, and xprof (32 MB), which reads XLA's own files, into a folder of its own:
# setting up the tests takes no longer for it.
# Where that cannot be had it says why and ends with 0: the tests that need it then skip with a reason.
# usage: tests/fetch_jax.sh [CACHE]
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${1:-$here/.cache}
limit=${LLMTOP_FETCH_SECONDS:-110}
python=${PYTHON:-python3}

skip() { echo "no JAX for the tests: $*" >&2; exit 0; }
. "$here/tests/fetch_tries.sh"

xprof() {
  [ -d "$cache/xprof/xprof" ] && current "$cache/xprof" && return
  rm -rf "$cache/xprof"
  pip_install "$python" --no-deps --target "$cache/xprof" \
    xprof etils fsspec importlib_resources zipp typing_extensions six protobuf absl-py || {
    rm -rf "$cache/xprof"
    echo "no xprof for the tests: it could not be downloaded within $limit s" >&2
    return
  }
  mark_current "$cache/xprof"
}

runs() { "$1" -c 'import jax, msgspec, nvtx' 2> /dev/null; }
[ -x "$cache/jax/bin/python" ] && current "$cache/jax" && runs "$cache/jax/bin/python" && { xprof; exit 0; }

mkdir -p "$cache" || skip "$cache cannot be made"
rm -rf "$cache/jax"
"$python" -m venv "$cache/jax" || skip "no virtual environment could be made"
pip_install "$cache/jax/bin/python" jax msgspec nvtx || {
  rm -rf "$cache/jax"
  skip "it could not be downloaded within $limit s"
}
runs "$cache/jax/bin/python" || { rm -rf "$cache/jax"; skip "what was installed does not run here"; }
mark_current "$cache/jax"
xprof
exit 0
