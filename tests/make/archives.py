"""Tar and zip archives of texts."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

MODES = {".tar": "w", ".bz2": "w:bz2", ".xz": "w:xz"}


def pack(path: Path, members: Mapping[str, str | bytes]) -> Path:
    """Write an archive of the kind that its name says, name -> content."""
    contents = {
        name: content.encode() if isinstance(content, str) else content
        for name, content in members.items()
    }
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, content in contents.items():
                packed.writestr(name, content)
        return path
    mode = MODES.get(path.suffix, "w:gz")
    with tarfile.open(path, mode, format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path
