"""Run Nsight Compute: counters of every kernel launch.

The first command writes ``report.ncu-rep``, which holds everything, NVTX ranges included. The second exports it as CSV
(raw page: one row per launch), which needs no NVIDIA software to read; a .ncu-rep needs NVIDIA's reader or an ncu at
least as new. The CSV of a report made with --nvtx has the range columns; to pass --nvtx again is an error ("Invalid
option --nvtx specified for --mode import", 2022.3). Should an ncu omit them, the .ncu-rep still has the layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch import evidence, ncu_metrics, ncu_ranges, tools
from perfctl.orchestrator.launch.paths import RunPaths
from perfctl.orchestrator.launch.profiler import RANK, Command, Outcome, RunRequest, Tool, Verdict

TOOL = Tool(
    "ncu",
    "Nsight Compute counts the instructions that each kernel executed",
    "install NVIDIA Nsight Compute 2022.1 or newer (Debian 12 and 13: scripts/install_nsight_debian.sh)",
    "perfctl nsys and perfctl torch measure times and estimate FLOPs; only ncu counts executed FLOPs",
)
DRIVER = Tool(
    "an NVIDIA driver",
    "ncu reads the counters of NVIDIA GPUs",
    "run it on a machine with an NVIDIA GPU",
    "perfctl torch --device cpu times layers, and estimates of FLOPs need no device",
)

_SIGNAL_CODES = {
    11: "crashed (segmentation fault)",
    9: "was killed (SIGKILL), usually because memory ran out or the run was stopped",
}
"""ncu 2022.3 exits with the bare number of the signal that ended the program."""

_CAUSES: tuple[tuple[bytes, str], ...] = (
    (
        rb"ERR_NVGPUCTRPERM",
        "the driver lets only administrators read GPU counters (ERR_NVGPUCTRPERM). Ask for the module option "
        "NVreg_RestrictProfilingToAdminUsers=0 (RmProfilingAdminOnly: 0 in /proc/driver/nvidia/params), or run with "
        "CAP_SYS_ADMIN",
    ),
    (
        rb"(?i)driver resource was unavailable",
        "another program holds the GPU's counters, usually DCGM monitoring (driver resource was unavailable). Pause it with "
        "dcgmi profile --pause and resume it with --resume, or ask the site (Slurm: --disable-dcgm)",
    ),
    (
        rb"(?i)nsight-compute-lock|[^\r\n]*InterprocessLockFailed",
        "ncu's lock file (nsight-compute-lock in TMPDIR) belongs to another user. Set TMPDIR to a folder of your own",
    ),
    (
        rb"(?i)profiling is not supported on (?:this )?device|GPU architecture is not supported",
        "this ncu does not support the GPU. Install a newer Nsight Compute",
    ),
)
_NO_KERNELS = (
    "ncu profiled no kernels: none was launched between cudaProfilerStart and cudaProfilerStop. Check the driver with "
    "perfctl doctor"
)


@dataclass(frozen=True, slots=True)
class Ncu:
    """``ncu`` over the measured steps, then its report exported as CSV."""

    metrics: str = "flops"
    """One of ncu_metrics.SETS, or metric names separated by commas."""
    clock_control: str = "base"
    """base locks the clocks, which makes times comparable; none leaves them alone."""
    cache_control: str = "all"
    """all flushes the caches before each pass; none keeps them warm."""
    kernel: str | None = None
    """Only kernels with this name, or regex:EXPRESSION; None for all."""
    skip: int | None = None
    """Matching launches to skip first."""
    count: int | None = None
    """Matching launches to profile at most."""
    layers: tuple[str, ...] = ()
    """Only launches of these layers and their sublayers; empty for all."""
    extra: tuple[str, ...] = ()
    """More options for ncu, passed unchanged."""

    def __post_init__(self) -> None:
        ncu_metrics.check(self.metrics)
        for layer in self.layers:
            ncu_ranges.check(layer)
        if self.clock_control not in ("base", "none"):
            raise UsageError(f"`clock_control` must be base or none, got {self.clock_control}")
        if self.cache_control not in ("all", "none"):
            raise UsageError(f"`cache_control` must be all or none, got {self.cache_control}")

    @property
    def name(self) -> str:
        return "ncu"

    def missing(self) -> tuple[Tool, ...]:
        lacking = () if tools.find("ncu") else (TOOL,)
        return (*lacking, *(() if tools.has_gpu_driver() else (DRIVER,)), *tools.missing_torch())

    def commands(self, request: RunRequest) -> tuple[Command, ...]:
        """Every rank of a launcher gets its own report. Raises UsageError on a CPU, which ncu does not support."""
        if request.device != "cuda":
            raise UsageError("ncu needs a GPU", "Set `device` to cuda, or use perfctl torch on a CPU")
        report = request.paths.report(".ncu-rep")
        ranks = request.has_ranks
        profile: tuple[str, ...] = (
            "ncu",
            "--force-overwrite",
            "--export", str(_named(report, RANK) if ranks else report).replace("%", "%%"),
            "--nvtx",
            "--target-processes", "all",
            "--profile-from-start", "off",
            "--clock-control", self.clock_control,
            "--cache-control", self.cache_control,
            "--metrics", ",".join(ncu_metrics.metrics(self.metrics)),
            *self._filters(),
            *self.extra,
        )  # fmt: skip
        argv = (
            request.workload_command(annotate="nvtx", window="cuda", under=profile)
            if ranks
            else (*profile, *request.workload_command(annotate="nvtx", window="cuda"))
        )
        table = ncu_metrics.as_table(report, request.paths.report(".csv"))
        others = (request.python, "-m", "perfctl.orchestrator.launch.rank_tables", str(report))
        # Other locales group digits, ambiguously on the raw page (2022.3).
        exports = [Command(words, "export", {"LC_ALL": "C"}, needs=report) for words in (table, others)[: 1 + ranks]]
        return Command(argv, "profile"), *exports

    def _no_kernels(self) -> str:
        if not self.layers:
            return _NO_KERNELS
        return (
            f"ncu profiled no kernels in the selected layers ({', '.join(self.layers)}). For the names of all layers, run "
            "perfctl nsys or perfctl torch, then perfctl show RUN"
        )

    def _filters(self) -> tuple[str, ...]:
        options = list(ncu_ranges.options(self.layers))
        if self.kernel is not None:
            options += ["--kernel-name", self.kernel]
        if self.skip is not None:
            options += ["--launch-skip", str(self.skip)]
        if self.count is not None:
            options += ["--launch-count", str(self.count)]
        return tuple(options)

    def artifact(self, paths: RunPaths) -> Path:
        """The CSV, or the .ncu-rep when the export failed: ncu_report can still read it."""
        table, report = paths.report(".csv"), paths.report(".ncu-rep")
        return report if report.exists() and not _is_table(table) else table

    def judge(self, request: RunRequest, outcomes: tuple[Outcome, ...]) -> Verdict:
        first = outcomes[0]
        program = evidence.program_failure(request, first, tool_codes=_SIGNAL_CODES)
        problem = self.artifact_problem(request, outcomes)
        if problem is not None:
            return Verdict("failed", _cause(first) or program or problem)
        if program is not None:
            return Verdict("partial", f"{program}. The report holds the kernels up to then")
        if not _is_table(request.paths.report(".csv")):
            return Verdict("partial", _no_table(outcomes))
        failed = _errors(first)
        return (
            Verdict("partial", f"ncu reported an error and continued: {failed[0]}") if failed else Verdict("ok", None)
        )

    def artifact_problem(self, request: RunRequest, outcomes: tuple[Outcome, ...]) -> str | None:
        """Why the report cannot be read, with a remedy; None when it can."""
        report, table = request.paths.report(".ncu-rep"), request.paths.report(".csv")
        fresh = report.exists() and not evidence.is_older_than_run(report, request.paths)
        if fresh and evidence.starts_with(report, b"NVR\0"):
            return None
        if not report.exists() and _is_table(table) and not evidence.is_older_than_run(table, request.paths):
            return None
        if report.exists():
            return f"{report.name} is damaged or older than this run. Remove it and run again"
        return _cause(outcomes[0]) or self._no_kernels()


def _named(report: Path, mark: str) -> Path:
    return report.with_name(f"{report.stem}{mark}{report.suffix}")


def _is_table(path: Path) -> bool:
    """Whether it has the header of the raw page; ncu's log file may hold an error message instead."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        return any(line.startswith(b'"ID","Process ID"') for line in file)


def _cause(outcome: Outcome) -> str | None:
    """Why ncu left no report, according to its output; None when it printed nothing."""
    for pattern, cause in _CAUSES:
        if any(evidence.find_lines(log, pattern, 1) for log in (outcome.stdout, outcome.stderr)):
            return cause
    errors = _errors(outcome)
    return f"ncu said: {errors[0]}" if errors else None


def _errors(outcome: Outcome) -> list[str]:
    """ncu's error lines, without the one about the program's exit code: the program's output says more."""
    lines = [line for log in (outcome.stdout, outcome.stderr) for line in evidence.find_lines(log, rb"==ERROR== ")]
    words = [line.partition("==ERROR== ")[2] for line in lines]
    return [line for line in words if "application returned an error code" not in line]


def _no_table(outcomes: tuple[Outcome, ...]) -> str:
    said = next((line for outcome in outcomes[1:] for line in _words(outcome)), "")
    return (
        f"the report is complete, but this ncu could not export it as CSV{': ' + said if said else ''}. perfctl reads it "
        "with NVIDIA's reader (pip install 'perfctl[ncu]')"
    )


def _words(outcome: Outcome) -> list[str]:
    return [line for line in (evidence.last_line(outcome.stderr), evidence.last_line(outcome.stdout)) if line]
