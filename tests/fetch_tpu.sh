#!/usr/bin/env bash
# Brings tpu-info with gRPC (some 12 MB) into a folder of its own in .cache/ of the checkout, for the tests of TPUs.
# Where that cannot be had it says why and ends with 0: the tests that need it then skip with a reason.
# usage: tests/fetch_tpu.sh [CACHE]
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${1:-$here/.cache}
limit=${LLMTOP_FETCH_SECONDS:-110}
python=${PYTHON:-python3}

skip() { echo "no tpu-info for the tests: $*" >&2; exit 0; }
. "$here/tests/fetch_tries.sh"

runs() { PYTHONPATH="$cache/tpu" "$python" -c 'import tpu_info.metrics' 2> /dev/null; }
[ -d "$cache/tpu" ] && current "$cache/tpu" && runs && exit 0

mkdir -p "$cache" || skip "$cache cannot be made"
rm -rf "$cache/tpu"
pip_install "$python" --target "$cache/tpu" tpu-info || {
  rm -rf "$cache/tpu"
  skip "it could not be downloaded within $limit s"
}
runs || { rm -rf "$cache/tpu"; skip "what was installed does not run here"; }
mark_current "$cache/tpu"
