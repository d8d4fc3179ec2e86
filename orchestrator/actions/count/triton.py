"""Triton's cache: a folder a compiled kernel, with its machine code (NAME.cubin), metadata (NAME.json) and NAME.ttir.

Read as Triton 2.1 to 3.8 write it: TRITON_CACHE_DIR, or ~/.triton/cache; Inductor's kernels lie there too.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LARGEST = 16 << 20
_DEPTH = 3
_SIGNATURE = re.compile(
    r"tt\.func (?:public )?@\S+?\((?P<arguments>.*?)\)\s*(?:attributes|->|\{\s*$)", re.DOTALL | re.MULTILINE
)
_ARGUMENT = re.compile(r"%(?P<name>[\w$.-]+)\s*:\s*(?P<rest>(?:[^%\"]|\"[^\"]*\")*)")
_SOURCE_NAME = re.compile(r'loc\("(?P<name>\w+)"')


@dataclass(frozen=True, slots=True)
class Entry:
    """One compiled kernel."""

    cubin: Path
    name: str
    warps: int | None
    """Of a block; None where the metadata do not say."""
    shared: int | None
    """Bytes of dynamic shared memory of a block."""


def cache_folder() -> Path:
    """Where Triton keeps what it compiles."""
    asked = os.environ.get("TRITON_CACHE_DIR")
    return Path(asked) if asked else Path(os.environ.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"


def entries(folder: Path) -> Iterator[Entry]:
    """The kernels of a folder of the cache, or of the whole cache. What has no metadata is left out."""
    for cubin in _cubins(folder, _DEPTH):
        facts = _metadata(cubin.with_suffix(".json"))
        if facts is not None:
            name, warps, shared = (facts.get(key) for key in ("name", "num_warps", "shared"))
            yield Entry(
                cubin, name if isinstance(name, str) else cubin.stem,
                warps if isinstance(warps, int) else None, shared if isinstance(shared, int) else None,
            )  # fmt: skip


def _cubins(folder: Path, depth: int) -> Iterator[Path]:
    try:
        inside = sorted(folder.iterdir())
    except OSError:
        return
    for one in inside:
        if one.suffix == ".cubin" and one.is_file():
            yield one
        elif depth > 1 and one.is_dir() and not one.is_symlink():
            yield from _cubins(one, depth - 1)


def _metadata(path: Path) -> dict[str, Any] | None:
    try:
        if path.stat().st_size > _LARGEST:
            return None
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def shared_bytes(cubin: Path) -> int | None:
    """Dynamic shared memory by the metadata beside a .cubin; None where there are none."""
    shared = (_metadata(cubin.with_suffix(".json")) or {}).get("shared")
    return shared if isinstance(shared, int) else None


def argument_names(cubin: Path) -> tuple[str, ...]:
    """Names of the arguments that a compiled kernel takes, in order; empty where they are not known."""
    path = cubin.with_suffix(".ttir")
    try:
        if path.stat().st_size > _LARGEST:
            return ()
        found = _SIGNATURE.search(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ()
    if found is None:
        return ()
    names = []
    for argument in _ARGUMENT.finditer(found["arguments"]):
        source = _SOURCE_NAME.search(argument["rest"])
        names.append(source["name"] if source else argument["name"])
    return tuple(names)
