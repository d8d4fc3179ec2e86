"""Parser of nsys's own report files (.nsys-rep, .qdrep, .qdstrm): the installed nsys exports them
to SQLite in a private folder, which is removed with the last record. Folders of Parquet or Arrow
files are loaded into such a file, too. nsys refuses reports that are newer than itself; then the
version that wrote the file is named."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, STDOUT
from typing import Any

from perfctl.parsers.nsys import parquet, sqlite
from perfctl.records.bulk import ColumnRecords, SqlKernels
from perfctl.records.errors import ReportError, convert_os_errors
from perfctl.records.report import Report

TOOL = "nsys"
REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"
STREAM_MAGIC = b"NVIDIA Nsight Systems Stream"
TIMEOUT_S = 1800.0
"""A report of 1 GB takes nsys some minutes."""

_SUFFIXES = (".nsys-rep", ".qdrep", ".qdstrm")
_LFS = b"version https://git-lfs"
_WRITTEN_BY = re.compile(rb"(20[12]\d\.\d{1,2}\.\d{1,2}(?:\.\d{1,5})?)-[0-9a-z]{6,}")
_REFUSED = re.compile(r"Version number is invalid: (\d{4})@(\d+)@(\d+)")
_INSTALLED = re.compile(r"version (\d{4}\.\d+\.\d+)")
_END_BYTES = 2**16
_READ_LATER = ("kernels", "copies", "samples", "op_calls")
"""Fields of a report whose records are read from the export while they are iterated."""


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is an nsys report or stream, or a folder of tables: by its first bytes,
    else by its suffix, to report a damaged one as such."""
    if path.is_dir():
        return parquet.is_parquet_or_arrow_export(path)
    if head.startswith(REPORT_MAGIC) or STREAM_MAGIC in head[:64]:
        return True
    return (
        bool(head)
        and path.suffix.lower() in _SUFFIXES
        and not head.startswith((_LFS, b"SQLite format 3"))
    )


def parse(path: Path) -> Report:
    """Export it and read the export. Raises ReportError when there is no nsys (for a folder: no
    pyarrow), when it refuses the file (saying which version wrote it), when it takes longer than
    TIMEOUT_S, and when the export cannot be read."""
    is_folder, nsys = path.is_dir(), shutil.which("nsys")
    if nsys is None and not is_folder:
        version = _find_report_nsys_version(path)
        written = f"it was written by nsys {version}" if version else "it is an nsys report"
        reason = f"{written}, and this machine has no nsys to read it"
        raise ReportError(path, TOOL, reason, _suggest_export_elsewhere(version))
    folder = Path(tempfile.mkdtemp(prefix="perfctl-nsys-"))
    try:
        if is_folder:
            parquet.load_into_sqlite(path, database := folder / "report.sqlite")
        else:
            database = _export_to_sqlite(str(nsys), path.resolve(), folder, path)
        with _reraise_with_report_path(path):
            report = sqlite.parse(database)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    keeper = _FolderKeeper(folder)
    kind = "folder" if is_folder else "stream" if _is_qdstrm_stream(path) else "report"
    records: dict[str, Any] = {
        name: _keep_temp_folder_while_read(getattr(report, name), keeper, path)
        for name in _READ_LATER
    }
    return replace(report, path=path, form=f"nsys {kind}, exported: {report.form}", **records)


class _FolderKeeper:
    """Removes the folder when the last reference to it is gone."""

    def __init__(self, folder: Path) -> None:
        weakref.finalize(self, shutil.rmtree, folder, True)


def _keep_temp_folder_while_read(
    records: Iterable[Any], keeper: _FolderKeeper, path: Path
) -> Iterable[Any]:
    """Return the records; they keep the export there."""
    if isinstance(records, SqlKernels):
        return replace(records, records=_keep_temp_folder_while_read(records.records, keeper, path))  # type: ignore[arg-type]
    if isinstance(records, ColumnRecords):
        return replace(
            records, chunks=partial(_iterate_keeping_temp_folder, records.chunks, keeper, path)
        )
    return _iterate_keeping_temp_folder(lambda: records, keeper, path) if records else records


def _iterate_keeping_temp_folder(
    read: Callable[[], Iterable[Any]], keeper: _FolderKeeper, path: Path
) -> Iterator[Any]:
    with _reraise_with_report_path(path):
        yield from read()


@contextlib.contextmanager
def _reraise_with_report_path(path: Path) -> Iterator[None]:
    """Re-raise errors about the temporary export as errors about the report."""
    try:
        yield
    except ReportError as error:
        raise ReportError(path, TOOL, error.reason, error.remedy) from error


def _export_to_sqlite(nsys: str, source: Path, folder: Path, path_in_errors: Path) -> Path:
    """Return the SQLite export of ``source`` in ``folder``. The tools get links with simple names,
    never the file's own name."""
    stream, report, database = (
        folder / name for name in ("stream.qdstrm", "report.nsys-rep", "report.sqlite")
    )
    remedy = "Check its permissions and the free space in TMPDIR"
    with convert_os_errors(path_in_errors, TOOL, remedy, "it cannot be exported"):
        is_stream = _is_qdstrm_stream(source)
        (stream if is_stream else report).symlink_to(source)
        if is_stream:
            files = ["--input-file", str(stream), "--output-file", str(report)]
            _run_export_tool(
                [_find_qdstrm_importer(nsys, path_in_errors), *files],
                folder,
                report,
                path_in_errors,
            )
        export = [nsys, "export", "--type", "sqlite", "--output", str(database), str(report)]
        _run_export_tool(export, folder, database, path_in_errors)
    return database


def _run_export_tool(
    command: list[str], folder: Path, output_file: Path, path_in_errors: Path
) -> None:
    """Run a tool in its own process group, and end what it leaves running. Raises ReportError
    unless it writes ``output_file``."""
    environment = {**os.environ, "TMPDIR": str(folder), "LC_ALL": "C"}
    output = folder / "output.txt"
    with output.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=DEVNULL,
            stdout=log,
            stderr=STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        code: int | None = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(TIMEOUT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code is None:
        reason = f"nsys did not finish the export within {TIMEOUT_S:.0f} seconds"
        raise ReportError(
            path_in_errors, TOOL, reason, "Run the export manually: nsys export --type sqlite FILE"
        )
    if (
        code != 0 or not output_file.is_file()
    ):  # a failed export may leave a database of 2 tables behind
        raise ReportError(
            path_in_errors,
            TOOL,
            *_explain_failed_export(
                command[0], code, output.read_bytes()[-_END_BYTES:], path_in_errors
            ),
        )


def _explain_failed_export(tool: str, code: int, output: bytes, path: Path) -> tuple[str, str]:
    text = output.decode("utf-8", "replace").replace("\r", "\n")
    refused = _REFUSED.search(text)
    if refused or "ProtobufParseException" in text:
        written = ".".join(refused.groups()) if refused else _find_report_nsys_version(path)
        by = f"nsys {written}" if written else "a newer nsys"
        installed = f"the installed nsys{_format_installed_version(tool)} cannot read newer reports"
        return f"it was written by {by}, and {installed}", _suggest_export_elsewhere(written)
    lines = [line.strip() for line in text.splitlines() if line.strip() and "%" not in line]
    reason = f": {lines[-1][:300]}" if lines else f" (exit code {code})"
    remedy = "It may be truncated or damaged. Copy it again from the machine that recorded it"
    return f"nsys could not export it{reason}", remedy


def _format_installed_version(tool: str) -> str:
    """ " (2022.4.2)", or "" when it does not say."""
    try:
        done = subprocess.run(
            [tool, "--version"], capture_output=True, timeout=20, check=False, stdin=DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = _INSTALLED.search(done.stdout.decode("utf-8", "replace"))
    return f" ({match[1]})" if match else ""


def _find_qdstrm_importer(nsys: str, path: Path) -> str:
    """QdstrmImporter, from the PATH or from the installation that ``nsys`` belongs to."""
    folders = (*Path(nsys).parents[:4], *Path(nsys).resolve().parents[:4])
    candidates = (
        path
        for folder in folders
        for path in sorted(folder.glob("host-linux-*/QdstrmImporter"))
        if path.is_file()
    )
    importer = shutil.which("QdstrmImporter") or next(map(str, candidates), None)
    if not importer:
        reason = (
            "it is a stream that nsys never converted to a report, and the installed nsys has no "
            "QdstrmImporter"
        )
        remedy = (
            "Run 'QdstrmImporter -i FILE' on a machine with all of Nsight Systems and pass the "
            ".nsys-rep it writes"
        )
        raise ReportError(path, TOOL, reason, remedy)
    return importer


def _is_qdstrm_stream(path: Path) -> bool:
    with path.open("rb") as file:
        return STREAM_MAGIC in file.read(64) or path.suffix.lower() == ".qdstrm"


def _find_report_nsys_version(path: Path) -> str | None:
    """Return the version of the nsys that wrote the file: at the start of a stream, near the end of
    a report; None when absent. A report's beginning holds the process environment, whose versions
    are those of other things: it is not looked at."""
    versions: list[bytes] = []
    with contextlib.suppress(OSError), path.open("rb") as file:
        head = file.read(128)
        if STREAM_MAGIC not in head:
            file.seek(max(0, path.stat().st_size - _END_BYTES))
            head = file.read(_END_BYTES)
        versions = _WRITTEN_BY.findall(head)
    return versions[-1].decode() if versions else None


def _suggest_export_elsewhere(version: str | None) -> str:
    needed = f"nsys {version} or newer" if version else "an nsys at least as new as the report"
    return (
        f"Run 'nsys export --type sqlite FILE' where {needed} is installed and pass the .sqlite "
        "file it writes"
    )
