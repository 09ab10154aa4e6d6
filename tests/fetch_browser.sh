#!/usr/bin/env bash
# Brings a real browser without a window (Debian's chromium-headless-shell, with the libraries that this machine
# lacks) into .cache/ of the checkout, without installing anything.
# Where that cannot be had it says why and ends with 0: the tests that need it then skip with a reason.
# usage: tests/fetch_browser.sh [CACHE]
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${1:-$here/.cache}
limit=${LLMTOP_FETCH_SECONDS:-110}

skip() { echo "no browser for the tests: $*" >&2; exit 0; }
. "$here/tests/fetch_tries.sh"

mkdir -p "$cache" || skip "$cache cannot be made"
runs() { echo '<p>' > "$work/page.html" && timeout 60 "$1" --dump-dom "file://$work/page.html" > "$work/seen" 2>&1; }
work=$(mktemp -d "$cache/fetch.XXXXXX") || skip "$cache cannot be written"
trap 'rm -rf "$work"' EXIT

[ -x "$cache/browser/bin/browser" ] && runs "$cache/browser/bin/browser" && exit 0

for tool in apt-get dpkg-deb; do command -v $tool > /dev/null || skip "$tool is not on this machine"; done
mkdir -p "$work/debs" "$work/browser/root" "$work/browser/bin"
# What would be installed, without installing it: the browser, and what it needs and is not here.
wanted() { apt-get -s install --no-install-recommends chromium-headless-shell 2> /dev/null | awk '/^Inst / { print $2 }'; }
packages=$(wanted)
[ -n "$packages" ] || { try apt-get -qq update && packages=$(wanted); }
[ -n "$packages" ] || skip "apt knows no chromium-headless-shell"
# shellcheck disable=SC2086 # a list of names
(cd "$work/debs" && try apt-get -qq -o "APT::Sandbox::User=$(id -un)" download $packages) ||
  skip "the packages could not be downloaded within $limit s"
for deb in "$work"/debs/*.deb; do
  dpkg-deb -x "$deb" "$work/browser/root" || skip "the packages could not be unpacked (a full disk? 300 MB are needed)"
done
{
  echo '#!/bin/sh'
  echo 'root=$(cd "$(dirname "$(readlink -f "$0")")/../root" && pwd)'
  echo 'LD_LIBRARY_PATH="$root/usr/lib/x86_64-linux-gnu:$root/usr/lib/x86_64-linux-gnu/pulseaudio${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"'
  echo 'export LD_LIBRARY_PATH'
  echo 'exec "$root/usr/lib/chromium/chromium-headless-shell" --no-sandbox --disable-gpu --disable-dev-shm-usage "$@"'
} > "$work/browser/bin/browser"
chmod +x "$work/browser/bin/browser"
runs "$work/browser/bin/browser" || skip "what was unpacked does not run here: $(tail -1 "$work/seen")"
rm -rf "$cache/browser" && mv "$work/browser" "$cache/browser"
echo "$cache/browser/bin/browser: $("$cache/browser/bin/browser" --version)"
