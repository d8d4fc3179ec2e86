"""Tables and columns of nsys exports from 2020.3 to 2026.1: those that are read, and those that are known and skipped."""

from __future__ import annotations

import re

from perfctl.parsers.nsys_devices import versions
from perfctl.parsers.nsys_tables import KERNEL, MEMCPY, MEMSET, NVTX, RUNTIME, STRINGS
from perfctl.parsers.records import Diagnostic
from perfctl.parsers.text.sqlite import Database
from perfctl.parsers.unknown import newer, not_understood, others, words

NEWEST_SCHEMA = "3.24"
"""Of nsys 2026.1.1."""
_LAYOUTS = ("1.", "2.", "3.")
"""Schemas with these majors differ in tables and columns, not in meaning."""

_PLACE = "start end deviceId contextId streamId correlationId globalPid graphNodeId greenContextId"
COLUMNS = {
    KERNEL: words(
        f"{_PLACE} demangledName shortName mangledName launchType cacheConfig registersPerThread gridX gridY gridZ blockX"
        " blockY blockZ staticSharedMemory dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId"
        " sharedMemoryExecuted sharedMemoryLimitConfig qmdBulkReleaseDone qmdPreexitDone qmdLastCtaDone graphId clusterX"
        " clusterY clusterZ clusterSchedulingPolicy maxPotentialClusterSize maxActiveClusters"
        " sharedMemoryRequestedPercentage"
    ),
    MEMCPY: words(
        f"{_PLACE} bytes copyKind deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId"
        " migrationCause virtualAddress copyCount"
    ),
    MEMSET: words(f"{_PLACE} value bytes memKind"),
    RUNTIME: words("start end eventClass globalTid correlationId nameId returnValue callchainId"),
    NVTX: words(
        "start end eventType rangeId category color text globalTid endGlobalTid textId domainId uint64Value int64Value"
        " doubleValue uint32Value int32Value floatValue jsonTextId jsonText binaryData"
    ),
    STRINGS: frozenset(("id", "value")),
}
"""Table that is read row by row -> its columns, read or not."""

OTHER_TABLES = words(
    "ANALYSIS_DETAILS ANALYSIS_FILE COMPOSITE_EVENTS CUDA_CALLCHAINS CUDA_GPU_MEMORY_USAGE_EVENTS CUDA_GRAPH_EVENTS"
    " CUDA_GRAPH_NODE_EVENTS CUDA_UM_CPU_PAGE_FAULT_EVENTS CUDA_UM_GPU_PAGE_FAULT_EVENTS CUPTI_ACTIVITY_KIND_CUDA_EVENT"
    " CUPTI_ACTIVITY_KIND_GRAPH_TRACE CUPTI_ACTIVITY_KIND_OPENACC_DATA CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH"
    " CUPTI_ACTIVITY_KIND_OPENACC_OTHER CUPTI_ACTIVITY_KIND_OPENMP CUPTI_ACTIVITY_KIND_OVERHEAD"
    " CUPTI_ACTIVITY_KIND_SYNCHRONIZATION CUDNN_EVENTS CUBLAS_EVENTS DIAGNOSTIC_EVENT DomainStrings EXPORT_META_DATA"
    " FECS_EVENTS GENERIC_EVENTS GENERIC_EVENT_DATA GENERIC_EVENT_SOURCES GENERIC_EVENT_TYPES GPU_CONTEXT_SWITCH_EVENTS"
    " GPU_METRICS META_DATA_CAPTURE META_DATA_EXPORT MemcpyOperationStrings NVGPU_EVENTS NvtxPushPopRanges PROCESSES"
    " PROFILER_OVERHEAD ProcessStreams RUNNABLE_METRICS SAMPLING_CALLCHAINS SCHED_EVENTS SYSCALL ThreadNames"
    " UnwindMethodType cudaAPIStats cudaKernelStats cudaMemoryOperationByteStats cudaMemoryOperationTimeStats estEnd me ms"
    " nvtxPushPopRangeStats nvtxStartEndRangeStats openmpStats osrtAPIStats"
)
"""Known by name. Those without a reader hold what perfctl does not show (samples, system calls, sums that ``nsys stats``
left in the file)."""
OTHER_FAMILIES = (
    *("ENUM_", "TARGET_INFO_", "OSRT_", "sqlite_", "D3D11_", "DX11_", "DX12_", "WDDM_", "OPENGL_", "KHR_", "VULKAN_"),
    *("MPI_", "UCP_", "SHMEM_", "NET_", "NIC_", "ETW_", "NVVIDEO_", "NVMEDIA_", "SLI_", "PERF_EVENT_", "OPENMP_"),
    *("OPENACC_", "CUBLAS_", "CUDNN_", "DRM_", "PYTHON_", "SOC_", "IB_"),
)
"""Beginnings of tables of other interfaces than CUDA and NVTX, and of enumerations."""


def unknown(database: Database) -> tuple[Diagnostic, ...]:
    """Diagnostics for unknown tables and columns that hold data, and for a newer schema."""
    tables = [
        table
        for table in others(database.tables, COLUMNS, OTHER_TABLES)
        if not table.startswith(OTHER_FAMILIES) and database.holds(table)
    ]
    columns = [
        f"{table}.{column}"
        for table, known in COLUMNS.items()
        for column in others(sorted(database.tables.get(table, ())), known)
        if database.holds(table, column)
    ]
    version, schema = versions(database)
    unknown_schema = [schema] if schema and re.match(r"\d+\.", schema) and not schema.startswith(_LAYOUTS) else []
    warned = not_understood({"schema version": unknown_schema, "tables": tables, "columns": columns})
    product = f"nsys {version}, schema" if version else "nsys schema"
    return (*warned, *(() if unknown_schema else newer(product, schema, NEWEST_SCHEMA)))
