#!/bin/sh
# check_install.sh PYTHON PACKAGE: what a user gets. Installs a wheel or sdist of perfctl with its run-time dependencies alone, in an
# environment and a folder of their own, and uses it on the recording in tests/data.
set -eu
python=$1
package=$(realpath "$2")
recorded=$(realpath "$(dirname "$0")/../../tests/data/recorded-cpu")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$package"
cp -r "$recorded" "$work/recorded"
cd "$work"
perfctl="$work/venv/bin/perfctl"
"$perfctl" --version
"$perfctl" --help >help.txt
"$perfctl" doctor >doctor.txt
"$perfctl" ingest recorded
"$perfctl" runs >runs.txt
"$perfctl" ledger >ledger.txt
"$perfctl" compare recorded recorded >compare.txt
"$perfctl" export --all --out tables >export.txt
"$perfctl" report
test -s perfctl-report.html
for file in help doctor runs ledger compare export; do
    test -s "$file.txt" || { echo "check_install.sh: perfctl printed nothing for $file" >&2; exit 1; }
done
if "$work/venv/bin/python" -c 'import torch' 2>/dev/null; then
    echo "check_install.sh: torch came with the core install, which must do without it" >&2
    exit 1
fi
echo "check_install.sh: $(basename "$package") works on $("$python" --version)"
