"""Run Nsight Compute: counters of every kernel launch, in a .ncu-rep with NVTX ranges.

A second command exports it as CSV, which needs no NVIDIA software to read: raw page, one row per launch.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.profilers import outcome as evidence
from perfctl.orchestrator.launch.profilers.base import Command, Outcome, RunRequest, Tool, Verdict
from perfctl.orchestrator.launch.sweep.folders import RunPaths
from perfctl.workloads.spec import RANK

SETS = ("flops", "fadd")
"""flops: everything to count executed FLOPs, time and DRAM traffic. fadd: only the counter of the MNIST study."""

_SASS = "smsp__sass_thread_inst_executed_op_{}_pred_on"
FADD = f"{_SASS.format('fadd')}.sum"
CORE = tuple(
    f"{_SASS.format(width + operation)}.sum" for width in ("f", "h", "d") for operation in ("add", "mul", "fma")
)
TENSOR = "sm__inst_executed_pipe_tensor.sum"
TRAFFIC = ("gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum")
PORTABLE = (*CORE, TENSOR, *TRAFFIC)
"""In every ncu since 2020 for every chip since Volta."""

_PACKED = re.compile(_SASS.format("[fhd](?:add|mul|fma)2"))
"""Two lanes per instruction: fp32 on Blackwell."""
_TENSOR_PATH = re.compile(r"sm__ops_path_tensor_src_\w+")
"""Operations of the tensor cores. Names ending in sparsity_on and sparsity_off are parts of the one without; a name
without ``_dst_`` is the sum of those with it."""
_SPARSITY = re.compile(r"_sparsity_o(?:n|ff)$")
_CONSTANT_MOVES = "sm__inst_executed_pipe_tensor_op_hmma_type_hfma2"
"""HFMA2.MMA instructions, which compilers use to move constants: not arithmetic (ga100, gh100)."""

_CHIPS = {
    "7.0": "gv100", "7.2": "gv11b", "7.5": "tu102", "8.0": "ga100", "8.6": "ga102", "8.7": "ga10b", "8.9": "ad102",
    "9.0": "gh100", "10.0": "gb100", "12.0": "gb202",
}  # fmt: skip
"""Compute capability -> name in ``ncu --list-chips``; chips of one capability have the same counters."""


def metrics(asked: str) -> tuple[str, ...]:
    """The counters for ``asked``: a set's name, or names separated by commas. Raises UsageError like ``check``."""
    check_metrics(asked)
    if asked == "fadd":
        return (FADD,)
    if asked == "flops":
        return flops(chip())
    return tuple(asked.split(","))


def check_metrics(asked: str) -> None:
    """Raises UsageError unless ``asked`` is a set or a list of well-formed names."""
    if not all(re.fullmatch(r"[A-Za-z0-9_.:]+", name) for name in asked.split(",")):
        remedy = f"Use {' or '.join(SETS)}, or names printed by ncu --query-metrics, separated by commas"
        raise UsageError(f"`metrics`: {asked!r} is not a list of metric names", remedy)


def flops(chip_name: str | None) -> tuple[str, ...]:
    """The counters that give a chip's FLOPs; PORTABLE when no installed ncu lists the chip's counters."""
    known = chip_metrics(chip_name) if chip_name else frozenset()
    if not known:
        return PORTABLE
    packed = sorted(filter(_PACKED.fullmatch, known))
    wanted = (*PORTABLE, *(f"{name}.sum" for name in (*packed, *_tensor_paths(known), _CONSTANT_MOVES)))
    return tuple(name for name in wanted if name.removesuffix(".sum") in known)


def _tensor_paths(known: frozenset[str]) -> list[str]:
    """Each type once: its names with ``_dst_`` if it has any, its sparsity parts if it has no total (fp8)."""
    paths = set(filter(_TENSOR_PATH.fullmatch, known))
    whole = [name for name in paths if (bare := _SPARSITY.sub("", name)) == name or bare not in paths]
    return sorted(name for name in whole if not any(other.startswith(f"{name}_dst_") for other in whole))


@cache
def chip() -> str | None:
    """ncu's name for the chip of the first GPU; None without a GPU, or when _CHIPS lacks it."""
    answer = tools.ask("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader").split()
    return _CHIPS.get(answer[0]) if answer else None


@cache
def chip_metrics(chip_name: str) -> frozenset[str]:
    """Base names of all counters of a chip; empty when ncu is missing or does not know the chip."""
    return read_metrics(tools.ask("ncu", "--query-metrics", "--chips", chip_name))


def read_metrics(text: str) -> frozenset[str]:
    """Metric names in the output of ``ncu --query-metrics``: first column of a table whose descriptions wrap."""
    return frozenset(re.findall(r"^([a-z][a-z0-9]*__\w+)\s", text, re.MULTILINE))


def as_table(report: Path, table: Path) -> tuple[str, ...]:
    """The command that exports a report's raw page, in base units, to a CSV file. Run it with LC_ALL=C. A second --nvtx
    is an error (2022.3): the report has the ranges."""
    options = ("--csv", "--page", "raw", "--print-units", "base", "--log-file", str(table))
    return ("ncu", "--import", str(report), *options)


DIRECTIONS = ("forward", "grad_input", "grad_weight", "grad_bias", "backward", "recompute")
"""Endings of a layer's ranges. The optimizer updates all layers at once and has a separate range."""

_REGEX = "regex:"


def check_ranges(layer: str) -> None:
    """Raises UsageError for a name that cannot be turned into an expression."""
    if not layer.strip() or layer.startswith(_REGEX):
        remedy = "Use names as printed by perfctl show, for example conv2"
        raise UsageError(f"`layer`: {layer!r} is not a layer name", remedy)


def includes(layer: str) -> tuple[str, ...]:
    """The expressions for one layer: each of its directions, and a regular expression for longer names.

    ``conv2`` also matches ``model.conv2`` and sublayers, whose backward ranges stand alone. Everything but letters, digits
    and dots becomes "some characters", which can only match too much. Raises UsageError like ``check_ranges``.
    """
    check_ranges(layer)
    own = tuple(f"{escaped(layer)}:{direction}/" for direction in DIRECTIONS)
    pattern = re.sub(r"[^A-Za-z0-9_-]+", lambda found: "[.]" if found.group() == "." else ".+", layer)
    return (*own, f"{_REGEX}(.+[.])?{pattern}([.].+)?:({'|'.join(DIRECTIONS)})/")


def escaped(name: str) -> str:
    """A range's name with a backslash before each character that ncu treats as special."""
    return re.sub(r"[@,\[\]/*+\\]", r"\\\g<0>", name)


def range_options(layers: tuple[str, ...]) -> tuple[str, ...]:
    """One ``--nvtx-include`` per expression; nothing without layers."""
    return tuple(word for layer in layers for expression in includes(layer) for word in ("--nvtx-include", expression))


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

_CAUSES = {
    rb"ERR_NVGPUCTRPERM": (
        "the driver lets only administrators read GPU counters (ERR_NVGPUCTRPERM). Ask for the module option "
        "NVreg_RestrictProfilingToAdminUsers=0 (RmProfilingAdminOnly: 0 in /proc/driver/nvidia/params), or run with "
        "CAP_SYS_ADMIN"
    ),
    rb"(?i)driver resource was unavailable": (
        "another program holds the GPU's counters, usually DCGM monitoring (driver resource was unavailable). Pause it with "
        "dcgmi profile --pause and resume it with --resume, or ask the site (Slurm: --disable-dcgm)"
    ),
    rb"(?i)nsight-compute-lock|[^\r\n]*InterprocessLockFailed": (
        "ncu's lock file (nsight-compute-lock in TMPDIR) belongs to another user. Set TMPDIR to a folder of your own"
    ),
    rb"(?i)profiling is not supported on (?:this )?device|GPU architecture is not supported": (
        "this ncu does not support the GPU. Install a newer Nsight Compute"
    ),
}
"""Pattern in ncu's output -> cause and remedy."""


@dataclass(frozen=True, slots=True)
class Ncu:
    """``ncu`` over the measured steps, then its report exported as CSV."""

    name: ClassVar[str] = "ncu"
    metrics: str = "flops"
    """One of SETS, or metric names separated by commas."""
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
        check_metrics(self.metrics)
        for layer in self.layers:
            check_ranges(layer)
        for field, usual in (("clock_control", "base"), ("cache_control", "all")):
            if getattr(self, field) not in (usual, "none"):
                raise UsageError(f"`{field}` must be {usual} or none, got {getattr(self, field)}")

    def missing(self) -> tuple[Tool, ...]:
        lacking = () if tools.find("ncu") else (TOOL,)
        return (*lacking, *(() if tools.has_gpu_driver() else (DRIVER,)), *tools.missing())

    def commands(self, request: RunRequest) -> tuple[Command, ...]:
        """Every rank of a launcher gets its own report. Raises UsageError on a CPU, which ncu does not support."""
        if request.device != "cuda":
            raise UsageError("ncu needs a GPU", "Set `device` to cuda, or use perfctl torch on a CPU")
        report = request.paths.report(".ncu-rep")
        name = f"{report.stem}{RANK}{report.suffix}" if request.has_ranks else report.name
        profile = (
            "ncu",
            "--force-overwrite",
            "--export", str(report.with_name(name)).replace("%", "%%"),
            "--nvtx",
            "--target-processes", "all",
            "--profile-from-start", "off",
            "--clock-control", self.clock_control,
            "--cache-control", self.cache_control,
            "--metrics", ",".join(metrics(self.metrics)),
            *range_options(self.layers),
            *(("--kernel-name", self.kernel) if self.kernel is not None else ()),
            *(("--launch-skip", str(self.skip)) if self.skip is not None else ()),
            *(("--launch-count", str(self.count)) if self.count is not None else ()),
            *self.extra,
        )  # fmt: skip
        argv = request.workload_command(annotate="nvtx", window="cuda", under=profile)
        table = as_table(report, request.paths.report(".csv"))
        own = request.python if request.annotator is None else sys.executable
        others = (own, "-m", "perfctl.orchestrator.launch.profilers.rank_tables", str(report))
        # Other locales group digits, ambiguously on the raw page (2022.3).
        exported = (table, others) if request.has_ranks else (table,)
        return Command(argv, "profile"), *(Command(words, "export", {"LC_ALL": "C"}, report) for words in exported)

    def artifact(self, paths: RunPaths) -> Path:
        """The CSV, or the .ncu-rep when the export failed: ncu_report can still read it."""
        table, report = paths.report(".csv"), paths.report(".ncu-rep")
        return report if report.exists() and not _is_table(table) else table

    def judge(self, request: RunRequest, outcomes: tuple[Outcome, ...]) -> Verdict:
        first = outcomes[0]
        program = evidence.program_failure(request, first, tool_codes=_SIGNAL_CODES)
        if problem := self.artifact_problem(request, outcomes):
            return Verdict("failed", _cause(first) or program or problem)
        if program is not None:
            return Verdict("partial", f"{program}. The report holds the kernels up to then")
        if not _is_table(request.paths.report(".csv")):
            said = next(filter(None, map(evidence.last_words, outcomes[1:])), None)
            why = (
                f"the report is complete, but this ncu could not export it as CSV{f': {said}' if said else ''}. perfctl "
                "reads it with NVIDIA's reader (pip install 'perfctl[ncu]')"
            )
            return Verdict("partial", why)
        if error := _error(first):
            return Verdict("partial", f"ncu reported an error and continued: {error}")
        return Verdict("ok", None)

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
        if self.layers:
            none = (
                f"ncu profiled no kernels in the selected layers ({', '.join(self.layers)}). For the names of all "
                "layers, run perfctl nsys or perfctl torch, then perfctl show RUN"
            )
        else:
            none = (
                "ncu profiled no kernels: none was launched between cudaProfilerStart and cudaProfilerStop. Check the "
                "driver with perfctl doctor"
            )
        return _cause(outcomes[0]) or none


def _is_table(path: Path) -> bool:
    """Whether it has the header of the raw page; ncu's log file may hold an error message instead."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        return any(line.startswith(b'"ID","Process ID"') for line in file)


def _cause(outcome: Outcome) -> str | None:
    """Why ncu left no report, according to its output; None when it printed nothing."""
    known = next((cause for pattern, cause in _CAUSES.items() if evidence.says(outcome, pattern)), None)
    error = _error(outcome)
    return known or (f"ncu said: {error}" if error else None)


def _error(outcome: Outcome) -> str | None:
    """ncu's first error line that is not about the program's exit code: the program's output says more."""
    lines = [line for log in (outcome.stdout, outcome.stderr) for line in evidence.find_lines(log, rb"==ERROR== ")]
    words = (line.partition("==ERROR== ")[2] for line in lines)
    return next((line for line in words if "application returned an error code" not in line), None)
