"""Names of ``nsys stats`` reports in every spelling since 2019, and their columns.

Names here are those of nsys 2023.1 and later (``cuda_gpu_kern_sum``); up to 2022 they were ``gpukernsum`` and the like, and up to
2020 there were only titles ("CUDA Kernel Statistics (nanoseconds)").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from perfctl.parsers.text.doubts import others, words
from perfctl.parsers.text.numbers import Unit, base_unit

OLD_NAMES = {
    "apigpusum": "cuda_api_gpu_sum", "cudaapisum": "cuda_api_sum", "cudaapitrace": "cuda_api_trace",
    "dx11pixsum": "dx11_pix_sum", "dx12gpumarkersum": "dx12_gpu_marker_sum", "dx12pixsum": "dx12_pix_sum",
    "gpukernsum": "cuda_gpu_kern_sum", "gpumemsizesum": "cuda_gpu_mem_size_sum",
    "gpumemtimesum": "cuda_gpu_mem_time_sum", "gpusum": "cuda_gpu_sum", "gputrace": "cuda_gpu_trace",
    "kernexecsum": "cuda_kern_exec_sum", "kernexectrace": "cuda_kern_exec_trace",
    "khrdebuggpusum": "opengl_khr_gpu_range_sum", "khrdebugsum": "opengl_khr_range_sum",
    "nvtxgpuproj": "nvtx_gpu_proj_trace", "nvtxkernsum": "nvtx_kern_sum", "nvtxppsum": "nvtx_pushpop_sum",
    "nvtxpptrace": "nvtx_pushpop_trace", "nvtxsesum": "nvtx_startend_sum", "nvtxsssum": "nvtx_startend_sum",
    "nvtxsum": "nvtx_sum", "openaccsum": "openacc_sum", "openmpevtsum": "openmp_sum", "osrtsum": "osrt_sum",
    "umcpupagefaults": "um_cpu_page_faults_sum", "unifiedmemory": "um_sum", "unifiedmemorytotals": "um_total_sum",
    "vulkanapisum": "vulkan_api_sum", "vulkanapitrace": "vulkan_api_trace",
    "vulkangpumarkersum": "vulkan_gpu_marker_sum", "vulkanmarkerssum": "vulkan_marker_sum",
    "wddmqueuesdetails": "wddm_queue_sum",
}  # fmt: skip
"""Spelling up to 2022 -> spelling since 2023, as the reports of 2022.4 and 2023.1 list themselves."""

DEVICE_SUMS = frozenset({"cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum", "cuda_gpu_sum"})
"""Sums of time on the GPU."""
HOST_SUMS = words(
    "cuda_api_sum mpi_event_sum nvtx_pushpop_sum nvtx_startend_sum nvtx_sum openacc_sum openmp_sum osrt_sum syscall_sum"
    " vulkan_api_sum"
)
"""Sums of time on the host."""
MIXED_SUM = "cuda_api_gpu_sum"
"""Sums whose column Category says GPU or host."""
GPU_TRACE, KERNEL_TRACE = "cuda_gpu_trace", "cuda_kern_exec_trace"
RANGE_TRACE, PROJECTED_TRACE = "nvtx_pushpop_trace", "nvtx_gpu_proj_trace"
API_TRACE = "cuda_api_trace"
UNKNOWN = "unnamed report"

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
_UNITS = {
    "nanoseconds": "ns", "nsec": "ns", "usec": "us", "μs": "us", "msec": "ms", "sec": "s",
    "KB": "KB", "KiB": "KiB", "KBi": "KiB", "MBi": "MiB", "GBi": "GiB",
    "Bps": "B/s", "KBps": "KB/s", "MBps": "MB/s", "GBps": "GB/s", "KiBps": "KiB/s", "MiBps": "MiB/s", "GiBps": "GiB/s",
}  # fmt: skip
_LABELS = {"Average": "Avg", "Minimum": "Min", "Maximum": "Max", "Median": "Med", "Time(%)": "Time"}
COUNTS = ("Instances", "Num Calls", "Calls", "Count", "Operations", "Range Instances")
NAMES = ("Name", "Operation", "Range", "Kernel Name")
TEXTS = frozenset((
    *NAMES, "NVTX Range", "Style", "Category", "API Name", "API Function", "GridXYZ", "BlockXYZ", "PID", "TID", "Pid",
    "Tid", "DevId", "Device", "Ctx", "Strm", "RangeStack", "NameTree", "Thread Name", "SrcMemKd", "DstMemKd", "Source",
    "Event", "CorrId", "CorrID", "RangeId", "ParentId",
))  # fmt: skip
"""Columns that identify a row; all others are figures."""
_FIGURES = frozenset((
    *COUNTS, "Time", "Total Time", "Total", "Avg", "Med", "Min", "Max", "StdDev", "Start", "Duration", "End", "GrdX",
    "GrdY", "GrdZ", "BlkX", "BlkY", "BlkZ", "Reg/Trd", "StcSMem", "DymSMem", "Bytes", "Throughput", "Result", "T-Pri",
    "QCount", "API Start", "API Dur", "Kernel Start", "Kernel Dur", "Orig Start", "Orig Duration", "NVTX Inst",
    "Kern Inst", "Lvl", "NumChild", "Projected Start",
))  # fmt: skip
NOT_USED = frozenset((
    "AAvg", "AMax", "AMed", "AMin", "AStdDev", "QAvg", "QMax", "QMed", "QMin", "QStdDev", "KAvg", "KMax", "KMed",
    "KMin", "KStdDev", "TAvg", "TMax", "TMed", "TMin", "TStdDev", "Queue Start", "Queue Dur", "Total Dur", "DurChild",
    "DurNonChild", "NumGPUOps", "Projected Duration", "HWid", "VMid", "Context", "Event Class", "CPU Page Faults",
    "GPU Page Faults", "CPU Instruction Address", "Virtual Address", "HtoD Migration Size", "DtoH Migration Size",
    "Migration Throughput", "Total HtoD Migration Size", "Total DtoH Migration Size", "Total CPU Page Faults",
    "Total GPU Page Faults", "Total GPU PageFaults", "Minimum Virtual Address", "Maximum Virtual Address", "Q Type",
    "Q Name", "GPU ID", "Engine", "Node Ord", "Utilization", "Kernel", "NVTX Domain", "PushPop", "Proj Avg",
    "Proj Med", "Proj Min", "Proj Max", "Proj StdDev", "Total Proj Time", "Total Range Time", "Range Avg", "Range Med",
    "Range Min", "Range Max", "Range StdDev", "Total GPU Ops", "Avg GPU Ops", "Avg Range Lvl", "Avg Num Child",
    "Green Ctx", "GreenCtx",
))  # fmt: skip
"""Other columns of the reports of nsys 2022.4 to 2025: known, kept as figures of sums, not used of traces."""
_STATISTICS = ("Avg", "Med", "Min", "Max", "StdDev")
_LEAST_KNOWN = 3
_LONGEST_HEADER = 4000


class Column(NamedTuple):
    """One column of a table."""

    label: str
    """As nsys 2022.4 and later spell it, without the unit."""
    unit: Unit | None
    """None where the header states none."""


def new_name(name: str) -> str:
    """The spelling since 2023 of a report name in any spelling, ".py" and arguments taken off."""
    name = name.rpartition("/")[2].removesuffix(".py").partition(":")[0]
    return OLD_NAMES.get(name, name)


def of_title(title: str) -> tuple[str, str] | None:
    """(report, unit of its figures) of a title from before reports had names; None for any other line.

    The unit stands in the title up to 2020 ("(nanoseconds)", "(KiB)", "(by size in KiB)"), else it is "".
    """
    for pattern, name in _TITLES:
        if len(title) < 100 and re.fullmatch(rf"\s*{pattern}.*", title):
            unit = re.search(r"\((?:by \w+ in )?(nanoseconds|KiB|bytes)\)", title)
            return name, unit[1] if unit else ""
    return None


def columns_of(cells: list[str], unit: str = "") -> list[Column] | None:
    """The columns of a header row; None when it is no header of nsys. ``unit`` is the one in the title."""
    if sum(map(len, cells)) > _LONGEST_HEADER:
        return None
    found = [_column(cell.strip(), unit) for cell in cells]
    known = sum(column.label in _FIGURES or column.label in TEXTS for column in found)
    if found and found[0].label == "Metric Name":  # a summary of ncu
        return None
    if known < _LEAST_KNOWN or known * 2 < len(found) or _FIGURES.isdisjoint(column.label for column in found):
        return None
    total = next((column.unit for column in found if column.label in ("Total Time", "Total")), None)
    # without a unit up to 2021.1: that of the total
    return [column._replace(unit=column.unit or total) if column.label in _STATISTICS else column for column in found]


def figures_of(columns: Sequence[Column]) -> list[int]:
    """Positions of the columns whose cells are figures."""
    return [index for index, column in enumerate(columns) if column.label not in TEXTS]


def unknown_labels(columns: list[Column]) -> list[str]:
    """Labels of columns that are in no list."""
    return others([column.label for column in columns], _FIGURES, TEXTS, NOT_USED)


def _column(text: str, unit: str) -> Column:
    text = _LABELS.get(text, text)
    match = re.fullmatch(r"(.*?) ?\(([^()]+)\)", text)
    if match is None:
        stated = unit if text in ("Total Time", "Total") else ""
        return Column(text, unit_of(stated) if stated else None)
    return Column(_LABELS.get(match[1], match[1]), unit_of(match[2]))


def unit_of(text: str) -> Unit:
    """The base unit of a unit as nsys spells it: "MB" is 10**6 byte, "MBi" and "MiB" are 2**20 [nsys stats --help-formats]."""
    return base_unit(_UNITS.get(text, text))


def guess(columns: list[Column], file_name: str) -> str:
    """The report of a table that is not announced: from the end of its file's name, else from its columns."""
    stem = file_name.rpartition(".")[0]
    for old, new in OLD_NAMES.items():
        if stem.endswith((f"_{old}", f"_{new}")) or stem in (old, new):
            return new
    labels = {column.label for column in columns}
    return next((name for name, needed in _SHAPES if needed <= labels), UNKNOWN)


_SHAPES = (
    (GPU_TRACE, {"Start", "Duration", "GrdX", "Name"}),
    (KERNEL_TRACE, {"Kernel Start", "Kernel Dur", "Kernel Name"}),
    (PROJECTED_TRACE, {"Orig Start", "Orig Duration", "Name"}),
    (RANGE_TRACE, {"Start", "End", "RangeId", "Name"}),
    (API_TRACE, {"Start", "Duration", "Result", "Name"}),
    ("nvtx_kern_sum", {"NVTX Range", "Kernel Name"}),
    ("cuda_kern_exec_sum", {"QCount", "Kernel Name"}),
    ("nvtx_sum", {"Total Time", "Style", "Range"}),
    ("nvtx_pushpop_sum", {"Total Time", "Range"}),
    (MIXED_SUM, {"Total Time", "Category", "Operation"}),
    ("cuda_gpu_mem_time_sum", {"Total Time", "Operation"}),
    ("cuda_gpu_mem_size_sum", {"Total", "Operation"}),
    ("cuda_gpu_kern_sum", {"Total Time", "Instances", "Name"}),
)
"""Columns that only one report has; a table of API calls is told from one of system calls by its rows."""
