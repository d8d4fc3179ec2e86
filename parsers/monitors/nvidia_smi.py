"""Parser of nvidia-smi's output, in every form that ends up in files.

``--query-gpu`` CSV (with and without header and units, header repeated by loops, several GPUs in turn), the table that
it prints without options, and the rolling lists ``dmon`` and ``pmon``. Timestamps are the local time of the machine
without a zone: they are taken as written, as if they were UTC, and a diagnostic says so (:mod:`timestamps`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from perfctl.parsers.monitors import nvidia_smi_dmon, nvidia_smi_query, nvidia_smi_table
from perfctl.parsers.text.tool_text import HEAD_BYTES, head_lines
from perfctl.records.errors import ReportError, readable
from perfctl.records.report import Report

_FORMS: tuple[tuple[Callable[[list[str]], bool], Callable[[Path], Report]], ...] = (
    (nvidia_smi_dmon.recognise, nvidia_smi_dmon.parse),
    (nvidia_smi_table.recognise, nvidia_smi_table.parse),
    (nvidia_smi_query.recognise, nvidia_smi_query.parse),
)


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the first lines have one of nvidia-smi's headers, or rows of its CSV."""
    found = head_lines(head)
    return any(recognise(found) for recognise, _ in _FORMS)


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it has no complete reading."""
    with readable(path, "nvidia-smi"):
        with path.open("rb") as file:
            found = head_lines(file.read(HEAD_BYTES))
        read = next((read for recognise, read in _FORMS if recognise(found)), None)
        if read is None:
            reason = "it holds no output of nvidia-smi"
            raise ReportError(path, "nvidia-smi", reason, "Pass the file that nvidia-smi wrote")
        return read(path)
