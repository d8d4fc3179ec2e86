"""Names of ``nsys stats`` reports in every spelling since 2019, and their columns. Names here are
those of nsys 2023.1 and later (``cuda_gpu_kern_sum``); up to 2022 they were ``gpukernsum`` and the
like, and up to 2020 there were only titles ("CUDA Kernel Statistics (nanoseconds)"). The lists
themselves are in ``known.json``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from perfctl.parsers.nsys.tables import KNOWN
from perfctl.parsers.text.doubts import words
from perfctl.parsers.text.numbers import Unit, base_unit

_KNOWN = KNOWN["stats"]
OLD_NAMES: dict[str, str] = _KNOWN["old_names"]
"""Spelling up to 2022 -> spelling since 2023, as the reports of 2022.4 and 2023.1
list themselves."""
DEVICE_SUMS = words("cuda_gpu_kern_sum cuda_gpu_mem_time_sum cuda_gpu_sum")
HOST_SUMS = words(
    "cuda_api_sum mpi_event_sum nvtx_pushpop_sum nvtx_startend_sum nvtx_sum openacc_sum openmp_sum "
    "osrt_sum syscall_sum vulkan_api_sum"
)
MIXED_SUM = "cuda_api_gpu_sum"
"""Sums whose column Category says GPU or host."""
GPU_TRACE, KERNEL_TRACE = "cuda_gpu_trace", "cuda_kern_exec_trace"
RANGE_TRACE, PROJECTED_TRACE = "nvtx_pushpop_trace", "nvtx_gpu_proj_trace"
API_TRACE = "cuda_api_trace"
TRACES = (GPU_TRACE, KERNEL_TRACE, RANGE_TRACE, PROJECTED_TRACE, API_TRACE)
UNKNOWN = "unnamed report"
REPORTS = {*OLD_NAMES.values(), *DEVICE_SUMS, *HOST_SUMS, MIXED_SUM, *TRACES, UNKNOWN}
"""Reports whose rows are understood, or known to be kept as summaries."""

COUNTS = ("Instances", "Num Calls", "Calls", "Count", "Operations", "Range Instances")
NAMES = ("Name", "Operation", "Range", "Kernel Name")
TEXTS = frozenset((*NAMES, *_KNOWN["texts"]))
"""Columns that identify a row; all others are figures."""
_FIGURES = frozenset((*COUNTS, *_KNOWN["figures"]))
_NOT_USED = frozenset(_KNOWN["not_used"])
"""Other columns of the reports of nsys 2022.4 to 2025: known, kept as figures of sums, not used
of traces."""
_LABELS = {"Average": "Avg", "Minimum": "Min", "Maximum": "Max", "Median": "Med", "Time(%)": "Time"}
_STATISTICS = ("Avg", "Med", "Min", "Max", "StdDev")
_LEAST_KNOWN = 3
_LONGEST_HEADER = 4000
_TITLES = (
    (r"CUDA API Statistics", "cuda_api_sum"),
    (r"CUDA Kernel Statistics", "cuda_gpu_kern_sum"),
    (r"CUDA Memory Operation Statistics.*(?:by size|KiB|bytes)", "cuda_gpu_mem_size_sum"),
    (r"CUDA Memory Operation Statistics", "cuda_gpu_mem_time_sum"),
    (r"Operating System Runtime API Statistics", "osrt_sum"),
    (r"NVTX Push[-/]Pop Range Statistics", "nvtx_pushpop_sum"),
    (r"NVTX Start[-/]End Range Statistics", "nvtx_startend_sum"),
    (r"NVTX (?:Range )?Statistics", "nvtx_sum"),
)


class Column(NamedTuple):
    """One column of a table."""

    label: str
    """As nsys 2022.4 and later spell it, without the unit."""
    unit: Unit | None
    """None where the header states none."""


def rename_report(name: str) -> str:
    """Return the spelling since 2023 of a report name in any spelling, ".py" and arguments
    taken off."""
    name = name.rpartition("/")[2].removesuffix(".py").partition(":")[0]
    return OLD_NAMES.get(name, name)


def read_title(title: str) -> tuple[str, str] | None:
    """Return (report, unit of its figures) of a title from before reports had names; None for any
    other line. The unit stands in the title up to 2020 ("(nanoseconds)", "(KiB)", "(by size in
    KiB)"), else it is ""."""
    for pattern, name in _TITLES:
        if len(title) < 100 and re.fullmatch(rf"\s*{pattern}.*", title):
            unit = re.search(r"\((?:by \w+ in )?(nanoseconds|KiB|bytes)\)", title)
            return name, unit[1] if unit else ""
    return None


def read_columns(cells: Sequence[str], unit: str = "") -> list[Column] | None:
    """Return the columns of a header row; None when it is no header of nsys. ``unit`` is the one in
    the title."""
    if sum(map(len, cells)) > _LONGEST_HEADER:
        return None
    found = [_read_column(cell.strip(), unit) for cell in cells]
    labels = [column.label for column in found]
    known = sum(label in _FIGURES or label in TEXTS for label in labels)
    has_figures = not _FIGURES.isdisjoint(labels)
    is_of_ncu = labels[:1] == ["Metric Name"]
    if known < _LEAST_KNOWN or known * 2 < len(found) or not has_figures or is_of_ncu:
        return None
    # without a unit up to 2021.1: that of the total
    total = next((column.unit for column in found if column.label in ("Total Time", "Total")), None)
    return [
        column._replace(unit=column.unit or total) if column.label in _STATISTICS else column
        for column in found
    ]


def _read_column(text: str, unit: str) -> Column:
    text = _LABELS.get(text, text)
    match = re.fullmatch(r"(.*?) ?\(([^()]+)\)", text)
    if match is not None:
        return Column(_LABELS.get(match[1], match[1]), read_unit(match[2]))
    return Column(text, read_unit(unit) if unit and text in ("Total Time", "Total") else None)


def read_unit(text: str) -> Unit:
    """Return the base unit of a unit as nsys spells it: "MB" is 10**6 byte, "MBi" and "MiB" are
    2**20 [nsys stats --help-formats]."""
    return base_unit(_KNOWN["units"].get(text, text))


def figure_positions(columns: Sequence[Column]) -> list[int]:
    """Return the positions of the columns whose cells are figures."""
    return [index for index, column in enumerate(columns) if column.label not in TEXTS]


def unknown_labels(columns: Sequence[Column]) -> list[str]:
    """Return the labels of columns that are in no list."""
    known = _FIGURES | TEXTS | _NOT_USED
    return [
        column.label for column in columns if column.label.strip() and column.label not in known
    ]


def guess_report(columns: Sequence[Column], file_name: str) -> str:
    """Return the report of a table that is not announced: from the end of its file's name, else
    from columns that only this report has."""
    stem = file_name.rpartition(".")[0]
    for old, new in OLD_NAMES.items():
        if stem.endswith((f"_{old}", f"_{new}")) or stem in (old, new):
            return new
    labels = {column.label for column in columns}
    return next((name for name, needed in _KNOWN["shapes"] if labels.issuperset(needed)), UNKNOWN)
