"""What a file is that no parser recognised, and what to do with it."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from perfctl.records.sqlite_header import stated_bytes

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


def why_unknown(path: Path, known: str) -> tuple[str, str]:
    """(reason, remedy) for something that no parser recognised; ``known``: the formats that
    perfctl reads."""
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
            f"the SQLite database is cut off: only {path.stat().st_size:,} of {whole:,} bytes are "
            "there"
        )
        return reason, "Copy it again, or have the profiler export it again"
    # xz takes zeros for padding: tarfile would read all of them, for minutes
    begins_empty = not head.strip(b"\0")
    if (not begins_empty and is_tar(path)) or zipfile.is_zipfile(path):
        return (
            "it is an archive",
            "Pass it to perfctl ingest, which reads the reports in it, or unpack it",
        )
    if head.startswith(GZIP):
        return _why_zipped(path)
    for magic, (tool, command) in COMPRESSED.items():
        if head.startswith(magic):
            return (
                f"it is compressed with {tool}, which perfctl does not read",
                f"Unpack it with {command}, then pass it",
            )
    return _why_content(head, known)


def _why_zipped(path: Path) -> tuple[str, str]:
    try:
        with gzip.open(path) as file:
            file.read(512)
    except (EOFError, zlib.error, OSError) as error:
        reason = f"the gzip data is damaged or cut off in its first bytes ({error})"
        return reason, "Copy the file again"
    return (
        "it is a gzip file, but not a gzipped Kineto trace",
        "Unpack it with gunzip and pass the unpacked file",
    )


def _why_content(head: bytes, known: str) -> tuple[str, str]:
    if not head.strip(b"\0"):
        return "it begins with zeros: it was not written or copied to its end", "Copy it again"
    if head.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html")):
        return "it is a web page, not a report", (
            "Name the store that a page of perfctl was made from; download a file itself (on "
            "GitHub: Raw)"
        )
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        reason = f"it is UTF-16 text in a format that perfctl does not know (known: {known})"
        return reason, "Save it as UTF-8 (iconv -f UTF-16 -t UTF-8) and pass that file"
    return f"not a known report format (known: {known})", "Export it as one of these"


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
