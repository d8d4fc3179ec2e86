"""Run Nsight Systems: the times of every kernel, copy and range, exported to SQLite for perfctl
to read."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.process import watchdog
from perfctl.orchestrator.launch.profilers import base
from perfctl.orchestrator.launch.profilers import outcome as evidence
from perfctl.orchestrator.launch.profilers.base import Command, ProcessOutcome, RequiredTool
from perfctl.orchestrator.launch.profilers.outcome import ReportProblem, ToolProfiler
from perfctl.orchestrator.launch.sweep.folders import RunPaths
from perfctl.orchestrator.launch.sweep.request import SweepRequest
from perfctl.orchestrator.options import Option
from perfctl.workloads.spec import RANK

_DEBIAN = Path("/usr/lib/nsight-systems/host-linux-x64/QdstrmImporter")
IMPORTER_TIMEOUT_MAX_S = 10.0
"""Its version takes half a second (2022.4, 2023.4)."""

IMPORTER = RequiredTool(
    "nsys's importer (host-linux-x64/QdstrmImporter)",
    "without it nsys leaves only .qdstrm files",
    "install all of Nsight Systems, not only its target-linux-x64 (Debian 12 and 13: "
    "scripts/setup/install_nsight_debian.sh, which links it)",
    "perfctl torch times layers and kernels with PyTorch only",
)

FOLDER = Path("/dev/shm")  # noqa: S108  # nosec B108 - where glibc keeps shared memory

WINDOW = "perfctl:window"
"""NVTX range around the measured steps; it starts and ends the recording where cudaProfilerStart
does not exist."""

SESSION = f"perfctl-%q{{{watchdog.VARIABLE}}}"
"""nsys inserts the run's mark. Reusing a session name after a kill fails once ("Agent launcher
failed", 2022.4)."""
BUSY = (
    b"(?m)sem_open|Agent launcher failed|Local Endpoint is not available|^(?:End of "
    rb"file|Connection reset by peer)\s*$"
)
"""In nsys's message when another nsys is just starting on the machine, or was killed while it
did (2022.4)."""

TOOL = RequiredTool(
    "nsys",
    "Nsight Systems records when each kernel ran",
    "install NVIDIA Nsight Systems 2021.4 or newer (Debian 12 and 13: "
    "scripts/setup/install_nsight_debian.sh)",
    "perfctl torch times layers and kernels with PyTorch only",
)

RESERVED = {
    "perfctl sets the name of the report and reads it": (
        *("--output", "-o", "--force-overwrite", "-f"),
    ),
    "perfctl exports the report itself, as SQLite": ("--export",),
    "perfctl finds nsys's processes by the name of the session": ("--session", "--session-new"),
    "it marks the measured steps": (
        *("--capture-range", "-c", "--capture-range-end", "--nvtx-capture", "-p"),
    ),
    "perfctl records only the measured steps, or a time window (--after, --for)": (
        *("--duration", "-d", "--delay", "-y", "--start-later", "-Y", "--stop-on-exit", "-x"),
        "--kill",
    ),
    "perfctl must know the options of nsys": ("--command-file", "--run-as", "--help", "-h"),
}
"""Reason -> options of ``nsys profile`` that ``extra`` cannot have."""
_LONG_NAMES = {"-t": "--trace", "-s": "--sample", "-w": "--show-output"}


@dataclass(frozen=True, slots=True)
class ImporterCheck:
    """nsys's importer as it starts here."""

    version: str | None
    """As it prints it; None if it does not start."""
    error: str | None = None
    """What it, or the loader, said instead of a version."""


def is_importer_present() -> bool | None:
    """Return whether the importer is where this nsys looks; None without nsys, or for an
    installation with another layout."""
    path = tools.find_program("nsys")
    if path is None:
        return None
    if find_importer_path() is not None:
        return True
    is_usual = Path(path).resolve().parent.name.startswith("target-linux")
    return False if _DEBIAN.exists() or is_usual else None


def find_importer_path() -> Path | None:
    """Return the importer where this nsys looks; None without nsys, or if it is not there.

    NVIDIA's packages have target-linux-x64 and host-linux-x64 in one folder; Debian's links
    its host-linux-x64 (2022.4.2, 2023.4.4) beside the other. nsys looks from its resolved path.
    """
    path = tools.find_program("nsys")
    folders = Path(path).resolve().parents[:3] if path is not None else ()
    paths = (file for folder in folders for file in folder.glob("host-linux*/QdstrmImporter"))
    return next(paths, None)


def run_importer_for_version() -> ImporterCheck | None:
    """Return what nsys's importer says when it is started; None if it is not where nsys looks."""
    path = find_importer_path()
    if path is None:
        return None
    try:
        code, output, lines = tools.run_with_time_limit(
            (str(path), "--version"), IMPORTER_TIMEOUT_MAX_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        return ImporterCheck(None, str(error))
    if code == 0:
        version = re.search(r"\d+(?:[.]\d+)+", " ".join(output))
        return ImporterCheck(version.group() if version else "of unknown version")
    # the loader's line names the program with its whole path
    message = next(iter((*lines, *output)), f"it ended with exit code {code}")
    return ImporterCheck(None, message.removeprefix(f"{path}: "))


def remove_stale_nsys_lock(folder: Path = FOLDER, proc_folder: Path = Path("/proc")) -> str | None:
    """Remove the stale lock that a killed nsys leaves in shared memory, unless an nsys is running.
    A sentence about what was removed; None for nothing."""
    if any(
        _is_recording_nsys(process) for process in proc_folder.iterdir() if process.name.isdecimal()
    ):
        return None
    removed = []
    for path in sorted(folder.glob("NSys-*")):
        try:
            facts = path.lstat()
            if facts.st_uid == os.getuid() and path.is_file() and not path.is_symlink():
                path.unlink()
                removed.append(str(path))
        except OSError:
            continue
    return f"removed {', '.join(removed)}, the lock of an nsys that was killed" if removed else None


def _is_recording_nsys(proc_entry: Path) -> bool:
    """Return whether it is an nsys that records, or may: not a zombie, and not one that only reads
    a report."""
    try:
        name, stat, argv = (
            (proc_entry / file).read_text(errors="replace") for file in ("comm", "stat", "cmdline")
        )
    except OSError:
        return False
    reads = not {"stats", "export", "analyze", "--version"}.isdisjoint(argv.split("\0")[1:2])
    return name.startswith("nsys") and stat.rpartition(")")[2].split()[0] != "Z" and not reads


@dataclass(frozen=True)
class Nsys(base.TimeWindow, ToolProfiler):
    """Nsight Systems: time of every range, kernel and copy."""

    name: ClassVar[str] = "nsys"
    tool: ClassVar[RequiredTool] = TOOL
    trace: Annotated[
        str | None,
        Option(
            "APIs to trace. Default: cuda,nvtx,cudnn,cublas (CPU: nvtx,osrt).",
            "Profiler",
            metavar="LIST",
        ),
    ] = None
    whole: bool = False
    """Record the whole program instead of the measured steps."""
    graph_nodes: bool | None = None
    """Record the kernels inside CUDA graphs (--cuda-graph-trace=node); None: if this nsys has
    the option."""
    cuda_graph_trace: Annotated[
        str | None,
        Option(
            "Record a CUDA graph as one unit (graph), or each kernel (node). Default: node.",
            "Profiler",
            metavar="MODE",
        ),
    ] = None
    """In place of ``graph_nodes``; a newer nsys takes graph:host-and-device too."""
    gpu_metrics_devices: Annotated[
        str | None,
        Option("Sample GPU metrics of these devices: 0,1 or all.", "Profiler", metavar="LIST"),
    ] = None
    """Needs the permission to read counters."""
    stats: Annotated[bool, Option("Write the tables of nsys to stdout.log.", "Profiler")] = False
    extra: base.ToolArgs = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cuda_graph_trace is not None and not re.fullmatch(
            r"(?:graph|node)(?::[a-z-]+)?", self.cuda_graph_trace
        ):
            raise UsageError(
                f"`cuda_graph_trace` must be graph or node, got {self.cuda_graph_trace}"
            )
        base.reject_reserved_options("nsys", self.extra, RESERVED)

    def build_commands(self, request: SweepRequest) -> tuple[Command, ...]:
        """Every rank of a launcher gets its own report: in a shared one, the first rank's end would
        stop the recording. Raises UsageError for a path with a quotation mark, which nsys 2022.4
        cannot parse."""
        paths = request.paths
        if '"' in str(paths.partial_folder):
            raise UsageError(
                f"nsys cannot write to {paths.partial_folder.parent}: the path contains a "
                f"quotation mark",
                "Choose another folder for `out`",
            )
        self.raise_if_window_without_program(request.program)
        on_gpu = request.device == "cuda"
        metrics = self.gpu_metrics_devices
        # the name had no plural before 2024 (2022.4, 2023.4)
        is_new = metrics is not None and supports_profile_option(
            "--gpu-metrics-devices", request.container_prefix
        )
        mark = RANK if request.is_rank_launcher else ""
        defaults = (
            f"--trace={self.trace or ('cuda,nvtx,cudnn,cublas' if on_gpu else 'nvtx,osrt')}",
            "--sample=none",  # with CPU sampling nsys 2022.4 hangs in virtual machines
            "--cpuctxsw=none",
            *self._build_capture_options(request, on_gpu),
            *([f"--gpu-metrics-device{'s' * is_new}={metrics}"] if metrics is not None else ()),
            *(("--stats=true",) if self.stats else ()),
            "--wait=primary",
            "--force-overwrite=true",
            f"--session-new={SESSION}{mark}",
            f"--output={str(paths.get_report_path('')).replace('%', '%%')}{mark}",
            # the number of ranks is not known; a server runs until its report is exported
            *(("--export=sqlite",) if mark or self.duration else ()),
        )
        profile = (
            "nsys",
            "profile",
            *base.merge_options_preferring_user(defaults, self.extra, _LONG_NAMES),
        )
        argv = request.build_workload_command(
            layer_marking="nvtx",
            step_window_method="cuda" if on_gpu else "none",
            profiler_prefix=profile,
        )
        report = paths.get_report_path(".nsys-rep")
        options = ("--type=sqlite", "--force-overwrite=true", "--quiet=true")
        export = (
            "nsys",
            "export",
            *options,
            f"--output={self.get_report_path(paths)}",
            str(report),
        )
        # 0: unregistered NVTX strings can start the recording too.
        is_whole = self.whole or request.is_uninstrumented
        environment = {} if on_gpu or is_whole else {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
        runs_on = self.duration is not None
        run = Command(
            argv,
            "profile",
            environment,
            retry_on=BUSY,
            clear=remove_stale_nsys_lock,
            runs_on=runs_on,
        )
        return (run,) if runs_on else (run, Command(export, "export", needs=report))

    def _build_capture_options(self, request: SweepRequest, on_gpu: bool) -> tuple[str, ...]:
        """Return the options that limit the recording. The default end, stop-shutdown, would kill
        the program."""
        unit = self.cuda_graph_trace
        if unit is None and on_gpu:
            is_known = self.graph_nodes
            if is_known is None:
                is_known = supports_profile_option("--cuda-graph-trace", request.container_prefix)
            unit = "node" if is_known else None
        graphs = () if unit is None else (f"--cuda-graph-trace={unit}",)
        if self.duration is not None:
            limits = f"--delay={self.delay or 0}", f"--duration={self.duration}"
            return (*graphs, *limits, "--kill=none")
        if self.whole or request.is_uninstrumented:
            return graphs
        by_range = ("--capture-range=nvtx", f"--nvtx-capture={WINDOW}")
        start = ("--capture-range=cudaProfilerApi",) if on_gpu else by_range
        return (*graphs, *start, "--capture-range-end=stop")

    @property
    def time_limit_note(self) -> str:
        if not (tools.query_program_version("nsys") or "").startswith("2022."):
            return ""
        return (
            ". With nsys 2022.4, a multiprocessing pool that spawns its workers can hang: use "
            "fork, or a newer nsys"
        )

    def get_report_path(self, paths: RunPaths) -> Path:
        return paths.get_report_path(".sqlite")

    def describe_report_gap(
        self, request: SweepRequest, outcomes: tuple[ProcessOutcome, ...]
    ) -> str | None:
        """Return what the recording lacks, with a remedy. nsys writes no table for an activity that
        it did not record."""
        try:
            tables = evidence.list_sqlite_tables(self.get_report_path(request.paths))
        except sqlite3.DatabaseError:
            return None
        if request.device == "cuda" and "CUPTI_ACTIVITY_KIND_KERNEL" not in tables:
            return (
                "nsys recorded no GPU kernels. Check the driver with perfctl doctor, and that nsys "
                "runs inside the container"
            )
        if "NVTX_EVENTS" not in tables and not request.is_uninstrumented:
            return (
                "nsys recorded no NVTX ranges, so layers are unknown. Use a CUDA build of torch, "
                "which has torch.cuda.nvtx"
            )
        return None

    def find_report_problem(
        self, request: SweepRequest, outcomes: tuple[ProcessOutcome, ...]
    ) -> ReportProblem | None:
        database, report = (
            self.get_report_path(request.paths),
            request.paths.get_report_path(".nsys-rep"),
        )
        if database.exists() and not evidence.is_older_than_run(database, request.paths):
            damage = evidence.find_sqlite_export_fault(database)
            if damage is None:
                return None
            state = f"{database.name} {damage}"
        elif report.exists():
            state = f"nsys wrote {report.name}, but no database"
        else:
            return _explain_no_report(request, outcomes[0])
        return ReportProblem(
            f"the export failed: {state}. {_suggest_export_remedy(outcomes)}", is_of_tool=True
        )


def supports_profile_option(option: str, container_prefix: tuple[str, ...] = ()) -> bool:
    """Return whether the nsys that will run has an option of ``profile`` (no list of versions is
    published). True where none answers. ``container_prefix``: words that run a command inside the
    image."""
    nsys = "nsys" if container_prefix else tools.find_program("nsys") or "nsys"
    help_text = tools.run_cached_for_output(*container_prefix, nsys, "profile", "--help")
    return not help_text or re.search(rf"{option}\b(?!-)", help_text) is not None


def _explain_failed_import(request: SweepRequest, outcome: ProcessOutcome) -> str:
    """Return why nsys left what it recorded as it was: the loader's own line, or nsys's."""
    lines = evidence.find_matching_log_lines(
        outcome.stderr, rb"^.*error while loading shared libraries:.*", 1
    )
    importer = None if request.container_prefix else run_importer_for_version()
    if not lines and importer is not None and importer.error is not None:
        lines = [importer.error]
    for pattern in (rb"^Importer error status: ", rb"^Unable to retrieve the importer version"):
        lines += evidence.find_matching_log_lines(outcome.stderr, pattern, 1)
    detail = f": {lines[0].strip().rstrip('.')}" if lines else ""
    return (
        f"nsys recorded, but left only a .qdstrm because its importer did not start{detail}. On "
        "Debian run scripts/setup/install_nsight_debian.sh, which links it; elsewhere install all "
        "of Nsight Systems, and the libraries that it needs"
    )


def _explain_no_report(request: SweepRequest, outcome: ProcessOutcome) -> ReportProblem:
    part = request.paths.partial_folder
    if any(part.glob("*.qdstrm")) or any(request.paths.scratch.glob("*.qdstrm")):
        if not evidence.find_matching_log_lines(outcome.stderr, rb"^Import Failed", 1):
            return ReportProblem(_explain_failed_import(request, outcome))
        # The importer's own message comes last in a nested one, after classes and source files.
        texts = evidence.find_matching_log_lines(outcome.stderr, rb'Type: ErrorText\s+Value: "', 1)
        reason = (*texts, "Value: no reason given")[0].partition("Value:")[2]
        reason = reason.strip(' "').rstrip(".")
        return ReportProblem(
            "nsys recorded, but its importer failed and left only a .qdstrm: "
            f"{reason}. Import it with the same nsys on a machine with a "
            "complete /proc and /sys: perfctl ingest report.qdstrm"
        )
    if request.paths.get_report_path(".qdrep").exists():
        return ReportProblem(
            "this nsys writes .qdrep, the format of 2021.3 and older. Install Nsight Systems "
            "2021.4 or newer"
        )
    dropped = evidence.find_matching_log_lines(
        outcome.stdout, rb"^\s+/[^\r\n]*\.(?:nsys-rep|qdrep)$"
    )
    if dropped:
        return ReportProblem(
            f"nsys could not write to {part} and left its report in {dropped[0]}. Make the folder "
            "writable"
        )
    if evidence.has_matching_output_line(outcome, rb"Agent launcher failed"):
        # the exit code says nothing of the program, which never started
        return ReportProblem(
            "nsys could not start its agent. Run again; nsys sessions list shows other sessions. "
            f"When no nsys is running, remove the lock of one that was killed: rm {FOLDER}/NSys-*",
            is_of_tool=True,
        )
    if outcome.exit_code == 0 and not request.is_uninstrumented:
        return ReportProblem(
            "nsys recorded no measured step. On a CPU it depends on torch.cuda.nvtx, which only "
            "CUDA builds of torch have. perfctl torch needs neither"
        )
    if outcome.exit_code == 0 and request.profiler_options.get("duration"):
        return ReportProblem(
            base.describe_end_before_recording(request.profiler_options.get("delay"))
        )
    message = evidence.read_last_output_line(outcome) or "no message"
    ending = f"nsys ended with exit code {outcome.exit_code}"
    return ReportProblem(f"{ending} and left no profiler report: {message}")


def _suggest_export_remedy(outcomes: tuple[ProcessOutcome, ...]) -> str:
    if len(outcomes) < 2:
        return "Run nsys export --type sqlite on it"
    if outcomes[1].timed_out:
        return "It exceeded the time limit: allow more time"
    if evidence.has_matching_output_line(
        outcomes[1], rb"Version number is invalid|ProtobufParseException"
    ):
        return "A newer nsys wrote the profiler report: export it with the same one"
    if evidence.has_matching_output_line(
        outcomes[1], rb"(?i)no space left|disk full|database or disk is full"
    ):
        return "The disk is full"
    message = evidence.read_last_output_line(outcomes[1])
    return (
        f"nsys export printed: {message}"
        if message
        else "Run nsys export --type sqlite on it to see the reason"
    )
