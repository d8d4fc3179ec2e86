"""Reads small JSON files at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from perfctl.parsers.errors import ReportError
from perfctl.parsers.text_lines import encoding_of

LIMIT = 64 << 20
"""Largest file in bytes; its objects take some ten times as much memory."""


def read_whole(path: Path, tool: str, remedy: str) -> Any:
    """Return the content of the file. Raises ReportError with ``remedy`` when it is too long, cut off, or not JSON."""
    try:
        size = path.stat().st_size
        if size > LIMIT:
            raise ReportError(path, tool, f"{size:,} bytes of JSON are too many", remedy)
        data = path.read_bytes()
        return json.loads(data.decode(encoding_of(data), "replace").lstrip("\ufeff"), parse_constant=str)
    except OSError as error:
        raise ReportError(path, tool, f"it cannot be read ({error.strerror})", remedy) from error
    except (ValueError, RecursionError) as error:
        reason = f"it is not complete JSON ({str(error)[:200] or 'nested too deep'})"
        raise ReportError(path, tool, reason, remedy) from error
