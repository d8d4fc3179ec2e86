"""Read report files into records: ``sniff(path)`` recognises a file, ``parse(path)`` reads it.

A new format is one module with ``sniff`` and ``parse``, one line in PARSERS, and one test file.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfctl.parsers.common.parts import RunInFile, parse_each_run_of_file
from perfctl.parsers.unknown import LFS, explain_unknown_file
from perfctl.records.errors import ReportError, convert_os_errors
from perfctl.records.sqlite_header import HEADER_BYTES, read_file_size_from_header

if TYPE_CHECKING:
    from perfctl.records.report import Report

__all__ = [
    "PARSERS",
    "Parser",
    "ReportError",
    "RunInFile",
    "find_graph_capture_traces",
    "find_leading_file",
    "find_report_paths",
    "parse",
    "pause_garbage_collection",
    "reports",
    "select_leading_report_files",
    "sniff",
]

HEAD_BYTES = 65536
"""How much of a file's beginning a parser may look at to recognise it."""


@dataclass(frozen=True, slots=True)
class Parser:
    """One format. Its module is loaded when it is first needed, so that listing commands
    stays fast."""

    name: str
    module: str
    """In perfctl.parsers; it has ``sniff(path, head) -> bool`` and ``parse(path) -> Report``."""
    options: tuple[str, ...] = ()
    """Keywords of ``perfctl.parsers.parse`` that the module's ``parse`` takes."""
    joins_files: bool = False
    """Whether several files may be one report of this format: the module has
    ``find_leading_file(path)``."""
    files: str = ""
    """Which files it reads, and of which versions, in a few words."""
    gives: str = ""
    """Which records they hold, in a few words."""
    checks: str = ""
    """What it notices of an incomplete or unusual report, in a few words."""

    def sniff(self, path: Path, head: bytes) -> bool:
        """Return whether this parser reads the file. ``head`` is its first HEAD_BYTES, empty for a
        folder. Never raises."""
        return bool(self.load_module().sniff(path, head))

    def parse(self, path: Path, **options: Any) -> Report:
        """Read the file with the ``options`` of ``perfctl.parsers.parse`` that its format has.
        Raises ReportError when the file is broken."""
        if options.get("capture") is not None and "capture" not in self.options:
            reason = (
                f"--capture needs a Kineto trace, but this report is of another kind ({self.name})"
            )
            raise ReportError(path, "unknown", reason, "Name a Kineto trace, or omit --capture")
        own_options = {name: value for name, value in options.items() if name in self.options}
        with pause_garbage_collection():
            report: Report = self.load_module().parse(path, **own_options)
        return report

    def load_module(self) -> Any:
        """Return the module."""
        return import_module(f"perfctl.parsers.{self.module}")


PARSERS: tuple[Parser, ...] = (
    Parser(
        "perfctl workload record",
        "own.workload_record",
        files="`workload.json` of a run folder",
        gives="steps, memory, shapes of layers",
        checks="a newer version of the form",
    ),
    Parser(
        "nsys SQLite",
        "nsys.sqlite",
        files="`nsys export --type sqlite`, 2020.3 to 2026.1",
        gives="kernels, copies, ranges, API calls",
        checks="truncated or unclosed databases; launch calls without GPU work; unknown tables",
    ),
    Parser(
        "nsys report",
        "nsys.rep",
        files=(
            "`.nsys-rep`, `.qdrep`, `.qdstrm` (needs nsys); parquetdir, arrowdir "
            "(needs `perfctl[export]`)"
        ),
        gives="as nsys SQLite",
        checks="reports newer than the installed nsys",
    ),
    Parser(
        "ncu report",
        "ncu.rep",
        ("source",),
        files="`.ncu-rep` (needs `perfctl[ncu]`)",
        gives="counters, advice, source lines",
        checks="fewer results than the file states",
    ),
    Parser(
        "rocprofv3 database",
        "rocm.rocpd",
        files="`results.db` (rocpd) of ROCm 7",
        gives="kernels, counters, copies, API calls",
        checks="missing dispatch IDs; launches with fewer counters",
    ),
    Parser(
        "rocprofv3 JSON",
        "rocm.json",
        files="`results.json`",
        gives="kernels, counters, copies, API calls",
        checks="missing dispatch IDs; unknown fields",
    ),
    Parser(
        "rocprofv3 CSV",
        "rocm.csv",
        joins_files=True,
        files=(
            "kernel_trace, counter_collection, memory_copy_trace, API traces, agent_info, `*_stats`"
        ),
        gives="kernels, counters, copies, API calls",
        checks="missing dispatch IDs; launches with fewer counters",
    ),
    Parser(
        "rocprof v1 and rocprof-compute",
        "rocm.refused",
        joins_files=True,
        files="refused by name; perfctl 1.0.0 reads them",
        gives="nothing",
        checks="nothing",
    ),
    Parser(
        "Proton profile",
        "proton",
        files="`.hatchet` of Triton",
        gives="time, FLOPs and bytes by kernel name",
        checks="kernels without stated FLOPs; no start times",
    ),
    Parser(
        "PyTorch memory snapshot",
        "memory_snapshot",
        files="`torch.cuda.memory._dump_snapshot`, pickle or JSON",
        gives="allocated memory over time",
        checks="pickles with more than plain data; events without a size",
    ),
    Parser(
        "Kineto trace",
        "kineto.trace",
        ("single_operators", "capture"),
        files="Chrome trace of torch.profiler since 2021, `trace.json.gz` of JAX",
        gives="operators, shapes, kernels, copies, collectives, memory",
        checks="launch calls without kernels; kernels without calls; missing grids or streams",
    ),
    Parser(
        "DLProf CSV",
        "dlprof.csv",
        files="CSV reports of PyTorch and TensorFlow 1",
        gives="operations, kernels, utilization",
        checks="ops without numbers; launches outside of iterations",
    ),
    Parser(
        "DLProf database",
        "dlprof.database",
        files="`dlprof_dldb.sqlite` of DLProf 1.8",
        gives="operations, kernels, copies, memory",
        checks="truncated databases; several aggregations",
    ),
    Parser(
        "DLProf JSON",
        "dlprof.json",
        files="`dlprof --formats=json`; no real file was available",
        gives="operations, kernels",
        checks="every run notes that the layout is unverified",
    ),
    Parser(
        "nvprof text",
        "nvprof",
        files="text or CSV: GPU trace, summary, API calls, metrics",
        gives="kernels, copies, API calls, metrics",
        checks="unreadable table lines; tables of further processes; KB of unknown size",
    ),
    Parser(
        "nsys stats",
        "nsys.stats",
        files="`nsys stats`, `nsys analyze`: CSV, TSV, JSON, text",
        gives="kernels, copies, ranges, API calls",
        checks="the same output twice; reports that nsys skipped",
    ),
    Parser(
        "ncu console text",
        "ncu.text",
        files="details and raw pages, with or without NVTX",
        gives="counters, advice",
        checks="truncated tables; rounded numbers",
    ),
    Parser(
        "ncu CSV",
        "ncu.csv",
        files="`--csv` of details and raw pages, long and wide",
        gives="counters, advice",
        checks="missing launch IDs and metrics; NUL bytes; truncated rows",
    ),
    Parser(
        "perfctl samples",
        "own.samples",
        files="`samples.csv` of a run folder",
        gives="utilization, memory and power over time",
        checks="fewer rows than stated; a run that was killed",
    ),
    Parser(
        "DCGM",
        "monitors.dcgm",
        files="`dcgmi dmon` text, long CSV",
        gives="utilization, memory and power over time",
        checks="missing samples; lines that are no samples",
    ),
    Parser(
        "nvidia-smi",
        "monitors.nvidia_smi",
        files="`--query-gpu` CSV, `-q`, dmon, pmon, table",
        gives="utilization, memory, power and clocks",
        checks="missing samples; values without a unit",
    ),
)
"""In the order in which they are tried: the more specific format first."""


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Turn Python's cycle collector off: reports are millions of small objects without cycles,
    which it would scan again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def sniff(path: Path | str) -> Parser | None:
    """Return the parser that recognizes ``path`` (a file, or a DLProf folder) by its content; None
    for an unknown format."""
    path = Path(path)
    if is_pipe_socket_or_device(path):
        return None
    if not path.is_file():
        return _find_parser_by_head(path, b"")
    now = path.stat()
    return _find_parser_of_file(path, (now.st_ino, now.st_size, now.st_mtime_ns))


@lru_cache(maxsize=1 << 17)
def _find_parser_of_file(path: Path, file_identity: tuple[int, int, int]) -> Parser | None:
    """Return the parser of a file. A folder's files are asked for again and again;
    ``file_identity`` tells a file from another that takes its place."""
    with path.open("rb") as file:
        return _find_parser_by_head(path, file.read(HEAD_BYTES))


def _find_parser_by_head(path: Path, head: bytes) -> Parser | None:
    return next((parser for parser in PARSERS if parser.sniff(path, head)), None)


def is_pipe_socket_or_device(path: Path) -> bool:
    """Return whether it is a named pipe, a socket or a device: to read one can wait for ever, or
    not end."""
    return path.exists() and not path.is_file() and not path.is_dir()


def raise_if_pipe_socket_or_device(path: Path) -> None:
    """Raises ReportError for what ``is_pipe_socket_or_device``."""
    if is_pipe_socket_or_device(path):
        raise ReportError(
            path,
            "unknown",
            "this is a named pipe, socket or device, not a file",
            "Write it to a file first",
        )


def parse(
    path: Path | str,
    *,
    source: bool = False,
    single_operators: bool = True,
    capture: Path | None = None,
) -> Report:
    """Return a profiler report as records.

    - ``source``: also read the counters of each instruction, if the file has them.
    - ``single_operators``: also read each call of an operator (``op_calls``).
    - ``capture``: the Kineto trace with the capture of the graphs that this trace launches. None:
      the trace that ``execution_details.json`` next to it names.

    Raises ReportError for a file that does not exist, has an unknown format, or is broken.
    """
    path = Path(path)
    if not path.exists():
        raise ReportError(path, "unknown", "file not found", "Check the path")
    raise_if_pipe_socket_or_device(path)
    if path.is_file() and path.stat().st_size == 0:
        remedy = "The profiler wrote nothing. Check its log and run it again"
        raise ReportError(path, "unknown", "the file is empty", remedy)
    with convert_os_errors(path, "unknown"):
        parser = sniff(path)
        if parser is None:
            raise ReportError(
                path, "unknown", *explain_unknown_file(path, partial(_find_parser_by_head, path))
            )
        return parser.parse(path, source=source, single_operators=single_operators, capture=capture)


def parse_every_run(path: Path | str, **options: Any) -> Iterator[RunInFile]:
    """Read every run that a file holds: logs often have the outputs of several in a row.
    ``options``: those of ``parse``.

    Use each report before the next: the text it was read from is kept until then. An output that
    stands in the file twice is read once. Raises ReportError where the file is missing, not
    recognised, or broken as a whole.
    """
    from perfctl.parsers.common.doubts import SeveralRunsError

    path = Path(path)
    try:
        report = parse(path, **options)
    except SeveralRunsError as joined:
        parser = sniff(path)
        assert parser is not None
        yield from parse_each_run_of_file(path, joined, parser.parse)
    else:
        yield RunInFile(1, report, is_of_several=False)


def find_report_paths(
    path: Path, is_single_report: Callable[[Path], bool] = lambda folder: False
) -> list[Path]:
    """Return the reports at ``path``: itself when it is one, else every report below it, sorted;
    hidden names are left out.

    A folder that a parser takes whole (DLProf's CSV files), or that ``is_single_report`` accepts,
    counts as one report. Of files that are one report together (rocprofv3's CSV files) only the one
    that it is read from is named.
    """
    visited: set[Path] = set()

    def find_reports_below(path: Path) -> Iterator[Path]:
        if (
            path.is_file()
            or is_pipe_socket_or_device(path)
            or is_single_report(path)
            or sniff(path) is not None
        ):
            yield path
            return
        visited.add(path.resolve())
        for child in sorted(child for child in path.iterdir() if not child.name.startswith(".")):
            if child.is_dir():
                if child.resolve() not in visited:  # symbolic links may form a cycle
                    yield from find_reports_below(child)
            elif child.is_file() and child.stat().st_size and sniff(child) is not None:
                yield child

    return select_leading_report_files(find_reports_below(path))


def select_leading_report_files(paths: Iterable[Path]) -> list[Path]:
    """Return those of the paths that are not read as part of another one of them."""
    firsts = {path: find_leading_file(path) for path in paths}
    return [path for path, first in firsts.items() if first == path or first not in firsts]


def find_graph_capture_traces(folder: Path) -> list[Path]:
    """Return traces in ``folder`` that state which modules the graphs of the other traces belong
    to, and are no measurement themselves."""
    from perfctl.records.served_names import DETAILS

    if not (folder / DETAILS).is_file():
        return []
    captures = import_module("perfctl.parsers.kineto.captures")  # no format knows another
    paths: list[Path] = captures.list_capture_traces_in_folder(folder)
    return paths


def find_leading_file(path: Path) -> Path:
    """Return the file that the report is read from which ``path`` belongs to; ``path`` itself if it
    is a report of its own."""
    with suppress(OSError):
        if path.suffix == ".csv" and path.is_file() and path.stat().st_size:
            parser = sniff(path)
            if parser is not None and parser.joins_files:
                first: Path = parser.load_module().find_leading_file(path)
                return first
    return path


def is_empty_truncated_or_lfs_file(path: Path) -> bool:
    """Return whether the file is incomplete: empty, a git-LFS pointer, or an SQLite file that is
    cut off."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES)
    return not size or head.startswith(LFS) or size < read_file_size_from_header(head)
