#!/bin/sh
# check_layers.sh LINT_IMPORTS: import-linter follows neither links nor setuptools' mapping, so it is shown a copy of the
# sources laid out as they are imported. It looks in the working folder first, so it runs in that copy.
set -eu
linter=$(realpath -s "$1")
cd "$(dirname "$0")/.."
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cp -r perfctl pyproject.toml "$tree/"
cp -r orchestrator parsers templates workloads "$tree/perfctl/"
cd "$tree"
"$linter" --no-cache
