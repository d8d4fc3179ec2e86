"""JSON that is read at once, as reports are that are always small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from perfctl.parsers.errors import ReportError
from perfctl.parsers.text_lines import encoding_of

LIMIT = 64 << 20
"""Bytes of a file; as objects some ten times as much."""


def read_whole(path: Path, tool: str, remedy: str) -> Any:
    """What stands in the file. Raises ReportError with ``remedy`` where it is too long, cut off, or no JSON."""
    try:
        size = path.stat().st_size
        if size > LIMIT:
            raise ReportError(path, tool, f"{size:,} bytes of JSON are too many to be read at once", remedy)
        data = path.read_bytes()
        return json.loads(data.decode(encoding_of(data), "replace").lstrip("\ufeff"), parse_constant=str)
    except OSError as error:
        raise ReportError(path, tool, f"it cannot be read ({error.strerror})", remedy) from error
    except (ValueError, RecursionError) as error:
        reason = f"it is no whole JSON ({str(error)[:200] or 'nested too deep'})"
        raise ReportError(path, tool, reason, remedy) from error
