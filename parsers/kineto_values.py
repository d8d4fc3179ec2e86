"""Reads single values of a Kineto trace: numbers that may be texts, times in microseconds, triples."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

_INT64 = 1 << 63


def nanoseconds(value: object) -> int | None:
    """Microseconds as the trace has them (integer, or the text of a number with a fraction) -> ns; None if unusable."""
    if type(value) is int:
        found = value * 1000
    elif type(value) is str:
        whole, _, fraction = value.partition(".")
        try:
            found = int(whole + fraction) if len(fraction) == 3 else round(Decimal(value) * 1000)
        except (ValueError, InvalidOperation, OverflowError):
            return None
    else:
        return None
    return found if -_INT64 <= found < _INT64 else None


def whole(value: object) -> int | None:
    """An integer, or the text of one, that fits into 64 bits; None for anything else."""
    if type(value) is str:
        try:
            value = int(value)
        except ValueError:
            return None
    return value if type(value) is int and -_INT64 <= value < _INT64 else None


def external_id(args: dict[str, Any]) -> int:
    """External id of an event, which was spelled with a small letter until 2021; -1 when not given."""
    value = args.get("External id")
    if type(value) is not int:
        value = whole(value if value is not None else args.get("external id"))
    return value if value is not None and value >= 0 else -1


def three(value: object) -> tuple[int | None, int | None, int | None]:
    """A grid or a block: x, y, z."""
    if type(value) is list and len(value) == 3:
        return whole(value[0]), whole(value[1]), whole(value[2])
    return None, None, None
