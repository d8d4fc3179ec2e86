"""JSON files that are read as a whole, and the first bytes of those that may be gzipped."""

from __future__ import annotations

import json
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from perfctl.parsers.common.lines import guess_encoding
from perfctl.records.errors import ReportError, convert_os_errors

GZIP_MAGIC = b"\x1f\x8b"
LIMIT = 64 << 20
"""Largest file in bytes; its objects take some ten times as much memory."""


@lru_cache(maxsize=2)
def decode_head(head: bytes) -> str:
    """Decode the first bytes of a file, unpacked if gzipped; "" if that is not possible. One
    parser after another asks for them."""
    if head.startswith(GZIP_MAGIC):
        try:
            head = zlib.decompressobj(31).decompress(head, 1 << 18)
        except zlib.error:
            return ""
    return head.decode(guess_encoding(head), "replace").removeprefix("\ufeff")


def list_json_objects(value: object) -> list[dict[str, Any]]:
    """Return the objects among the elements of a list; none of what is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def read_json_file(path: Path, tool: str, remedy: str) -> Any:
    """Return the content of the file. Raises ReportError with ``remedy`` when it is too long, cut
    off, or not JSON."""
    with convert_os_errors(path, tool, remedy):
        size = path.stat().st_size
        if size > LIMIT:
            raise ReportError(path, tool, f"{size:,} bytes of JSON exceed the limit", remedy)
        data = path.read_bytes()
    try:
        if data.startswith(GZIP_MAGIC):
            data = zlib.decompressobj(31).decompress(data, LIMIT)
        return json.loads(
            data.decode(guess_encoding(data), "replace").lstrip("\ufeff"), parse_constant=str
        )
    except (ValueError, RecursionError, zlib.error) as error:
        reason = f"the JSON is incomplete ({str(error)[:200] or 'nested too deep'})"
        raise ReportError(path, tool, reason, remedy) from error
