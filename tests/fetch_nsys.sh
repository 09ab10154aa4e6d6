#!/usr/bin/env bash
# Brings a real nsys (2023.4.4, from Debian's non-free section) and the nvtx that it records into .cache/ of the
# checkout, without installing anything and without touching the machine's apt configuration.
# Where that cannot be had it says why and ends with 0: the tests that need it then skip with a reason.
# usage: tests/fetch_nsys.sh [CACHE]
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${1:-$here/.cache}
python=${PYTHON:-python3}
limit=${LLMTOP_FETCH_SECONDS:-110}

skip() { echo "no nsys for the tests: $*" >&2; exit 0; }
. "$here/tests/fetch_tries.sh"

mkdir -p "$cache" || skip "$cache cannot be made"
work=$(mktemp -d "$cache/fetch.XXXXXX") || skip "$cache cannot be written"
trap 'rm -rf "$work"' EXIT

fetch_nvtx() {
  local home=$cache/nvtx-0.2.10
  [ -d "$home/nvtx" ] && return 0
  try "$python" -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: \
    --target "$work/nvtx" nvtx==0.2.10 || return 1
  rm -rf "$home" && mv "$work/nvtx" "$home"
}

unpack_nsys() {
  local root=$work/nsys/root tree=$work/nsys/nsight libraries=usr/lib/x86_64-linux-gnu deb link
  mkdir -p "$root" "$tree" "$work/nsys/bin"
  for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$root" || return 1; done
  # The command line looks for its importer in a sibling folder; the package has the two under different roots.
  mv "$root/usr/lib/nsight-systems/host-linux-x64" "$root/$libraries/nsight-systems/target-linux-x64" "$tree/" ||
    return 1
  for link in libssh.so libssh.so.4; do
    ln -sf "../../root/$libraries/libssh.so.4" "$tree/host-linux-x64/$link"
  done
  cp "$tree"/target-linux-x64/python/lib/*.py "$tree/host-linux-x64/python/lib/"  # where its reports look
  {
    echo '#!/bin/sh'
    echo 'home=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)'
    echo 'LD_LIBRARY_PATH="$home/root/'"$libraries"'${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"'
    echo 'export LD_LIBRARY_PATH'
    echo 'exec "$home/nsight/target-linux-x64/nsys" "$@"'
  } > "$work/nsys/bin/nsys"
  chmod +x "$work/nsys/bin/nsys"
}

fetch_nsys() {
  # Debian 13 has the version wanted, and it runs on older ones as well.
  local mirror suite=trixie section keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  [ "$(uname -m)" = x86_64 ] || skip "it is unpacked for x86_64 only, this is $(uname -m)"
  for tool in apt-get dpkg-deb; do command -v $tool > /dev/null || skip "$tool is not on this machine"; done
  [ -r "$keyring" ] || skip "no Debian archive keyring here"
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' 2> /dev/null |
    grep -v security | head -1)
  [ -n "$mirror" ] || skip "apt has no Debian archive in its sources"
  mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/debs"
  for section in main non-free; do
    echo "deb [signed-by=$keyring] $mirror $suite $section"
  done > "$work/sources.list"
  local apt=(apt-get -qq -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=-
    -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work" -o "APT::Sandbox::User=$(id -un)")
  try "${apt[@]}" update || skip "the archive did not answer within $limit s"
  # libssh from this machine's own release: the newer one wants a newer C library.
  (cd "$work/debs" && try "${apt[@]}" download nsight-systems nsight-systems-target &&
    try apt-get -qq download libssh-4) ||
    skip "the packages could not be downloaded from $mirror ($suite) within $limit s"
  unpack_nsys || skip "the packages could not be unpacked (a full disk? about 900 MB are needed in $cache)"
  "$work/nsys/bin/nsys" --version > /dev/null || skip "what was unpacked does not run here"
  rm -rf "$cache/nsys" && mv "$work/nsys" "$cache/nsys"
}

[ -x "$cache/nsys/bin/nsys" ] && "$cache/nsys/bin/nsys" --version > /dev/null 2>&1 || fetch_nsys
fetch_nvtx || skip "nvtx 0.2.10 could not be installed into $cache (it has no wheel for Python 3.13 and later)"
echo "$cache/nsys/bin/nsys: $("$cache/nsys/bin/nsys" --version)"
