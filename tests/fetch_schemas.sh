#!/usr/bin/env bash
# Brings what the files in deploy/ are checked against into .cache/ of the checkout: Grafana's types, those of the
# Prometheus operator, and TypeScript, which checks them. From npm, without running any script of theirs.
# Where that cannot be had it says why and ends with 0: the tests that need it then skip with a reason.
# usage: tests/fetch_schemas.sh [CACHE]
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${1:-$here/.cache}
limit=${LLMTOP_FETCH_SECONDS:-110}

skip() { echo "no schemas for the tests: $*" >&2; exit 0; }
. "$here/tests/fetch_tries.sh"

mkdir -p "$cache" || skip "$cache cannot be made"
runs() { node "$1/node_modules/typescript/bin/tsc" --version > /dev/null 2>&1; }
runs "$cache/schemas" && exit 0
for tool in npm node; do command -v $tool > /dev/null || skip "$tool is not on this machine"; done
work=$(mktemp -d "$cache/fetch.XXXXXX") || skip "$cache cannot be written"
trap 'rm -rf "$work"' EXIT
try npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$work" \
  @grafana/schema@13.2.3 @kubernetes-models/prometheus-operator@6.0.0 typescript@5 > /dev/null 2>&1 ||
  skip "the packages could not be installed within $limit s"
runs "$work" || skip "TypeScript does not run here"
chmod 755 "$work"  # mktemp closes it to others, and tests may be run by another user
rm -rf "$cache/schemas" && mv "$work" "$cache/schemas"
echo "$cache/schemas: $(node "$cache/schemas/node_modules/typescript/bin/tsc" --version)"
