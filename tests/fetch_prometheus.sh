#!/usr/bin/env bash
# Brings a real Prometheus with promtool, and a VictoriaMetrics, from Debian into .cache/ of the checkout, without
# installing anything.
# Where that cannot be had it says why and ends with 0: the tests that need it then skip with a reason.
# usage: tests/fetch_prometheus.sh [CACHE]
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${1:-$here/.cache}
limit=${LLMTOP_FETCH_SECONDS:-110}

skip() { echo "no Prometheus for the tests: $*" >&2; exit 0; }
. "$here/tests/fetch_tries.sh"

mkdir -p "$cache" || skip "$cache cannot be made"
runs() { "$1/prometheus" --version > /dev/null 2>&1 && "$1/promtool" --version > /dev/null 2>&1; }
runs "$cache/prometheus" && exit 0
work=$(mktemp -d "$cache/fetch.XXXXXX") || skip "$cache cannot be written"
trap 'rm -rf "$work"' EXIT

for tool in apt-get dpkg-deb; do command -v $tool > /dev/null || skip "$tool is not on this machine"; done
mkdir -p "$work/debs" "$work/root" "$work/prometheus"
download() { (cd "$work/debs" && try apt-get -qq -o "APT::Sandbox::User=$(id -un)" download "$@"); }
known() { apt-cache show "$1" > /dev/null 2>&1; }
known prometheus || try apt-get -qq update
known prometheus || skip "apt knows no prometheus"
download prometheus || skip "the package could not be downloaded within $limit s"
download victoria-metrics || echo "no VictoriaMetrics for the tests" >&2
for deb in "$work"/debs/*.deb; do
  dpkg-deb -x "$deb" "$work/root" || skip "the packages could not be unpacked (a full disk? 200 MB are needed)"
done
for program in prometheus promtool victoria-metrics; do
  [ -x "$work/root/usr/bin/$program" ] && mv "$work/root/usr/bin/$program" "$work/prometheus/"
done
runs "$work/prometheus" || skip "what was unpacked does not run here"
rm -rf "$cache/prometheus" && mv "$work/prometheus" "$cache/prometheus"
echo "$cache/prometheus: $("$cache/prometheus/prometheus" --version 2>&1 | head -1)"
