#!/bin/sh
# make_venv.sh PYTHON FOLDER: makes a virtual environment unless it exists. Debian has venv in a separate package.
# The script installs that package if it may; otherwise it names it.
set -eu
python=$1
folder=$2

[ -x "$folder/bin/python" ] && "$folder/bin/python" -m pip --version >/dev/null 2>&1 && exit 0

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "make: perfctl needs Python 3.11 or later; '$python' is not. Say: make PYTHON=/path/to/python3.11 ..." >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        apt-get update -q
        DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends python3-venv
    else
        echo "make: $python has no venv module. On Debian: sudo apt-get install python3-venv" >&2
        exit 1
    fi
fi
rm -rf "$folder"
"$python" -m venv "$folder"
