"""Judge a finished run from what it left: its logs, the workload's record, the report."""

from __future__ import annotations

import gzip
import mmap
import re
import signal
import sqlite3
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from perfctl.orchestrator.errors import add_full_stop_if_missing
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.process.run import STARTED
from perfctl.orchestrator.launch.profilers.base import (
    Command,
    ProcessOutcome,
    RequiredTool,
    RunStatus,
)
from perfctl.orchestrator.launch.sweep.folders import RunPaths, read_json_object
from perfctl.orchestrator.launch.sweep.request import SweepRequest
from perfctl.records.sqlite_header import HEADER_BYTES, has_sqlite_magic, read_file_size_from_header
from perfctl.workloads.spec import UNFINISHED

_TAIL_BYTES = 65536
_LINE_CHARACTERS = 300
_OUT_OF_MEMORY = re.compile(
    "out of memory|OutOfMemoryError|can't allocate "
    "memory|std::bad_alloc|^MemoryError|ALLOC_FAILED|cudaErrorMemoryAllocation|Cannot allocate "
    "memory",
    re.MULTILINE,
)
_NSYS_2023 = "Executable not found in "
"""How nsys 2023 begins its message about a program that it cannot find, without naming it."""
_SIGNALS = {
    9: "was killed (SIGKILL), usually because memory ran out",
    11: "crashed (segmentation fault)",
    15: "was terminated (SIGTERM)",
}
_CODES_OF_STOPPED = (None, 128 + signal.SIGHUP, 128 + signal.SIGINT, 128 + signal.SIGTERM)
"""Exit codes of a program that perfctl or a person stopped; None: perfctl. Others crashed."""


def read_log_tail(path: Path) -> str:
    """Return the last 64 KiB of a log; empty when it does not exist."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def read_last_log_line(path: Path) -> str | None:
    """Return the last line of a log that has a letter or digit, shortened and without control
    characters; None when there is none. mpirun ends its errors with a line of dashes."""
    lines = map(_make_line_printable_and_short, reversed(re.split(r"[\r\n]+", read_log_tail(path))))
    return next((line for line in lines if any(map(str.isalnum, line))), None)


def read_last_output_line(outcome: ProcessOutcome) -> str | None:
    """Return the last line of stderr, else of stdout; None when both are empty."""
    return read_last_log_line(outcome.stderr) or read_last_log_line(outcome.stdout)


def has_matching_output_line(outcome: ProcessOutcome, pattern: bytes) -> bool:
    """Return whether a line of its output matches ``pattern``."""
    return any(find_matching_log_lines(log, pattern, 1) for log in (outcome.stdout, outcome.stderr))


def find_matching_log_lines(path: Path, pattern: bytes, max_lines: int = 20) -> list[str]:
    """Return the first ``max_lines`` lines of a log of any size that match ``pattern``; ^ and $
    match at lines."""
    lines: list[str] = []
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            end = 0
            for match in re.finditer(pattern, content, re.MULTILINE):
                if match.start() < end:
                    continue
                start = content.rfind(b"\n", 0, match.start()) + 1
                end = content.find(b"\n", match.end())
                end = len(content) if end < 0 else end
                lines.append(
                    _make_line_printable_and_short(
                        content[start : min(end, start + _TAIL_BYTES)].decode(errors="replace")
                    )
                )
                if len(lines) >= max_lines:
                    break
    except (OSError, ValueError):  # not there, or empty, which mmap refuses
        return []
    return lines


def _make_line_printable_and_short(line: str) -> str:
    text = "".join(character if character.isprintable() else " " for character in line).strip()
    return text if len(text) <= _LINE_CHARACTERS else text[:_LINE_CHARACTERS] + " ..."


def has_recorded_all_requested_steps(request: SweepRequest) -> bool:
    """Return whether all that was requested of a run is recorded: the steps of the user's program
    in each process, or all of a built-in workload."""
    files = sorted(request.paths.partial_folder.glob("workload*.json"))
    records = [read_json_object(path) or {} for path in files]
    if request.program is None:
        return [record.get("status") for record in records] == ["ok"]
    return bool(records) and all(
        sum(row.get("phase") == "step" for row in record.get("steps", ()))
        >= record.get("options", {}).get("steps", 1)
        for record in records
    )


def explain_program_failure(
    request: SweepRequest,
    outcome: ProcessOutcome,
    meaning_by_exit_code: Mapping[int, str] | None = None,
) -> str | None:
    """Return why the profiled program failed, in one sentence; None if it succeeded.
    ``meaning_by_exit_code``: see ``ToolProfiler``."""
    code = outcome.exit_code
    if code in _CODES_OF_STOPPED and has_recorded_all_requested_steps(request):
        return None
    if outcome.timed_out:
        seconds = outcome.duration_ns / 1e9
        return (
            f"the time limit was reached after {seconds:.0f} s. Allow more time, or run fewer steps"
        )
    if outcome.stalled_s is not None:
        last = read_last_log_line(outcome.stdout) or read_last_log_line(outcome.stderr)
        ending = f" The last line was: {last}." if last else ""
        return (
            f"stopped, because its output and files did not change for {outcome.stalled_s:.0f} s "
            f"(`stall`).{ending} ncu cannot replay a kernel that waits for other ranks. Exclude it "
            "by name, or count with one rank"
        )
    record = read_json_object(request.paths.workload_record) or {}
    status = record.get("status") or "ok"
    reason = (
        None
        if status == "ok"
        else _make_line_printable_and_short(str(record.get("reason") or status))
    )
    is_unfinished = request.program is not None and record.get("reason") == UNFINISHED
    if code == 0 and (reason is None or is_unfinished):
        is_complete = not is_unfinished and request.paths.workload_record.exists()
        if request.program is None or request.is_uninstrumented or is_complete:
            return None
        return (
            f"{request.workload} exited with code 0 but left no perfctl record: it called "
            "os._exit, or replaced itself with another program"
        )
    message = reason or read_last_log_line(outcome.stderr) or ""
    is_killed = (code or 0) > 128 and code != 128 + signal.SIGABRT  # after what it printed
    if _OUT_OF_MEMORY.search(reason or ("" if is_killed else read_log_tail(outcome.stderr))):
        setting, message = request.setting, message.removeprefix("out of memory: ")
        if setting.others or setting.batch is None:
            return f"out of memory: {setting} ({message}). Use smaller values"
        return f"out of memory at batch size {setting.batch} ({message}). Use a smaller batch size"
    is_unnamed = reason is None and request.interpreter not in message
    if is_unnamed and message.startswith(_NSYS_2023):
        message = f"{message} ({request.interpreter})"
    by_tool = (meaning_by_exit_code or {}).get(code or 0)
    if request.program is not None and reason and not by_tool and (code or 0) <= 128:
        # names the script and how it ended
        return f"{add_full_stop_if_missing(reason)} See {outcome.stderr.name}"
    detail = f": {message}" if message else " without a message"
    if is_killed and reason is None and message:
        detail = f". The last line was: {message}"
    failure = add_full_stop_if_missing(
        f"the program {by_tool or _describe_exit_code(code)}{detail}"
    )
    return f"{failure} See {outcome.stderr.name}"


def _describe_exit_code(exit_code: int | None) -> str:
    if exit_code == 0:
        return "reported a failure"
    if exit_code is None:
        return "was stopped"
    if exit_code > 128:
        return _SIGNALS.get(exit_code - 128, f"was killed by signal {exit_code - 128}")
    return f"ended with exit code {exit_code}"


def is_older_than_run(artifact: Path, paths: RunPaths) -> bool:
    """Return whether it was written before the run's first process started, by the file system's
    clock."""
    marker = paths.scratch / STARTED
    return marker.exists() and artifact.stat().st_mtime_ns < marker.stat().st_mtime_ns


def list_sqlite_tables(path: Path) -> set[str]:
    """Return names of the tables of an SQLite file. Raises sqlite3.DatabaseError for any other
    file."""
    with closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    ) as connection:
        return {
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }


def find_sqlite_export_fault(path: Path) -> str | None:
    """Return why an exported database cannot be used; None when it can."""
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES)
    if not has_sqlite_magic(head) or len(head) < HEADER_BYTES:
        return "is not an SQLite database"
    if read_file_size_from_header(head) > path.stat().st_size:
        return "is truncated"
    try:
        tables = list_sqlite_tables(path)
    except sqlite3.DatabaseError as error:
        return f"cannot be read ({error})"
    # A failed nsys export (2022.4) leaves ProcessStreams and StringIds and nothing else.
    return "holds no data, as after a failed export" if len(tables) <= 2 else None


def find_gzip_trace_fault(path: Path) -> str | None:
    """Return why a compressed trace cannot be used; None when it can."""
    try:
        with gzip.open(path) as file:
            if not file.read(1):
                return "is empty"
            while file.read(1 << 20):
                pass
    except EOFError:
        return "is truncated"
    except (OSError, zlib.error):
        return "is damaged"
    return None


@dataclass(frozen=True, slots=True)
class ReportProblem:
    """Why the report of a run cannot be read."""

    text: str
    """Cause and remedy."""
    is_of_tool: bool = False
    """The profiler failed, whatever happened to the program."""


class ToolProfiler(ABC):
    """A profiler that runs a program. Fields of its class are its options."""

    name: ClassVar[str]
    """The value of ``run.profiler``."""
    partial_note: ClassVar[str] = "The profiler report covers the run up to then"
    """What the report of a program that failed still holds."""
    tool: ClassVar[RequiredTool | None] = None
    """What it needs beside torch."""
    exit_codes: ClassVar[Mapping[int, str]] = {}
    """Exit codes to which the profiler gives another meaning: ncu returns bare signal numbers."""

    def list_missing_tools(self) -> tuple[RequiredTool, ...]:
        """Return the tools that this profiler needs and this machine lacks."""
        return tools.list_missing_tool_and_torch(self.tool)

    @property
    def time_limit_note(self) -> str:
        """Return why a program of the user's may not have ended in time under this profiler."""
        return ""

    @abstractmethod
    def build_commands(self, request: SweepRequest) -> tuple[Command, ...]:
        """Return what to start for one run, in order. Raises UsageError."""

    @abstractmethod
    def get_report_path(self, paths: RunPaths) -> Path:
        """Return the file or folder that the parsers read."""

    @abstractmethod
    def find_report_problem(
        self, request: SweepRequest, outcomes: tuple[ProcessOutcome, ...]
    ) -> ReportProblem | None:
        """Return why the report cannot be read; None if it can."""

    def describe_report_gap(
        self, request: SweepRequest, outcomes: tuple[ProcessOutcome, ...]
    ) -> str | None:
        """Return what the report of a program that ended well lacks; None for nothing."""
        return None

    def determine_run_status(
        self, request: SweepRequest, outcomes: tuple[ProcessOutcome, ...]
    ) -> RunStatus:
        """Return the verdict from exit codes, logs and the report together."""
        failure = explain_program_failure(request, outcomes[0], self.exit_codes)
        if failure is not None and outcomes[0].timed_out and request.program is not None:
            failure += self.time_limit_note
        if problem := self.find_report_problem(request, outcomes):
            is_tools = problem.is_of_tool or failure is None
            return RunStatus("failed", problem.text if is_tools else failure)
        if failure is not None:
            return RunStatus("partial", f"{failure}. {self.partial_note}")
        gap = self.describe_report_gap(request, outcomes)
        return RunStatus("partial", gap) if gap else RunStatus("ok", None)
