#!/bin/sh
# check_layers.sh LINT_IMPORTS: import-linter follows neither links nor setuptools' package-dir, so it runs in a copy of the
# sources with the folders of the import names. It searches the working folder first, so the script changes to that copy.
set -eu
linter=$(realpath -s "$1")
cd "$(dirname "$0")/../.."
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cp -r perfctl pyproject.toml "$tree/"
cp -r orchestrator parsers templates workloads "$tree/perfctl/"
cd "$tree"
"$linter" --no-cache
