"""Nsight Systems: when every kernel, copy and range ran. Exported to SQLite, which is what perfctl reads."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch import evidence, guard, nsys_shared, tools
from perfctl.orchestrator.launch.paths import RunPaths
from perfctl.orchestrator.launch.profiler import RANK, Command, Outcome, RunRequest, Tool, Verdict

WINDOW = "perfctl:window"
"""NVTX range around the measured steps, which starts and ends the recording where there is no cudaProfilerStart."""

SESSION = f"perfctl-%q{{{guard.VARIABLE}}}"
"""nsys puts the run's mark in. A name used again after a kill is refused once ("Agent launcher failed", 2022.4)."""

BUSY = rb"sem_open|Agent launcher failed"
"""In nsys's message when it does not start because another nsys starts on the same machine just then, or was killed while
it did (2022.4)."""

TOOL = Tool(
    "nsys",
    "Nsight Systems records when each kernel ran",
    "install NVIDIA Nsight Systems 2021.4 or newer (Debian 12 and 13: scripts/install_nsight_debian.sh)",
    "perfctl torch times layers and kernels with PyTorch alone",
)


@dataclass(frozen=True, slots=True)
class Nsys:
    """``nsys profile`` and ``nsys export``."""

    trace: str | None = None
    """What --trace gets; None for what fits the device."""
    whole: bool = False
    """Record the whole program, not the measured steps only."""
    graph_nodes: bool | None = None
    """Ask for the kernels inside CUDA graphs (--cuda-graph-trace=node); None: if this nsys knows the option."""
    extra: tuple[str, ...] = ()
    """Further options of nsys profile, as they are."""

    @property
    def name(self) -> str:
        return "nsys"

    def missing(self) -> tuple[Tool, ...]:
        return (() if tools.find("nsys") else (TOOL,)) + tools.missing_torch()

    def commands(self, request: RunRequest) -> tuple[Command, ...]:
        """Each rank of a launcher has a report of its own: in one of all, the first rank's steps would end the others'.

        Raises UsageError for a folder that nsys cannot write to: with a quotation mark, 2022.4 parses no path.
        """
        paths = request.paths
        if '"' in str(paths.part):
            raise UsageError(
                f"nsys cannot write below a folder with a quotation mark in its name: {paths.part.parent}",
                "Choose another folder with --out",
            )
        on_gpu = request.device == "cuda"
        ranks = request.has_ranks
        mark = RANK if ranks else ""
        window = "cuda" if on_gpu else "none"
        profile = (
            "nsys", "profile",
            f"--trace={self.trace or ('cuda,nvtx,cudnn,cublas' if on_gpu else 'nvtx,osrt')}",
            "--sample=none",  # with CPU sampling nsys 2022.4 hangs in virtual machines
            "--cpuctxsw=none",
            *self._capture(on_gpu),
            "--wait=primary",
            "--force-overwrite=true",
            f"--session-new={SESSION}{mark}",
            f"--output={str(paths.report('')).replace('%', '%%')}{mark}",
            *(("--export=sqlite",) if ranks else ()),  # how many ranks there will be is not known
            *self.extra,
        )  # fmt: skip
        argv = (
            request.workload_command(annotate="nvtx", window=window, under=profile)
            if ranks
            else (*profile, *request.workload_command(annotate="nvtx", window=window))
        )
        report, database = paths.report(".nsys-rep"), paths.report(".sqlite")
        export = (
            "nsys", "export", "--type=sqlite", "--force-overwrite=true", "--quiet=true",
            f"--output={database}", str(report),
        )  # fmt: skip
        # 0: ranges that were not registered beforehand can start the recording, too.
        environment = {} if on_gpu or self.whole else {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
        run = Command(argv, "profile", environment, once_more=BUSY, clear=nsys_shared.clear)
        return run, Command(export, "export", needs=report)

    def _capture(self, on_gpu: bool) -> tuple[str, ...]:
        """The default end, stop-shutdown, would kill the program."""
        nodes: tuple[str, ...] = ()
        if on_gpu and (knows_graph_nodes() if self.graph_nodes is None else self.graph_nodes):
            nodes = ("--cuda-graph-trace=node",)
        if self.whole:
            return nodes
        if on_gpu:
            return (*nodes, "--capture-range=cudaProfilerApi", "--capture-range-end=stop")
        return ("--capture-range=nvtx", f"--nvtx-capture={WINDOW}", "--capture-range-end=stop")

    def artifact(self, paths: RunPaths) -> Path:
        return paths.report(".sqlite")

    def judge(self, request: RunRequest, outcomes: tuple[Outcome, ...]) -> Verdict:
        program = evidence.program_failure(request, outcomes[0])
        problem = self.artifact_problem(request, outcomes)
        if problem is not None:
            is_nsys = problem.startswith((_EXPORT, _AGENT))
            return Verdict("failed", program if program and not is_nsys else problem)
        if program is not None:
            return Verdict("partial", f"{program}. The report holds what ran until then")
        lack = _nothing_recorded(self.artifact(request.paths), request.device)
        return Verdict("partial", lack) if lack else Verdict("ok", None)

    def artifact_problem(self, request: RunRequest, outcomes: tuple[Outcome, ...]) -> str | None:
        """Why there is no database to read: cause and remedy; None when there is one."""
        database, report = self.artifact(request.paths), request.paths.report(".nsys-rep")
        if database.exists() and not evidence.is_older_than_run(database, request.paths):
            wrong = evidence.sqlite_problem(database)
            if wrong is None:
                return None
            return f"{_EXPORT}: {database.name} {wrong}. {_export_remedy(outcomes)}"
        if report.exists():
            return f"{_EXPORT}: nsys made {report.name}, but no database of it. {_export_remedy(outcomes)}"
        return _no_report(request, outcomes[0])


_EXPORT = "the export failed"
_AGENT = "nsys could not start its agent"
"""Its exit code is then no word of the program's, which never began."""


def knows_graph_nodes() -> bool:
    """Asked of the installed nsys, because no list of versions is published. True where none is installed."""
    path = tools.find("nsys")
    return path is None or "--cuda-graph-trace" in tools.output(path, "profile", "--help")


def _no_report(request: RunRequest, outcome: Outcome) -> str:
    part = request.paths.part
    if any(part.glob("*.qdstrm")) or any(request.paths.scratch.glob("*.qdstrm")):
        if evidence.find_lines(outcome.stderr, rb"^Import Failed", 1):
            return (
                f"nsys recorded, but its importer failed and left a .qdstrm only; it said: {_importer_said(outcome)}. "
                "Take it in with the same nsys on a machine that shows its /proc and /sys: perfctl ingest report.qdstrm"
            )
        return (
            "nsys recorded, but its importer is missing and it left a .qdstrm only. On Debian run "
            "scripts/install_nsight_debian.sh, which links it; elsewhere install the whole of Nsight Systems"
        )
    if request.paths.report(".qdrep").exists():
        return "this nsys writes .qdrep, the form of 2021.3 and older. Install Nsight Systems 2021.4 or newer"
    dropped = evidence.find_lines(outcome.stdout, rb"^\s+/[^\r\n]*\.(?:nsys-rep|qdrep)$")
    if dropped:
        return (
            f"nsys could not write to {part} and left its report in {dropped[0]}. Check that the folder can be written"
        )
    if any(evidence.find_lines(log, rb"Agent launcher failed", 1) for log in (outcome.stdout, outcome.stderr)):
        return (
            "nsys could not start its agent. Run it again; nsys sessions list shows what may be in its way. Where no nsys "
            f"runs, one that was killed left its lock: rm {nsys_shared.PATTERN}"
        )
    if outcome.exit_code == 0:
        return (
            "nsys recorded nothing: the measured steps never began for it. On a CPU the ranges come from "
            "torch.cuda.nvtx, which only CUDA builds of torch have; perfctl torch needs neither"
        )
    said = evidence.last_line(outcome.stderr) or evidence.last_line(outcome.stdout) or "nothing"
    return f"nsys ended with exit code {outcome.exit_code} and left no report; it said: {said}"


def _importer_said(outcome: Outcome) -> str:
    """Its own sentence stands last in a nested message, behind classes and source files."""
    said = evidence.find_lines(outcome.stderr, rb'Type: ErrorText\s+Value: "', 1)
    return said[0].partition("Value:")[2].strip(' "').rstrip(".") if said else "nothing that says why"


def _export_remedy(outcomes: tuple[Outcome, ...]) -> str:
    if len(outcomes) < 2:
        return "Run nsys export --type sqlite on it"
    if outcomes[1].timed_out:
        return "It took longer than the time limit: give more with --timeout"
    logs = (outcomes[1].stderr, outcomes[1].stdout)
    if any(evidence.find_lines(log, rb"Version number is invalid|ProtobufParseException") for log in logs):
        return "The report was made by a newer nsys than the one that exports it: use the same for both"
    if any(evidence.find_lines(log, rb"(?i)no space left|disk full|database or disk is full") for log in logs):
        return "The disk is full"
    said = next((line for line in map(evidence.last_line, logs) if line), None)
    return f"nsys export said: {said}" if said else "Run nsys export --type sqlite on it to see why"


def _nothing_recorded(database: Path, device: str) -> str | None:
    """nsys leaves tables out, not empty, when nothing of their kind was recorded."""
    try:
        names = evidence.sqlite_tables(database)
    except sqlite3.DatabaseError:
        return None
    if device == "cuda" and "CUPTI_ACTIVITY_KIND_KERNEL" not in names:
        return (
            "nsys recorded no GPU kernels. Check with perfctl doctor that the driver works here, and that nsys runs "
            "inside the container, not around it"
        )
    if "NVTX_EVENTS" not in names:
        return "nsys recorded no ranges, so nothing can be given to layers. A CUDA build of torch has torch.cuda.nvtx"
    return None
