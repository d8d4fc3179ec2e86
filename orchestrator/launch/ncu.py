"""Nsight Compute: counters of every kernel launch.

Two steps. The first writes ``report.ncu-rep``, which keeps everything, NVTX ranges included. The second prints it
as CSV (raw page: one row a launch), because any Python can read that, whereas a .ncu-rep needs NVIDIA's own reader
or an ncu at least as new. A report made with --nvtx brings its range columns into the CSV without being asked
(published exports show them; --nvtx itself is refused there: "Invalid option --nvtx specified for --mode import",
2022.3). Should an ncu leave them out, the layers are still in the .ncu-rep.
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
    "perfctl nsys or perfctl torch give times and pen-and-paper FLOPs, but nothing else counts executed ones",
)
DRIVER = Tool(
    "an NVIDIA driver",
    "ncu counts on NVIDIA GPUs only",
    "run it on a machine with an NVIDIA GPU",
    "perfctl torch --device cpu times layers, and pen-and-paper FLOPs need no device",
)

_SIGNAL_CODES = {
    11: "crashed (segmentation fault)",
    9: "was killed (SIGKILL), most often by the system for lack of memory, or stopped",
}
"""ncu 2022.3 hands a signal's bare number on as its exit code."""

_CAUSES: tuple[tuple[bytes, str], ...] = (
    (
        rb"ERR_NVGPUCTRPERM",
        "the driver lets only administrators read GPU counters (ERR_NVGPUCTRPERM). Ask for the module option "
        "NVreg_RestrictProfilingToAdminUsers=0 (RmProfilingAdminOnly: 0 in /proc/driver/nvidia/params), or run with "
        "CAP_SYS_ADMIN",
    ),
    (
        rb"(?i)driver resource was unavailable",
        "something else holds the GPU's counters, most often DCGM monitoring (driver resource was unavailable). "
        "Stop it with dcgmi profile --pause and start it again with --resume, or ask the site (Slurm: --disable-dcgm)",
    ),
    (
        rb"(?i)nsight-compute-lock|[^\r\n]*InterprocessLockFailed",
        "ncu's lock file (nsight-compute-lock in TMPDIR) belongs to somebody else. Set TMPDIR to a folder of your own",
    ),
    (
        rb"(?i)profiling is not supported on (?:this )?device|GPU architecture is not supported",
        "this ncu does not know the GPU. Install a newer Nsight Compute",
    ),
)
_NO_KERNELS = (
    "ncu profiled no kernels: none was launched on a GPU between cudaProfilerStart and cudaProfilerStop. Check with "
    "perfctl doctor that the driver works here"
)


@dataclass(frozen=True, slots=True)
class Ncu:
    """``ncu`` over the measured steps, then its report as CSV."""

    metrics: str = "flops"
    """A set of ncu_metrics.SETS, or metric names with commas between."""
    clock_control: str = "base"
    """base locks the clocks, which makes counts per second comparable; none leaves them."""
    cache_control: str = "all"
    """all flushes caches before each pass; none leaves them warm."""
    kernel: str | None = None
    """Only kernels of this name, or regex:EXPRESSION; None for all."""
    skip: int | None = None
    """Matching launches to let pass first."""
    count: int | None = None
    """Matching launches to profile at most."""
    layers: tuple[str, ...] = ()
    """Only launches of these layers and of the layers inside them; empty for all."""
    extra: tuple[str, ...] = ()
    """Further options of ncu, as they are."""

    def __post_init__(self) -> None:
        ncu_metrics.check(self.metrics)
        for layer in self.layers:
            ncu_ranges.check(layer)
        if self.clock_control not in ("base", "none"):
            raise UsageError(f"--clock-control {self.clock_control} is not known", "Say base or none")
        if self.cache_control not in ("all", "none"):
            raise UsageError(f"--cache-control {self.cache_control} is not known", "Say all or none")

    @property
    def name(self) -> str:
        return "ncu"

    def missing(self) -> tuple[Tool, ...]:
        lacking = () if tools.find("ncu") else (TOOL,)
        return (*lacking, *(() if tools.has_gpu_driver() else (DRIVER,)), *tools.missing_torch())

    def commands(self, request: RunRequest) -> tuple[Command, ...]:
        """Each rank of a launcher has a report of its own, and its counts. Raises UsageError on a CPU: nothing to count."""
        if request.device != "cuda":
            raise UsageError("ncu counts on GPUs only", "Add --device cuda, or use perfctl torch on a CPU")
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
        # Any other locale would group digits, on the raw page even ambiguously (2022.3).
        exports = [Command(words, "export", {"LC_ALL": "C"}, needs=report) for words in (table, others)[: 1 + ranks]]
        return Command(argv, "profile"), *exports

    def _no_kernels(self) -> str:
        if not self.layers:
            return _NO_KERNELS
        return (
            f"ncu profiled no kernels inside the ranges of --layer {', '.join(self.layers)}. perfctl nsys or perfctl torch "
            "shows the names of all layers (perfctl show RUN)"
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
        """The CSV; the report itself when that could not be printed, for it can still be read with ncu_report."""
        table, report = paths.report(".csv"), paths.report(".ncu-rep")
        return report if report.exists() and not _is_table(table) else table

    def judge(self, request: RunRequest, outcomes: tuple[Outcome, ...]) -> Verdict:
        first = outcomes[0]
        program = evidence.program_failure(request, first, tool_codes=_SIGNAL_CODES)
        problem = self.artifact_problem(request, outcomes)
        if problem is not None:
            return Verdict("failed", _cause(first) or program or problem)
        if program is not None:
            return Verdict("partial", f"{program}. The report holds the kernels until then")
        if not _is_table(request.paths.report(".csv")):
            return Verdict("partial", _no_table(outcomes))
        failed = _errors(first)
        return Verdict("partial", f"ncu went on after an error: {failed[0]}") if failed else Verdict("ok", None)

    def artifact_problem(self, request: RunRequest, outcomes: tuple[Outcome, ...]) -> str | None:
        """Why there is no report to read: cause and remedy; None when there is one."""
        report, table = request.paths.report(".ncu-rep"), request.paths.report(".csv")
        fresh = report.exists() and not evidence.is_older_than_run(report, request.paths)
        if fresh and evidence.starts_with(report, b"NVR\0"):
            return None
        if not report.exists() and _is_table(table) and not evidence.is_older_than_run(table, request.paths):
            return None
        if report.exists():
            return f"{report.name} is damaged or older than this run. Remove it and run it again"
        return _cause(outcomes[0]) or self._no_kernels()


def _named(report: Path, mark: str) -> Path:
    return report.with_name(f"{report.stem}{mark}{report.suffix}")


def _is_table(path: Path) -> bool:
    """A header and at least one launch; ncu's log file may hold an error in its place."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        return any(line.startswith(b'"ID","Process ID"') for line in file)


def _cause(outcome: Outcome) -> str | None:
    """Why ncu left no report, from its own words; None when it says nothing."""
    for pattern, sentence in _CAUSES:
        if any(evidence.find_lines(log, pattern, 1) for log in (outcome.stdout, outcome.stderr)):
            return sentence
    errors = _errors(outcome)
    return f"ncu said: {errors[0]}" if errors else None


def _errors(outcome: Outcome) -> list[str]:
    """ncu's own error lines; that the program failed is not among them, its own output says it better."""
    lines = [line for log in (outcome.stdout, outcome.stderr) for line in evidence.find_lines(log, rb"==ERROR== ")]
    words = [line.partition("==ERROR== ")[2] for line in lines]
    return [line for line in words if "application returned an error code" not in line]


def _no_table(outcomes: tuple[Outcome, ...]) -> str:
    said = next((line for outcome in outcomes[1:] for line in _words(outcome)), "")
    return (
        f"the report is whole, but this ncu could not print it as CSV{': ' + said if said else ''}. It is read with "
        "NVIDIA's reader where that is installed (pip install 'perfctl[ncu]')"
    )


def _words(outcome: Outcome) -> list[str]:
    return [line for line in (evidence.last_line(outcome.stderr), evidence.last_line(outcome.stdout)) if line]
