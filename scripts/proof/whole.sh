#!/bin/sh
# Run at full size the proofs of which `make test` runs a sample: every real report, every random
# draw. Usage: scripts/proof/whole.sh PYTHON [pytest options]
set -eu
python=$1
shift
cd "$(dirname "$0")/../.."
files=$(grep -l 'from tests.sample import' -r tests --include='test_*.py')
# shellcheck disable=SC2086  # names of our own files, without blanks
PERFCTL_PROOFS=whole exec "$python" -m pytest --numprocesses "${WORKERS:-2}" --dist loadgroup "$@" $files
