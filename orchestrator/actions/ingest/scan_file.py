"""The SHA-256 of a report, by which it is recognised when it comes again."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path


class FileScan:
    """The SHA-256 of one report, worked out when it is first asked for."""

    def __init__(self, path: Path) -> None:
        path.stat()  # raises FileNotFoundError
        self._path = path

    @cached_property
    def _sha256(self) -> str:
        return sha256(self._path)

    def digest(self) -> str:
        """``sha256`` of it. Raises OSError where it cannot be read."""
        return self._sha256


def sha256(path: Path) -> str:
    """Return it in hexadecimal; of a folder, over its files' names and contents in order."""
    if not path.is_dir():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    digest = hashlib.sha256()
    for child in sorted(path.rglob("*")):
        if child.is_file():
            digest.update(str(child.relative_to(path)).encode() + b"\0" + child.read_bytes())
    return digest.hexdigest()
