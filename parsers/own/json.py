"""JSON files of perfctl's own: the version of their form, and the types of their rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

from perfctl.parsers.common.json import read_json_file
from perfctl.records.errors import ReportError

_LARGEST = 2**63
R = TypeVar("R")


def read_versioned_json(
    path: Path, tool: str, key: str, version: int, remedies: tuple[str, str]
) -> dict[str, Any]:
    """Return the content of a file of perfctl's own, whose ``key`` holds the version of its form.
    Raises ReportError for a file that is cut off, of another program, or from a newer perfctl.
    ``remedies``: for the first and the second."""
    content = read_json_file(path, tool, remedies[0])
    if not isinstance(content, dict) or not isinstance(content.get(key), int):
        raise ReportError(path, tool, f"no field {key}", remedies[1])
    if content[key] > version:
        reason = f"version {content[key]}, but this perfctl reads {version}"
        raise ReportError(path, tool, reason, "Install a newer perfctl")
    return content


def make_checked_record(kind: type[R], row: Mapping[str, Any]) -> R:
    """Return a record of ``kind``, a NamedTuple or dataclass. Raises TypeError, or OverflowError
    beyond 64 bits."""
    record = kind(**row)
    for name, field_type in get_field_types(cast(Any, kind)).items():
        value = getattr(record, name)
        if not isinstance(value, field_type):
            raise TypeError(f"{kind.__name__}.{name} is {str(value)[:60]!r}")
        if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
            raise OverflowError(f"{kind.__name__}.{name} does not fit 64 bits")
    return record


@lru_cache(maxsize=16)
def get_field_types(kind: type[Any]) -> dict[str, Any]:
    """Return the type of each field of a record; a whole number may stand for a float."""
    hints = get_type_hints(kind).items()
    return {
        name: hint | int if float in (hint, *getattr(hint, "__args__", ())) else hint
        for name, hint in hints
    }
