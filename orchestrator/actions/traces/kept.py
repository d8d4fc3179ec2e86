"""Traces of models by their name, kept as JSON in the user's cache folder, so that a second call needs no torch.

One file an entry, named by a digest of all that it depends on: the request, perfctl's own code, the installed packages, the
environment of the libraries, and the content of the user's files. An entry is written whole or not at all. One that cannot
be read, or that somebody else wrote, is as good as none. Nothing is kept where ``PERFCTL_NO_CACHE`` is set.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from perfctl.orchestrator.actions.files import temporary_name, user_folder
from perfctl.orchestrator.actions.traces import user_code
from perfctl.orchestrator.actions.traces.key import digest, surroundings
from perfctl.records import codec

OFF = "PERFCTL_NO_CACHE"
"""Environment variable: anything but nothing, and no trace is kept or taken."""
MOST_BYTES = 256 << 20
"""Of all entries together; the ones that were not used for longest go first."""
LARGEST = 64 << 20
"""Bytes of one entry, and 16 times as many of its JSON."""
_ABANDONED = 3600
"""Seconds after which a temporary file is nobody's any more."""
T = TypeVar("T")
_Listed = tuple[tuple[str, str], ...]
"""Files, each with a digest of its content."""


class Kept:
    """What is kept of one request. Safe to use from several processes at once."""

    def __init__(self, folder: Path, base: str, module: str | None) -> None:
        """``module``: of the user's factory, as it is named once it is imported; None for a model of a library."""
        self._folder, self._base, self._module = folder, base, module
        self._files: str | None = None
        """A digest of the files that the model is made from; None while they are not known."""
        listed = self._read("files", _Listed)
        if listed is not None and all(_content(path) == found for path, found in listed):
            self._files = digest(listed)

    def get(self, kind: type[T], *what: Any) -> T | None:
        """What was kept under ``what`` (numbers and words); None when nothing was, or the files changed since."""
        return self._read(f"{self._files} {what}", kind) if self._files is not None else None

    def put(self, kind: Any, value: Any, *what: Any) -> None:
        """Keep ``value``, of type ``kind``. What cannot be carried, or written, is not kept."""
        if self._files is not None:
            self._write(f"{self._files} {what}", kind, value)

    def made_from(self, files: Sequence[Path] | None) -> None:
        """The model was built just now, from these files beside the libraries'; None: they do not say everything."""
        files = user_code.files_of(self._module) if self._module is not None else files
        listed = tuple((str(path), _content(path)) for path in files) if files is not None else None
        if listed is None or not all(found for _, found in listed):
            self._files = None
            return
        self._files = digest(listed)
        self._write("files", _Listed, listed)

    def _path(self, name: str) -> tuple[Path, str]:
        key = digest(self._base, name)
        return self._folder / f"{key}.json.gz", key

    def _read(self, name: str, kind: Any) -> Any:
        path, key = self._path(name)
        try:
            data = json.loads(_unpacked(path))
            if data["key"] != key:
                return None
            found = codec.decode(data["value"], kind)
            os.utime(path)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, zlib.error):
            return None
        return found

    def _write(self, name: str, kind: Any, value: Any) -> None:
        path, key = self._path(name)
        try:
            text = json.dumps({"key": key, "value": codec.encode(value, kind)}, separators=(",", ":"))
        except (codec.CodecError, RecursionError):
            return
        packing = zlib.compressobj(1, wbits=31)
        packed = packing.compress(text.encode()) + packing.flush()
        if len(packed) > LARGEST or len(text) > 16 * LARGEST:
            return
        partial = temporary_name(path)
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                partial.write_bytes(packed)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
            _make_room(self._folder)


def kept_for(
    request: Any, *, files: Sequence[Path] = (), module: str | None = None, beside: Path | None = None
) -> Kept | None:
    """What is kept of ``request``, a record: all its fields count. None where nothing may be.

    files: those that the request itself names; module, beside: of a user's factory, and the folder it imports from.
    """
    if os.environ.get(OFF):
        return None
    with suppress(OSError, RuntimeError, codec.CodecError):  # no home folder, a field that JSON cannot carry
        about, others = surroundings(), user_code.names_beside(beside) if beside is not None else []
        if about is None or others is None:
            return None
        named = [(str(path.absolute()), _content(path)) for path in files]
        said = digest(codec.encode(request, type(request)), about, named, str(beside and beside.absolute()), others)
        return Kept(user_folder("XDG_CACHE_HOME", "~/.cache") / "traces", said, module)
    return None


def _content(path: str | Path) -> str:
    """A digest of a file's content; "" when it cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


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
