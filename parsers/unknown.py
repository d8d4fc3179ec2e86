"""What a file is that no parser recognised, and what to do with it."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable
from pathlib import Path

from perfctl.records.sqlite_header import APPLICATION_ID, application_id, stated_bytes

GZIP = b"\x1f\x8b"
LFS = b"version https://git-lfs"
"""First bytes of a git-LFS pointer, the small file that stands in for a large one."""
COMPRESSED = {
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -d"),
    b"\xfd7zXZ\0": ("xz", "xz -d"),
    b"BZh": ("bzip2", "bzip2 -d"),
    b"\x04\x22\x4d\x18": ("lz4", "lz4 -d"),
}
"""First bytes -> (what wrote the file, the command that unpacks it)."""

_NAMED = (
    (
        re.compile(r"^ *Name +(?:Self CPU|Self CUDA|CPU total)", re.MULTILINE),
        "it is the table of PyTorch's key_averages(), without launches and step times",
        "Write the trace: prof.export_chrome_trace('trace.json')",
    ),
    (
        re.compile(r"^Metric Name +Metric Type +Metric Unit +Metric Description", re.MULTILINE),
        "it is the list of metrics that ncu --query-metrics prints, not a measurement",
        "Profile a program: perfctl ncu -- COMMAND",
    ),
    (
        re.compile(r'"pid": ?"(?:CPU|CUDA) functions"'),
        "it is a trace of PyTorch's old autograd profiler, which does not separate GPU and CPU "
        "time",
        "Record it with torch.profiler",
    ),
    (
        re.compile(r'"traceEvents"|^\s*\[\s*\{[^{}]*"ph": ?"'),
        "it is a Chrome trace of an unknown program",
        "Pass a trace of torch.profiler, or the report of another profiler",
    ),
)
"""What the beginning of a text has, what that is, and what to pass instead."""


def why_unknown(path: Path, is_report: Callable[[bytes], bool]) -> tuple[str, str]:
    """Return (reason, remedy) for something that no parser recognized; ``is_report``: whether a
    report begins with these bytes."""
    if path.is_dir():
        return (
            "no report was found in this folder",
            "Pass the report file itself, or the folder that holds it",
        )
    import zipfile

    with path.open("rb") as file:
        head = file.read(512)
    if head.startswith(LFS):
        return (
            "this is a git-LFS pointer, not the report itself",
            "Run 'git lfs pull' in the repository it came from",
        )
    if path.stat().st_size < (whole := stated_bytes(head)):
        reason = (
            f"the SQLite database is truncated: only {path.stat().st_size:,} of {whole:,} bytes "
            "exist"
        )
        return reason, "Copy it again, or have the profiler export it again"
    if application_id(head) == APPLICATION_ID:
        reason = "it is a perfctl database, not a profiler report"
        return reason, f"Open it with --store {path.name}"
    # xz takes zeros for padding: tarfile would read all of them, for minutes
    begins_empty = not head.strip(b"\0")
    if zipfile.is_zipfile(path) and (reason := _why_saved(path)):
        return reason, "Pass the report of a profiler"
    if (not begins_empty and is_tar(path)) or zipfile.is_zipfile(path):
        return (
            "it is an archive",
            "Pass it to perfctl ingest, which reads the reports in it, or unpack it",
        )
    if head.startswith(GZIP):
        return _why_zipped(path, is_report)
    for magic, (tool, command) in COMPRESSED.items():
        if head.startswith(magic):
            return (
                f"it is compressed with {tool}, which perfctl does not read",
                f"Unpack it with {command}, then pass it",
            )
    return _why_content(head)


def _why_saved(path: Path) -> str:
    """Return what a zip file is that torch.save wrote; "" for any other."""
    import zipfile

    with zipfile.ZipFile(path) as archive:
        is_saved = any(name.endswith("/data.pkl") for name in archive.namelist())
    return "it is a file of torch.save (weights or tensors), not a report" if is_saved else ""


def _why_zipped(path: Path, is_report: Callable[[bytes], bool]) -> tuple[str, str]:
    try:
        with gzip.open(path) as file:
            head = file.read(65536)
    except (EOFError, zlib.error, OSError) as error:
        reason = f"the gzip data is damaged or truncated in its first bytes ({error})"
        return reason, "Copy the file again"
    if is_report(head):
        return "it is a gzip-compressed report", "Unpack it with gunzip and pass the unpacked file"
    return _why_content(head)


def _why_content(head: bytes) -> tuple[str, str]:
    if not head.strip(b"\0"):
        return "it begins with zeros, so it was not written or copied completely", "Copy it again"
    if head.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html")):
        return "it is a web page, not a report", (
            "Use the results database of a perfctl page, or download the raw file (on GitHub: Raw)"
        )
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        reason = "it is UTF-16 text and not a profiler report"
        return reason, "Save it as UTF-8 (iconv -f UTF-16 -t UTF-8) and pass that file"
    text = head.decode("utf-8", "replace")
    for pattern, reason, remedy in _NAMED:
        if pattern.search(text):
            return reason, remedy
    return "it is not a profiler report", "'perfctl ingest --help' lists the formats"


def is_tar(path: Path) -> bool:
    """Whether it is a tar archive, compressed or not, also one that breaks off. Raises OSError
    where it cannot be read."""
    import lzma
    import tarfile
    import zlib

    try:
        return tarfile.is_tarfile(path)
    except (EOFError, zlib.error, lzma.LZMAError):  # its compression begins well
        return path.name.lower().endswith(
            (".tar", ".tgz", ".tar.gz", ".tar.xz", ".txz", ".tar.bz2", ".tbz", ".tbz2")
        )
