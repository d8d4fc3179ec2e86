"""Entries of a cache: JSON, packed, one file each, named by a digest of all that it depends on.

An entry is written whole or not at all. One that cannot be read, or that somebody else wrote, is as good as none. Safe to
use from several processes at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from perfctl.records import codec

OFF = "PERFCTL_NO_CACHE"
"""Environment variable: anything but nothing, and nothing is kept or taken."""
MOST_BYTES = 256 << 20
"""Of all entries of a folder together; the ones that were not used for longest go first."""
LARGEST = 64 << 20
"""Bytes of one entry, and 16 times as many of its JSON."""
_ABANDONED = 3600
"""Seconds after which a temporary file is nobody's any more."""


def digest(*parts: Any) -> str:
    """SHA-256 of values that JSON can hold."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()


def read(folder: Path, key: str, kind: Any) -> Any:
    """The value of type ``kind`` that was written under ``key``; None when there is none."""
    path = folder / f"{key}.json.gz"
    try:
        data = json.loads(_unpacked(path))
        if data["key"] != key:
            return None
        found = codec.decode(data["value"], kind)
        os.utime(path)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, zlib.error):
        return None
    return found


def write(folder: Path, key: str, kind: Any, value: Any) -> None:
    """Keep ``value``, of type ``kind``. What cannot be carried, or written, is not kept."""
    path = folder / f"{key}.json.gz"
    try:
        text = json.dumps({"key": key, "value": codec.encode(value, kind)}, separators=(",", ":"))
    except (codec.CodecError, RecursionError):
        return
    packing = zlib.compressobj(1, wbits=31)
    packed = packing.compress(text.encode()) + packing.flush()
    if len(packed) > LARGEST or len(text) > 16 * LARGEST:
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(8).hex()}.tmp")
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            partial.write_bytes(packed)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        _make_room(folder)


def _unpacked(path: Path) -> bytes:
    """The JSON of an entry. Raises OSError or ValueError for a file that is not one of this user's, or too large."""
    with path.open("rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_size > LARGEST:
            raise ValueError(f"{path} is not an entry")
        packed = file.read(LARGEST + 1)
    unpacking = zlib.decompressobj(wbits=31)
    data = unpacking.decompress(packed, 16 * LARGEST)
    if not unpacking.eof:
        raise ValueError(f"{path} is cut off or too large")
    return data


def _make_room(folder: Path) -> None:
    """Remove what was not used for longest until the rest is small enough, and what a killed process left."""
    entries, now = [], time.time()
    with os.scandir(folder) as found:
        for one in found:
            with suppress(OSError):  # removed by another process
                facts = one.stat(follow_symlinks=False)
                if one.name.endswith(".tmp") and now - facts.st_mtime > _ABANDONED:
                    Path(one.path).unlink(missing_ok=True)
                elif one.name.endswith(".json.gz"):
                    entries.append((facts.st_mtime, facts.st_size, one.path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= MOST_BYTES:
            return
        Path(path).unlink(missing_ok=True)
        total -= size
