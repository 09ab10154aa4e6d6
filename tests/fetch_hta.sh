#!/usr/bin/env bash
# Brings the real HTA (HolisticTraceAnalysis, which reads traces of PyTorch) into a Python environment of its own in
# .cache/ of the checkout: it wants pandas and more, of which llmtop needs nothing.
# Where that cannot be had it says why and ends with 0: the tests that need it then skip with a reason.
# usage: tests/fetch_hta.sh [CACHE]
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${1:-$here/.cache}
limit=${LLMTOP_FETCH_SECONDS:-110}
python=${PYTHON:-python3}

skip() { echo "no HTA for the tests: $*" >&2; exit 0; }
. "$here/tests/fetch_tries.sh"

runs() { "$1" -c 'from hta.trace_analysis import TraceAnalysis' 2> /dev/null; }
[ -x "$cache/hta/bin/python" ] && current "$cache/hta" && runs "$cache/hta/bin/python" && exit 0

mkdir -p "$cache" || skip "$cache cannot be made"
rm -rf "$cache/hta"
"$python" -m venv "$cache/hta" || skip "no virtual environment could be made"
pip_install "$cache/hta/bin/python" HolisticTraceAnalysis || {
  rm -rf "$cache/hta"
  skip "it could not be downloaded within $limit s"
}
runs "$cache/hta/bin/python" || { rm -rf "$cache/hta"; skip "what was installed does not run here"; }
mark_current "$cache/hta"
