"""What a file is that no parser recognized, and what to do with it."""

from __future__ import annotations

import gzip
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from itertools import chain
from pathlib import Path

from perfctl.records.sqlite_header import (
    APPLICATION_ID,
    read_application_id,
    read_file_size_from_header,
)

GZIP = b"\x1f\x8b"
LFS = b"version https://git-lfs"
"""First bytes of a git-LFS pointer, the small file that stands in for a large one."""
_HEAD_BYTES = 65536
_ARCHIVES = (".tar", ".tgz", ".tar.gz", ".tar.xz", ".txz", ".tar.bz2", ".tbz", ".tbz2")
_COMPRESSED = {
    rb"\x28\xb5\x2f\xfd": ("zstd", "zstd -d"),
    rb"\xfd7zXZ\0": ("xz", "xz -d"),
    rb"BZh": ("bzip2", "bzip2 -d"),
    rb"\x04\x22\x4d\x18": ("lz4", "lz4 -d"),
}
"""First bytes -> (what wrote the file, the command that unpacks it)."""
_XPLANE = (
    "it is an XPlane file of JAX or TensorFlow, which perfctl does not read",
    "Pass the trace.json.gz next to it, or write that with Python's xprof: "
    "xprof.convert.raw_to_tool_data.xspace_to_tool_data([FILE], 'trace_viewer', {})",
)
_NAMES: dict[str, tuple[str, str]] = {
    r"\.xplane\.(?:pb|riegeli)\Z": _XPLANE,
    r"\.(?:pftrace|perfetto-trace)\Z": (
        "it is a Perfetto trace, as rocprofv3 writes it, which perfctl does not read",
        "Record with rocprofv3 --output-format rocpd, and pass the results.db",
    ),
    r"\.nsys-analysis\Z": (
        "it is the result of nsys recipe: sums over several reports, not a report",
        "Pass the reports themselves",
    ),
}
"""Ends of names -> as NOT_READ."""
NOT_READ: dict[bytes, tuple[str, str]] = {
    rb"\A" + LFS: (
        "this is a git-LFS pointer, not the report itself",
        "Run 'git lfs pull' in the repository it came from",
    ),
    **{
        rb"\A" + magic: (
            f"it is compressed with {tool}, which perfctl does not read",
            f"Unpack it with {command}, then pass it",
        )
        for magic, (tool, command) in _COMPRESSED.items()
    },
    rb"\A\0*\Z": (
        "it begins with zeros, so it was not written or copied completely",
        "Copy it again",
    ),
    rb"\A\s*<(?i:!doctype html|html)": (
        "it is a web page, not a report",
        "Use the results database of a perfctl page, or download the raw file (on GitHub: Raw)",
    ),
    # the first plane of the message: its number, then its name
    rb"\A\n[\s\S]{0,24}\x12.(?:/host:|/device:|Task Env)": _XPLANE,
    rb"\A(?:PAR1|ARROW1)": (
        "it is one table in the Parquet or Arrow format, not a report",
        "Pass the folder that nsys export wrote, or for the output of nsys recipe its reports",
    ),
    rb"\A\s*(?:Text|Name),Count,Mean,Std,": (
        "it is a table of nsys recipe: sums over several reports, not a report",
        "Pass the reports themselves",
    ),
    rb"\A(?:\xff\xfe|\xfe\xff)": (
        "it is UTF-16 text and not a profiler report",
        "Save it as UTF-8 (iconv -f UTF-16 -t UTF-8) and pass that file",
    ),
    rb"(?m)^.* Name +(?:Self CPU|Self CUDA|CPU total)": (
        "it is the table of PyTorch's key_averages(), without launches and step times",
        "Write the trace: prof.export_chrome_trace('trace.json')",
    ),
    rb"Metric Name +(?:Metric Type +Metric Unit +)?Metric Description": (
        "it is the list of metrics that ncu --query-metrics prints, not a measurement",
        "Profile a program: perfctl ncu -- COMMAND",
    ),
    rb'"pid": ?"(?:CPU|CUDA) functions"': (
        "it is a trace of PyTorch's old autograd profiler, which does not separate GPU and CPU "
        "time",
        "Record it with torch.profiler",
    ),
    rb'"traceEvents"|^\s*\[\s*\{[^{}]*"ph": ?"': (
        "it is a Chrome trace of an unknown program",
        "Pass a trace of torch.profiler, or the report of another profiler",
    ),
    rb"": ("it is not a profiler report", "'perfctl ingest --help' lists the formats"),
}
"""What the first bytes of a file have, in the order in which it is tried -> (what the file is, what
to do with it)."""


def explain_unknown_file(path: Path, find_parser: Callable[[bytes], object]) -> tuple[str, str]:
    """Return (reason, remedy) for something that no parser recognized; ``find_parser``: the parser
    of a report that begins with these bytes, or None."""
    if path.is_dir():
        return (
            "no report was found in this folder",
            "Pass the report file itself, or the folder that holds it",
        )
    with path.open("rb") as file:
        head = file.read(512)
    size, complete_size = path.stat().st_size, read_file_size_from_header(head)
    if size < complete_size:
        reason = f"the SQLite database is truncated: only {size:,} of {complete_size:,} bytes exist"
        return reason, "Copy it again, or have the profiler export it again"
    if read_application_id(head) == APPLICATION_ID:
        reason = "it is a perfctl database, not a profiler report"
        return reason, f"Open it with --store {path.name}"
    is_zip = zipfile.is_zipfile(path)
    if is_zip:
        with zipfile.ZipFile(path) as archive:
            if any(name.endswith("/data.pkl") for name in archive.namelist()):
                reason = "it is a file of torch.save (weights or tensors), not a report"
                return reason, "Pass the report of a profiler"
    # xz takes zeros for padding: tarfile would read all of them, for minutes
    if is_zip or (head.strip(b"\0") and _is_tar_archive(path)):
        remedy = "Pass it to perfctl ingest, which reads the reports in it, or unpack it"
        return "it is an archive", remedy
    if head.startswith(GZIP):
        try:
            with gzip.open(path) as file:
                head = file.read(_HEAD_BYTES)
        except (EOFError, zlib.error, OSError) as error:
            reason = f"the gzip data is damaged or truncated in its first bytes ({error})"
            return reason, "Copy the file again"
        if head.startswith(GZIP) or find_parser(head) is not None:
            remedy = "Unpack it with gunzip and pass the unpacked file"
            return "it is a gzip-compressed report", remedy
    named_answers = (answer for pattern, answer in _NAMES.items() if re.search(pattern, path.name))
    answers = (answer for pattern, answer in NOT_READ.items() if re.search(pattern, head))
    return next(chain(named_answers, answers))


def _is_tar_archive(path: Path) -> bool:
    """Return whether it is a tar archive, compressed or not, also one that breaks off. Raises
    OSError where it cannot be read."""
    try:
        return tarfile.is_tarfile(path)
    except (EOFError, zlib.error, lzma.LZMAError):  # its compression begins well
        return path.name.lower().endswith(_ARCHIVES)
