"""Run Nsight Compute: counters of every kernel launch, in a .ncu-rep with NVTX ranges.

A second command exports it as CSV, which needs no NVIDIA software to read: raw page, one row
per launch.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Annotated, ClassVar

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.process.progress import StallRule
from perfctl.orchestrator.launch.profilers import base, counters
from perfctl.orchestrator.launch.profilers import outcome as evidence
from perfctl.orchestrator.launch.profilers.base import Command, ProcessOutcome, RequiredTool
from perfctl.orchestrator.launch.profilers.counters import raise_if_metric_names_malformed
from perfctl.orchestrator.launch.profilers.outcome import ReportProblem, ToolProfiler
from perfctl.orchestrator.launch.sweep.folders import LAUNCHES, RunPaths, read_json_object
from perfctl.orchestrator.launch.sweep.request import SweepRequest, format_option_words
from perfctl.orchestrator.options import Option
from perfctl.workloads.spec import RANK

COMMUNICATION = (
    "nccl|rccl|nvshmem|msccl|deep_?ep|cross_device_reduce|quick_?reduce|all_?reduce|all_?gather|"
    "reduce_?scatter|all_?to_?all|lamport|multimem|userbuffers|symm_mem|barrier_kernel|(?:put|wait)"
    "_signal_kernel"
)
"""Names of kernels that wait for another GPU: NCCL (ncclDevKernel_*, ncclKernel_*), NVSHMEM, MSCCL,
DeepEP, the custom all-reduces of vLLM, SGLang (cross_device_reduce), TensorRT-LLM
(oneShotAllReduceKernel, lamport), Transformer Engine (userbuffers) and torch's symmetric memory
(multimem). ncu replays a kernel on its own GPU only: it would wait for ever."""
_REGEX = "regex:"
_APART = ("range", "app-range")
"""Replay modes whose result is the whole window; filters by kernel do not apply, and collectives
run as they would."""
REPLAY_MODES = ("kernel", "application", *_APART)

PROFILING = rb"^==PROF== Profiling "
"""ncu's line for each launch; it appears when the first replay begins."""
STALL_S = 600.0
"""A launch whose replay takes longer than this is stuck."""

DIRECTIONS = ("forward", "grad_input", "grad_weight", "grad_bias", "backward", "recompute")
"""Endings of a layer's ranges. The optimizer updates all layers at once and has a
separate range."""

TOOL = RequiredTool(
    "ncu",
    "Nsight Compute counts the instructions that each kernel executed",
    "install NVIDIA Nsight Compute 2022.1 or newer (Debian 12 and 13: "
    "scripts/setup/install_nsight_debian.sh)",
    "perfctl nsys and perfctl torch measure times and estimate FLOPs; only ncu measures executed "
    "FLOPs",
)
DRIVER = RequiredTool(
    "an NVIDIA driver",
    "ncu reads the counters of NVIDIA GPUs",
    "run it on a machine with an NVIDIA GPU",
    "perfctl torch --device cpu times layers, and estimates of FLOPs need no device",
)

_CAUSES = {
    rb"ERR_NVGPUCTRPERM": (
        "the driver lets only administrators read GPU counters (ERR_NVGPUCTRPERM). Ask for the "
        "module option NVreg_RestrictProfilingToAdminUsers=0 (RmProfilingAdminOnly: 0 in "
        "/proc/driver/nvidia/params), or run with CAP_SYS_ADMIN"
    ),
    rb"(?i)driver resource was unavailable": (
        "another program holds the GPU's counters, usually DCGM monitoring (driver resource was "
        "unavailable). Pause it with dcgmi profile --pause and resume it with --resume, or ask the "
        "site (Slurm: --disable-dcgm)"
    ),
    rb"(?i)nsight-compute-lock|[^\r\n]*InterprocessLockFailed": (
        "ncu's lock file (nsight-compute-lock in TMPDIR) belongs to another user. Set TMPDIR to "
        "your own folder"
    ),
    rb"(?i)profiling is not supported on (?:this )?device|GPU architecture is not supported": (
        "this ncu does not support the GPU. Install a newer Nsight Compute"
    ),
}
"""Pattern in ncu's output -> cause and remedy."""

STEPS = 1
"""Measured steps by default: counts repeat, and every launch is replayed for each."""
FIRST_PASS = "first-pass"  # noqa: S105  # nosec B105
"""Folder in a sweep's folder with what the plain step of each batch size launched."""

RESERVED = {
    "perfctl sets the name of the report and reads it": (
        *("--export", "-o", "--force-overwrite", "-f"),
    ),
    "it reads a report instead of writing one": ("--import", "-i", "--open-in-ui"),
    "perfctl reads ncu's messages to explain errors": ("--log-file", "--quiet"),
    "perfctl exports the table itself, from the report": ("--csv", "--page"),
    "perfctl must know the counters; it has an option of that name": ("--metrics",),
    "perfctl has an option of that name, which leaves communication kernels out": (
        *("--kernel-name", "-k"),
    ),
    "perfctl leaves communication kernels out by their function names": ("--kernel-name-base",),
    "perfctl has an option of that name, and reads the report accordingly": ("--replay-mode",),
    "the measured steps call cudaProfilerStart": (
        *("--profile-from-start", "--disable-profiler-start-stop"),
    ),
    "perfctl starts and ends the program": (
        *("--mode", "--kill", "--config-file", "--config-file-path"),
    ),
    "it prints information and counts nothing": (
        *("--query-metrics", "--query-metrics-mode", "--list-metrics", "--list-sets"),
        *("--list-sections", "--list-chips", "--list-rules", "--help", "-h", "--version", "-v"),
    ),
}
"""Reason -> options of ncu that ``extra`` cannot have."""
_LONG_NAMES = {"-c": "--launch-count", "-s": "--launch-skip", "-k": "--kernel-name"}
_FILTERS = (
    "--launch-skip",
    "--launch-skip-before-match",
    "--launch-count",
    "--kernel-name",
    "--kernel-id",
    "--nvtx-include",
    "--nvtx-exclude",
)
"""Options of ncu that leave launches out of its report."""


def build_noncommunication_kernel_filter(kernel_name: str | None) -> str:
    """Return the value of --kernel-name: every kernel but those of COMMUNICATION, and of the others
    the ones with ``kernel_name`` (a name, or ``regex:EXPRESSION``). ncu reads Perl expressions and
    searches in the name (2022.3 to 2024.1). Raises UsageError for the name of a communication
    kernel."""
    without = f"(?!.*(?i:{COMMUNICATION}))"
    if kernel_name is None:
        return f"{_REGEX}^{without}"
    if kernel_name.startswith(_REGEX):
        return f"{_REGEX}^{without}(?=.*(?:{kernel_name.removeprefix(_REGEX)}))"
    if re.search(COMMUNICATION, kernel_name, re.IGNORECASE):
        raise UsageError(
            f"`kernel_name`: {kernel_name} waits for other GPUs, so its replay on one GPU would "
            "never end",
            "Time it with perfctl nsys, or use `replay_mode` range to measure the capture range",
        )
    return kernel_name


def find_user_launch_filters(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the options of a command of ncu that leave launches out. perfctl's own filter of
    communication kernels is none: every command has it, and no product is one."""
    of_ncu = list(takewhile(lambda argument: argument != "-m", argv))
    used: dict[str, None] = {}
    for index, argument in enumerate(of_ncu):
        option, is_joined, value = argument.partition("=")
        option = _LONG_NAMES.get(option, option)
        if option == "--kernel-name" and not is_joined:
            value = "".join(of_ncu[index + 1 : index + 2])
        is_own = value.startswith(f"{_REGEX}^(?!.*(?i:nccl") and "(?=" not in value
        if option in _FILTERS and not (option == "--kernel-name" and is_own):
            used[option] = None
    return tuple(used)


def make_ncu_csv_export_command(report: Path, table: Path) -> tuple[str, ...]:
    """Return the command that exports a report's raw page, in base units, to a CSV file. Run it
    with LC_ALL=C. A second --nvtx is an error (2022.3): the report has the ranges."""
    options = ("--csv", "--page", "raw", "--print-units", "base", "--log-file", str(table))
    return ("ncu", "--import", str(report), *options)


def raise_if_layer_name_invalid(layer: str) -> None:
    """Raise UsageError for a name that cannot be turned into an expression."""
    if not layer.strip() or layer.startswith(_REGEX):
        remedy = "Use a name that perfctl show prints, for example conv2"
        raise UsageError(f"`layer`: {layer!r} is not a layer name", remedy)


def build_nvtx_filters_of_layer(layer: str) -> tuple[str, ...]:
    """Return the expressions for one layer: each of its directions, and a regular expression for
    longer names.

    ``conv2`` also matches ``model.conv2`` and sublayers, whose backward ranges stand alone.
    Everything but letters, digits and dots becomes "some characters", which can only match too
    much. Raises UsageError like ``raise_if_layer_name_invalid``.
    """
    raise_if_layer_name_invalid(layer)
    exact = tuple(f"{escape_nvtx_range_name(layer)}:{direction}/" for direction in DIRECTIONS)
    pattern = re.sub(
        r"[^A-Za-z0-9_-]+", lambda match: "[.]" if match.group() == "." else ".+", layer
    )
    return (*exact, f"{_REGEX}(.+[.])?{pattern}([.].+)?:({'|'.join(DIRECTIONS)})/")


def escape_nvtx_range_name(name: str) -> str:
    """Return a range's name with a backslash before each character that ncu treats as special."""
    return re.sub(r"[@,\[\]/*+\\]", r"\\\g<0>", name)


def repeat_option(option: str, values: Iterable[str]) -> tuple[str, ...]:
    """Return the option before each of the values."""
    return tuple(argument for value in values for argument in (option, value))


def read_repeated_layer_range_filters(first_pass_file: Path) -> list[str]:
    """Return the ranges of layers that repeat another, from the file of the first pass. Only
    launches whose innermost range it is: a layer's range encloses those of the layers inside it."""
    twins = (read_json_object(first_pass_file) or {}).get("twins") or ()
    return [f"{escape_nvtx_range_name(f'{row[0]}:{row[1]}')}]" for row in twins]


def parse_all_or_rank_zero(text: str) -> bool:
    """Return whether "all" was said, and not "0". Raises UsageError for another word."""
    if text not in ("0", "all"):
        raise UsageError(f"`ranks` must be 0 or all, got {text}")
    return text == "all"


@dataclass(frozen=True)
class Ncu(ToolProfiler):
    """Nsight Compute: what every kernel executed, by hardware counters."""

    name: ClassVar[str] = "ncu"
    partial_note: ClassVar[str] = "The profiler report has the kernels up to then"
    # ncu 2022.3 exits with the bare number of the signal that ended the program
    exit_codes: ClassVar[Mapping[int, str]] = {
        11: "crashed (segmentation fault)",
        9: "was killed (SIGKILL), usually because memory ran out or the run was stopped",
    }
    metrics: Annotated[
        str,
        Option(
            "Counters to collect: flops (all counters needed for FLOPs), fadd, or a "
            "comma-separated list of ncu metrics.",
            "What to measure",
            metavar="NAMES",
            is_common=True,
        ),
    ] = "flops"
    clock_control: Annotated[
        str,
        Option(
            "Clock control of ncu: base (locked clocks), none, or boost (newer ncu).",
            "Profiler",
            metavar="MODE",
        ),
    ] = "base"
    """base makes times comparable."""
    cache_control: Annotated[
        str,
        Option(
            "Cache control of ncu: all (flush before each pass) or none.",
            "Profiler",
            metavar="MODE",
        ),
    ] = "all"
    kernel_name: Annotated[
        str | None,
        Option(
            "Count only this kernel, or regex:EXPRESSION.",
            "What to measure",
            names=("--kernel-name", "-k"),
            metavar="NAME",
        ),
    ] = None
    """None for all but those that wait for other GPUs."""
    launch_skip: Annotated[
        int | None, Option("Number of matching launches to skip first.", "What to measure", least=0)
    ] = None
    launch_count: Annotated[
        int | None,
        Option("Maximum number of matching launches to count.", "What to measure", least=1),
    ] = None
    layers: Annotated[
        tuple[str, ...],
        Option(
            "Count only in this layer and the layers inside it (repeatable).",
            "What to measure",
            names=("--layer",),
            metavar="NAME",
            is_common=True,
        ),
    ] = ()
    replay_mode: Annotated[
        str,
        Option(
            "kernel, application (one program run per pass), range or app-range (capture range as "
            "one, with collectives; no layers, no FADD, FMUL, FFMA).",
            "Profiler",
            metavar="MODE",
        ),
    ] = "kernel"
    """range and app-range count hardware counters only: ncu refuses SASS metrics there (2022.3 and
    2024.1)."""
    graph_profiling: Annotated[
        str | None,
        Option(
            "Count each kernel of a CUDA graph, or the graph as one unit.",
            "Profiler",
            metavar="MODE",
        ),
    ] = None
    section: Annotated[
        tuple[str, ...],
        Option(
            "Also collect this ncu section, for viewing in the ncu UI (repeatable).",
            "Profiler",
            metavar="NAME",
        ),
    ] = ()
    section_set: Annotated[
        str | None,
        Option(
            "Also collect this set of ncu sections: basic, full or roofline.",
            "Profiler",
            names=("--set",),
            metavar="NAME",
        ),
    ] = None
    launches: Annotated[
        str,
        Option(
            "all, or distinct: profile one of several identical layers and reuse its counts for "
            "the others (marked ~). Runs one extra step without ncu.",
            "What to measure",
            metavar="WHICH",
        ),
    ] = "all"
    first_pass: Path | None = None
    """Folder with b16.json and so on, which say what the plain step launched; None without one."""
    all_ranks: Annotated[
        bool,
        Option(
            "Ranks to count: 0 or all; other ranks run without ncu. Default: 0.",
            "What to measure",
            names=("--ranks",),
            metavar="RANKS",
            parse=parse_all_or_rank_zero,
            write=lambda is_all: "all" if is_all else "0",
        ),
    ] = False
    extra: base.ToolArgs = ()

    def __post_init__(self) -> None:
        raise_if_metric_names_malformed(self.metrics)
        for layer in self.layers:
            raise_if_layer_name_invalid(layer)
        choices_of = {
            "clock_control": ("base", "none", "boost"),
            "cache_control": ("all", "none"),
            "replay_mode": REPLAY_MODES,
            "graph_profiling": (None, "node", "graph"),
            "launches": ("all", "distinct"),
        }
        for field, choices in choices_of.items():
            if (value := getattr(self, field)) not in choices:
                raise UsageError(
                    f"`{field}` must be {' or '.join(filter(None, choices))}, got {value}"
                )
        for field, least in (("launch_skip", 0), ("launch_count", 1)):
            if (number := getattr(self, field)) is not None and number < least:
                raise UsageError(f"`{field}` must be at least {least}, got {number}")
        build_noncommunication_kernel_filter(self.kernel_name)
        if self.launches == "distinct" and (self.all_ranks or self.replay_mode != "kernel"):
            raise UsageError(
                "`launches` distinct needs kernel replay and one rank", "Use `launches` all"
            )
        if self.replay_mode in _APART and (self.kernel_name or self.layers):
            problem = (
                f"`replay_mode` {self.replay_mode} measures the capture range as one unit, without "
                "single kernels or layers"
            )
            raise UsageError(problem, "Omit `kernel_name` and `layers`")
        if self.replay_mode in _APART and (
            self.metrics in counters.SETS or "__sass_" in self.metrics
        ):
            problem = (
                f"`replay_mode` {self.replay_mode} cannot count FADD, FMUL and FFMA: ncu refuses "
                "SASS metrics in ranges"
            )
            remedy = (
                "Set other metrics with `metrics`, for example "
                "dram__bytes_read.sum,sm__inst_executed_pipe_tensor.sum"
            )
            raise UsageError(problem, remedy)
        base.reject_reserved_options("ncu", self.extra, RESERVED)

    def list_missing_tools(self) -> tuple[RequiredTool, ...]:
        lacking = () if tools.find_program("ncu") else (TOOL,)
        return (
            *lacking,
            *(() if tools.has_gpu_driver() else (DRIVER,)),
            *tools.list_missing_tool_and_torch(),
        )

    def build_commands(self, request: SweepRequest) -> tuple[Command, ...]:
        """Return them; each rank of a launcher gets its own report. Raises UsageError on a CPU."""
        if request.device != "cuda":
            raise UsageError(
                "ncu needs a GPU", "Set `device` to cuda, or use perfctl torch on a CPU"
            )
        report = request.paths.get_report_path(".ncu-rep")
        name = f"{report.stem}{RANK}{report.suffix}" if request.is_rank_launcher else report.name
        choice = counters.choose_counters(
            self.metrics, request.visible_devices, request.container_prefix
        )
        by_kernel = self.replay_mode not in _APART
        plan = self.first_pass / f"{request.setting.file_name}.json" if self.first_pass else None
        modes = {
            "--target-processes": "all",
            # a range is what cudaProfilerStart and Stop enclose
            "--profile-from-start": "off" if by_kernel and not request.is_uninstrumented else None,
            "--clock-control": self.clock_control,
            "--cache-control": self.cache_control,
            "--replay-mode": None if self.replay_mode == "kernel" else self.replay_mode,
            "--metrics": ",".join(choice.names),
        }
        limits = {
            "--kernel-name": build_noncommunication_kernel_filter(self.kernel_name)
            if by_kernel
            else None,
            "--launch-skip": self.launch_skip,
            "--launch-count": self.launch_count,
            "--graph-profiling": self.graph_profiling,
            "--set": self.section_set,
        }
        ranges = [
            expression for layer in self.layers for expression in build_nvtx_filters_of_layer(layer)
        ]
        defaults = (
            "--force-overwrite",
            "--export",
            str(report.with_name(name)).replace("%", "%%"),
            "--nvtx",
            *format_option_words(modes),
            *repeat_option("--nvtx-include", ranges),
            *repeat_option(
                "--nvtx-exclude", read_repeated_layer_range_filters(plan) if plan else ()
            ),
            *format_option_words(limits),
            *repeat_option("--section", self.section),
        )
        profile = ("ncu", *base.merge_options_preferring_user(defaults, self.extra, _LONG_NAMES))
        ranks = None if self.all_ranks else 0
        argv = request.build_workload_command(
            layer_marking="nvtx",
            step_window_method="cuda",
            profiler_prefix=profile,
            only_rank=ranks,
        )
        facts = {"ncu:metrics": ",".join(choice.names), "ncu:metrics_chosen": choice.reason}
        facts |= (
            {"ncu:not_replayed": COMMUNICATION} if by_kernel and request.is_rank_launcher else {}
        )
        facts |= {"ncu:ranks": "all" if self.all_ranks else "0"} if request.is_rank_launcher else {}
        table = make_ncu_csv_export_command(report, request.paths.get_report_path(".csv"))
        is_own = request.annotator_archive is not None or request.is_uninstrumented
        python = sys.executable if is_own else request.interpreter
        rank_tables = (
            python,
            "-m",
            "perfctl.orchestrator.launch.profilers.rank_tables",
            str(report),
        )
        # Other locales group digits, ambiguously on the raw page (2022.3).
        exported = (table, rank_tables) if request.is_rank_launcher and self.all_ranks else (table,)
        first = Command(
            argv,
            "profile",
            facts=facts,
            note=None if choice.queried else f"counters: {choice.reason}",
            brings={LAUNCHES: plan} if plan else {},
            stall=StallRule(STALL_S, after=PROFILING),
        )
        return first, *(
            Command(arguments, "export", {"LC_ALL": "C"}, report) for arguments in exported
        )

    def get_report_path(self, paths: RunPaths) -> Path:
        """Return the CSV, or the .ncu-rep when the export failed: ncu_report can still read it."""
        table, report = paths.get_report_path(".csv"), paths.get_report_path(".ncu-rep")
        return report if report.exists() and not _is_raw_page_csv(table) else table

    def describe_report_gap(
        self, request: SweepRequest, outcomes: tuple[ProcessOutcome, ...]
    ) -> str | None:
        if not _is_raw_page_csv(request.paths.get_report_path(".csv")):
            message = next(filter(None, map(evidence.read_last_output_line, outcomes[1:])), None)
            detail = f": {message}" if message else ""
            return (
                "the profiler report is complete, but this ncu could not export it as "
                f"CSV{detail}. perfctl reads it with NVIDIA's reader (pip install 'perfctl[ncu]')"
            )
        error = _find_first_ncu_error_line(outcomes[0])
        return f"ncu reported an error and continued: {error}" if error else None

    def find_report_problem(
        self, request: SweepRequest, outcomes: tuple[ProcessOutcome, ...]
    ) -> ReportProblem | None:
        report, table = (
            request.paths.get_report_path(".ncu-rep"),
            request.paths.get_report_path(".csv"),
        )
        has_report = report.exists()
        artifact = report if has_report else table
        is_readable = _is_ncu_report(report) if has_report else _is_raw_page_csv(table)
        if is_readable and not evidence.is_older_than_run(artifact, request.paths):
            return None
        if cause := _explain_missing_report(outcomes[0]):
            return ReportProblem(cause, is_of_tool=True)
        if has_report:
            return ReportProblem(
                f"{report.name} is damaged or older than this run. Remove it and run again"
            )
        if self.kernel_name is not None:
            return ReportProblem(
                "ncu profiled no kernels: none in the measured steps matches `kernel_name` "
                f"{self.kernel_name}"
            )
        if self.layers:
            return ReportProblem(
                f"ncu profiled no kernels in the selected layers ({', '.join(self.layers)}). For "
                "the names of all layers, run perfctl nsys or perfctl torch, then perfctl show RUN"
            )
        return ReportProblem(
            "ncu profiled no kernels: none was launched between cudaProfilerStart and "
            "cudaProfilerStop. Check the driver with perfctl doctor"
        )


def _is_ncu_report(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"NVR\0"


def _is_raw_page_csv(path: Path) -> bool:
    """Return whether it has the header of the raw page; ncu's log file may hold an error message
    instead."""
    return bool(evidence.find_matching_log_lines(path, rb'^"ID","Process ID"', 1))


def _explain_missing_report(outcome: ProcessOutcome) -> str | None:
    """Return why ncu left no report, according to its output; None when it printed nothing."""
    for pattern, cause in _CAUSES.items():
        if evidence.has_matching_output_line(outcome, pattern):
            return cause
    error = _find_first_ncu_error_line(outcome)
    return f"ncu printed: {error}" if error else None


def _find_first_ncu_error_line(outcome: ProcessOutcome) -> str | None:
    """ncu's first error line that is not about the program's exit code: the program's output
    says more."""
    lines = [
        line
        for log in (outcome.stdout, outcome.stderr)
        for line in evidence.find_matching_log_lines(log, rb"==ERROR== ")
    ]
    messages = (line.partition("==ERROR== ")[2] for line in lines)
    return next(
        (line for line in messages if "application returned an error code" not in line), None
    )
