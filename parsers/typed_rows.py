"""Builds records from untrusted JSON rows, checking the type of every field."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar, cast, get_type_hints

_LARGEST = 2**63
R = TypeVar("R")


def typed(kind: type[R], row: Mapping[str, Any]) -> R:
    """One record of ``kind``, a NamedTuple or dataclass. Raises TypeError, or OverflowError beyond 64 bits."""
    made = kind(**row)
    for name, wanted in _fields(cast(Any, kind)).items():
        value = getattr(made, name)
        if not isinstance(value, wanted):
            raise TypeError(f"{kind.__name__}.{name} is {str(value)[:60]!r}")
        if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
            raise OverflowError(f"{kind.__name__}.{name} does not fit 64 bits")
    return made


@lru_cache(maxsize=16)
def _fields(kind: type[Any]) -> dict[str, Any]:
    """A whole number stands for a float as well."""
    hints = get_type_hints(kind)
    return {name: hint | int if _takes(hint, float) else hint for name, hint in hints.items()}


def _takes(hint: Any, kind: type[Any]) -> bool:
    return kind in (hint, *getattr(hint, "__args__", ()))
