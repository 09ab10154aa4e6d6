#!/usr/bin/env bash
# Brings a real SLURM (slurmctld, slurmd, munged and their commands), a real sshd and a real bpftrace from Debian into
# .cache/ of the checkout, without installing anything. Where one cannot be had it says why and ends with 0: the tests that need it
# then skip with a reason.
# usage: tests/fetch_hosts.sh [CACHE]
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${1:-$here/.cache}
limit=${LLMTOP_FETCH_SECONDS:-110}

none() { echo "no $1 for the tests: ${*:2}" >&2; }
. "$here/tests/fetch_tries.sh"

mkdir -p "$cache" || { none hosts "$cache cannot be made"; exit 0; }
work=$(mktemp -d "$cache/fetch.XXXXXX") || { none hosts "$cache cannot be written"; exit 0; }
trap 'rm -rf "$work"' EXIT
for tool in apt-get dpkg-deb; do
  command -v $tool > /dev/null || { none hosts "$tool is not on this machine"; exit 0; }
done
known() { apt-cache show "$1" > /dev/null 2>&1; }

# fetch NAME PROGRAM PACKAGE...: the packages unpacked into $cache/NAME, unless PROGRAM is there.
fetch() {
  local name=$1 program=$2
  shift 2
  [ -x "$cache/$name/$program" ] && return 0
  mkdir -p "$work/$name/debs" "$work/$name/root"
  known "$1" || try apt-get -qq update
  known "$1" || { none "$name" "apt knows no $1"; return 0; }
  (cd "$work/$name/debs" && try apt-get -qq -o "APT::Sandbox::User=$(id -un)" download "$@") ||
    { none "$name" "the packages could not be downloaded within $limit s"; return 0; }
  for deb in "$work/$name"/debs/*.deb; do
    dpkg-deb -x "$deb" "$work/$name/root" || { none "$name" "a package could not be unpacked"; return 0; }
  done
  [ -x "$work/$name/root/$program" ] || { none "$name" "the packages hold no $program"; return 0; }
  rm -rf "${cache:?}/$name" && mv "$work/$name/root" "$cache/$name"
  echo "$cache/$name/$program"
}

# Of these packages and all that they need, those that are not installed here.
needs() { apt-get -s --no-install-recommends install "$@" 2> /dev/null | awk '$1 == "Inst" { print $2 }'; }

known openssh-server || try apt-get -qq update
slurm=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libmunge2)
fetch sshd usr/sbin/sshd openssh-server openssh-client libwrap0
# shellcheck disable=SC2046  # names of packages
fetch slurm usr/sbin/slurmctld-wlm $(printf '%s\n' "${slurm[@]}" $(needs "${slurm[@]}") | awk '!seen[$0]++')
# shellcheck disable=SC2046  # names of packages
fetch bpftrace usr/bin/bpftrace bpftrace $(needs bpftrace | grep -vx bpftrace)
