"""The table of classes in ImageNet's development kit: a MATLAB file, read by scipy (extra
``imagenet``).

scipy's reader is native code that ends the whole interpreter on some damaged files (segmentation
fault, seen with 1.17.1), so it runs in a process of its own with limits on memory and time:
``python -m perfctl.workloads.data.matfile NAME`` takes the file on standard input and prints the
structs of the array NAME as JSON.
"""

from __future__ import annotations

import io
import json
import resource
import subprocess
import sys
import zlib
from importlib.util import find_spec
from typing import cast

READER = "perfctl.workloads.data.matfile"
READER_SECONDS = 60

_MEMORY_LIMIT = 4 << 30
"""Bytes of address space of the reading process, of which numpy and scipy take most."""
_UNREADABLE = 3
"""Exit code of the reading process after it has said what is wrong with the file."""

Value = str | float | None


class MatError(ValueError):
    """The file is not a MATLAB file, is damaged, or cannot be read on this machine. One line."""


def read_matlab_structs(content: bytes, variable: str) -> list[dict[str, Value]]:
    """Return the structs of the array ``variable``, field by field: text, a number, or None for
    anything else.

    Raises MatError.
    """
    if find_spec("scipy") is None:
        install = "pip install 'perfctl[imagenet]', or set a table of classes with `synsets`"
        raise MatError(f"reading meta.mat needs scipy, which is not installed: {install}")
    command = [sys.executable, "-P", "-m", READER, variable]
    try:
        done = subprocess.run(
            command, input=content, capture_output=True, timeout=READER_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise MatError(f"it is damaged: reading it took more than {READER_SECONDS} s") from error
    if done.returncode == _UNREADABLE:
        raise MatError(done.stdout.decode("utf-8", "replace"))
    if done.returncode:
        raise MatError(f"it is damaged: scipy's reader failed with exit code {done.returncode}")
    return cast(list[dict[str, Value]], json.loads(done.stdout))


def main(arguments: list[str]) -> int:
    """Print the structs of the array named, or what is wrong with the file on standard input."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT, _MEMORY_LIMIT))
    (variable,) = arguments
    damaged = (
        MatReadError,
        ValueError,
        TypeError,
        OSError,
        LookupError,
        ArithmeticError,
        NotImplementedError,
    )
    try:
        file = io.BytesIO(sys.stdin.buffer.read())
        array = loadmat(file, variable_names=[variable], simplify_cells=True).get(variable)
    except MemoryError:
        print("it claims more memory than a table of classes takes", end="")
        return _UNREADABLE
    except (*damaged, zlib.error) as error:
        print(
            f"it is not a MATLAB file, or is truncated or damaged ({' '.join(str(error).split())})",
            end="",
        )
        return _UNREADABLE
    rows = array if isinstance(array, list) else [array]
    if not rows or not all(isinstance(row, dict) for row in rows):
        print(f"it has no array of structs called {variable}", end="")
        return _UNREADABLE
    print(
        json.dumps(
            [{str(name): _convert_mat_value(value) for name, value in row.items()} for row in rows]
        )
    )
    return 0


def _convert_mat_value(value: object) -> Value:
    """Return a text or a number; None for arrays, nested structs and empty cells."""
    if isinstance(value, str):
        return value or None
    return float(value) if isinstance(value, (int, float)) else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
