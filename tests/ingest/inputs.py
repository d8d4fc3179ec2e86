"""Reports that are not what they should be, made small: what the wall around one file is
tried with."""

from __future__ import annotations

from pathlib import Path

from tests.cli.test_ingest import NCU


def good(path: Path, count: int) -> Path:
    """An ncu report of one launch."""
    path.write_text(NCU.format(count=count))
    return path


def long_string(path: Path, size: int) -> Path:
    """A Kineto trace with one string of ``size`` bytes, whose lone backslashes have to
    be repaired."""
    event = (
        '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2, '
        '"args": {"x": "'
    )
    path.write_text('{"schemaVersion": 1, "traceEvents": [' + event + "\\q" * (size // 2) + '"}}]}')
    return path
