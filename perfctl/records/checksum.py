"""The checksum that perfctl writes into its own records, and compares when it reads them: who
changed one knows."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

FIELD = "crc32"
"""Name of the checksum in a record; it is not part of what it is made from."""


def of_json(record: Mapping[str, Any]) -> str:
    """CRC-32 of an object's members in the order of their names, 8 hexadecimal digits; layout does
    not matter."""
    rest = {key: value for key, value in record.items() if key != FIELD}
    return of_text(json.dumps(rest, sort_keys=True, separators=(",", ":")))


def of_text(text: str, before: str = "0") -> str:
    """CRC-32 of a text, after the texts with the checksum ``before``."""
    return f"{zlib.crc32(text.encode('utf-8', 'surrogatepass'), int(before, 16)):08x}"
