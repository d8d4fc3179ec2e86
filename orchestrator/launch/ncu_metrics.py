"""Choose the counters for ncu to collect. The installed ncu lists the counters of each chip, without a GPU."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch import tools

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
    "7.0": "gv100",
    "7.2": "gv11b",
    "7.5": "tu102",
    "8.0": "ga100",
    "8.6": "ga102",
    "8.7": "ga10b",
    "8.9": "ad102",
    "9.0": "gh100",
    "10.0": "gb100",
    "12.0": "gb202",
}
"""Compute capability -> name in ``ncu --list-chips``; chips of one capability have the same counters."""

_FREE = re.compile(r"[A-Za-z0-9_.:]+")


def metrics(asked: str) -> tuple[str, ...]:
    """The counters for ``asked``: a set's name, or names separated by commas. Raises UsageError like ``check``."""
    check(asked)
    if asked == "fadd":
        return (FADD,)
    if asked == "flops":
        return flops(chip())
    return tuple(asked.split(","))


def check(asked: str) -> None:
    """Raises UsageError unless ``asked`` is a set or a list of well-formed names."""
    if not all(_FREE.fullmatch(name) for name in asked.split(",")):
        remedy = f"Use {' or '.join(SETS)}, or names printed by ncu --query-metrics, separated by commas"
        raise UsageError(f"`metrics`: {asked!r} is not a list of metric names", remedy)


def flops(chip_name: str | None) -> tuple[str, ...]:
    """The counters that give a chip's FLOPs; PORTABLE when no installed ncu lists the chip's counters."""
    known = chip_metrics(chip_name) if chip_name else frozenset()
    if not known:
        return PORTABLE
    packed = sorted(name for name in known if _PACKED.fullmatch(name))
    paths = _tensor_paths(known)
    moves = [_CONSTANT_MOVES] if _CONSTANT_MOVES in known else []
    portable = [name for name in PORTABLE if name.removesuffix(".sum") in known]
    return (*portable, *(f"{name}.sum" for name in (*packed, *paths, *moves)))


def _tensor_paths(known: frozenset[str]) -> list[str]:
    """Each type once: its names with ``_dst_`` if it has any, its sparsity parts if it has no total (fp8)."""
    paths = {name for name in known if _TENSOR_PATH.fullmatch(name)}
    whole = [name for name in paths if (bare := _SPARSITY.sub("", name)) == name or bare not in paths]
    return sorted(name for name in whole if not any(other.startswith(f"{name}_dst_") for other in whole))


@cache
def chip() -> str | None:
    """ncu's name for the chip of the first GPU; None without a GPU, or when _CHIPS lacks it."""
    path = tools.find("nvidia-smi")
    if path is None:
        return None
    answer = tools.output(path, "--query-gpu=compute_cap", "--format=csv,noheader").split()
    return _CHIPS.get(answer[0]) if answer else None


@cache
def chip_metrics(chip_name: str) -> frozenset[str]:
    """Base names of all counters of a chip; empty when ncu is missing or does not know the chip."""
    path = tools.find("ncu")
    return read_metrics(tools.output(path, "--query-metrics", "--chips", chip_name)) if path else frozenset()


def read_metrics(text: str) -> frozenset[str]:
    """Metric names in the output of ``ncu --query-metrics``: first column of a table whose descriptions wrap."""
    return frozenset(re.findall(r"^([a-z][a-z0-9]*__\w+)\s", text, re.MULTILINE))


def as_table(report: Path, table: Path) -> tuple[str, ...]:
    """The command that exports a report's raw page, in base units, to a CSV file. Run it with LC_ALL=C."""
    return (
        "ncu",
        "--import", str(report),
        "--csv",
        "--page", "raw",
        "--print-units", "base",
        "--log-file", str(table),
    )  # fmt: skip
