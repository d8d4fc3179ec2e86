"""Traces of models by their name, kept as JSON in the user's cache folder, so that a second call needs no torch.

One file an entry (``entries``), named by a digest of all that it depends on: the request, perfctl's own code, the installed
packages, the environment of the libraries, and the content of the user's files. Nothing is kept where ``PERFCTL_NO_CACHE``
is set.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from perfctl.orchestrator.actions.files import user_folder
from perfctl.orchestrator.actions.traces import entries, user_code
from perfctl.orchestrator.actions.traces.entries import OFF, digest
from perfctl.orchestrator.actions.traces.key import surroundings
from perfctl.records import codec

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

    def _read(self, name: str, kind: Any) -> Any:
        return entries.read(self._folder, digest(self._base, name), kind)

    def _write(self, name: str, kind: Any, value: Any) -> None:
        entries.write(self._folder, digest(self._base, name), kind, value)


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
