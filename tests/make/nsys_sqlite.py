"""Writes small synthetic nsys exports, in the table layouts of several nsys generations.

Column lists are those of real exports of each generation, in their order; contents are made up by
the tests.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from perfctl.parsers import parse
from perfctl.records.bulk import SqlKernels
from perfctl.records.report import Kernel, Report

HOST = 1 << 48
"""Host number in the upper bits of globalTid and globalPid, as real exports have it."""

KERNEL_2020_3 = (
    "start end deviceId contextId streamId correlationId globalPid demangledName shortName "
    "launchType cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ "
    "staticSharedMemory dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId "
    "sharedMemoryExecuted graphNodeId"
)
KERNEL_2022_1 = (
    KERNEL_2020_3.replace("shortName", "shortName mangledName") + " sharedMemoryLimitConfig"
)
KERNEL_2024_2 = KERNEL_2022_1.replace("contextId", "contextId greenContextId")
KERNEL_2026_1 = KERNEL_2024_2 + (
    " qmdBulkReleaseDone qmdPreexitDone qmdLastCtaDone graphId clusterX clusterY clusterZ"
    " clusterSchedulingPolicy maxPotentialClusterSize maxActiveClusters "
    "sharedMemoryRequestedPercentage"
)
NVTX_2020_3 = (
    "start end eventType rangeId category color text globalTid endGlobalTid textId domainId "
    "uint64Value int64Value doubleValue uint32Value int32Value floatValue jsonTextId jsonText"
)
MEMCPY = (
    "start end deviceId contextId streamId correlationId globalPid bytes copyKind deprecatedSrcId "
    "srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId"
)
GENERATIONS: dict[str, dict[str, str]] = {
    "2020.3": {"kernel": KERNEL_2020_3, "nvtx": NVTX_2020_3, "memcpy": MEMCPY + " graphNodeId"},
    "2022.1": {
        "kernel": KERNEL_2022_1,
        "nvtx": NVTX_2020_3,
        "memcpy": MEMCPY + " migrationCause graphNodeId virtualAddress",
        "meta": "EXPORT_META_DATA",
        "schema": "2.9.1",
        "version": "2022.1.3.3",
    },
    "2024.2": {
        "kernel": KERNEL_2024_2,
        "nvtx": NVTX_2020_3,
        "memcpy": MEMCPY.replace("contextId", "contextId greenContextId", 1)
        + " migrationCause graphNodeId",
        "meta": "META_DATA_EXPORT",
        "schema": "3.11.1",
        "version": "2024.2.3.38",
    },
    "2026.1": {
        "kernel": KERNEL_2026_1,
        "nvtx": NVTX_2020_3 + " binaryData",
        "memcpy": MEMCPY + " migrationCause graphNodeId virtualAddress copyCount",
        "meta": "META_DATA_EXPORT",
        "schema": "3.24.14",
        "version": "2026.1.1.204",
    },
}


GITHUB = "ghp_" + "0123456789abcdefghijklmnopqrstuvwxyz"
PASSWORD = "correct-horse"
ENVIRONMENT = (
    "PATH=/usr/bin:/bin",
    "HOME=/home/me",
    "LD_LIBRARY_PATH=/opt/lib",
    "XDG_SEAT=seat0",
    "MY_OWN=private-life",
)
VALUES = (GITHUB, PASSWORD, "/usr/bin:/bin", "/home/me", "/opt/lib", "private-life")
"""None of these may be left anywhere in a copy."""


def global_tid(pid: int, thread: int) -> int:
    """As nsys packs them; thread 0 gives the globalPid."""
    return HOST | pid << 24 | thread


class NsysBuilder:
    """Collects rows and writes the database; a table nobody filled is absent, as nsys leaves it."""

    def __init__(self, generation: str = "2024.2") -> None:
        self.layout = GENERATIONS[generation]
        self.tables: dict[str, tuple[list[str], list[dict[str, Any]]]] = {}
        self.strings: dict[str, int] = {}
        self.table("ThreadNames", "nameId priority globalTid")
        if "meta" in self.layout:
            for name, key in (
                ("EXPORT_PRODUCT_VERSION", "version"),
                ("EXPORT_SCHEMA_VERSION", "schema"),
            ):
                self.row(self.layout["meta"], "name value", name=name, value=self.layout[key])

    def string(self, text: str) -> int:
        """Its id in StringIds."""
        return self.strings.setdefault(text, len(self.strings) + 1)

    def table(self, name: str, columns: str) -> list[dict[str, Any]]:
        """The rows of a table, which exists from now on."""
        return self.tables.setdefault(name, (columns.split(), []))[1]

    def row(self, table: str, columns: str, **values: Any) -> None:
        """One row; columns that are not given are NULL."""
        self.table(table, columns).append(values)

    def range(
        self,
        text: str | None,
        start: int,
        end: int | None,
        *,
        pid: int = 7,
        thread: int = 7,
        **more: Any,
    ) -> None:
        """A push/pop range, unless ``eventType`` says otherwise."""
        values = {
            "text": text,
            "start": start,
            "end": end,
            "globalTid": global_tid(pid, thread),
            "domainId": 0,
        }
        self.row("NVTX_EVENTS", self.layout["nvtx"], **{"eventType": 59, **values, **more})

    def call(
        self, correlation: int, start: int, end: int, *, pid: int = 7, thread: int = 7
    ) -> None:
        """A CUDA API call on the host."""
        columns = "start end eventClass globalTid correlationId nameId returnValue callchainId"
        values = {
            "start": start,
            "end": end,
            "globalTid": global_tid(pid, thread),
            "correlationId": correlation,
        }
        self.row(
            "CUPTI_ACTIVITY_KIND_RUNTIME", columns, nameId=self.string("cudaLaunchKernel"), **values
        )

    def kernel(
        self,
        correlation: int,
        start: int = 1000,
        *,
        pid: int = 7,
        name: str = "gemm(int)",
        **more: Any,
    ) -> None:
        """A kernel of 10 ns, grid (2, 3, 4), block (32, 2, 1)."""
        values = {
            "start": start,
            "end": start + 10,
            "correlationId": correlation,
            "globalPid": global_tid(pid, 0),
        }
        values |= {"demangledName": self.string(name), "shortName": self.string(name.split("(")[0])}
        values |= {
            "gridX": 2,
            "gridY": 3,
            "gridZ": 4,
            "blockX": 32,
            "blockY": 2,
            "blockZ": 1,
            "registersPerThread": 40,
        }
        values |= {
            "staticSharedMemory": 16,
            "dynamicSharedMemory": 0,
            "deviceId": 0,
            "contextId": 1,
            "streamId": 7,
        }
        self.row("CUPTI_ACTIVITY_KIND_KERNEL", self.layout["kernel"], **{**values, **more})

    def launch(self, at: int, *, pid: int = 7, thread: int = 7, name: str = "gemm(int)") -> None:
        """A call at ``at`` (2 ns long) and the kernel it launches."""
        correlation = len(self.table("CUPTI_ACTIVITY_KIND_KERNEL", self.layout["kernel"])) + 1
        self.call(correlation, at, at + 2, pid=pid, thread=thread)
        self.kernel(correlation, at + 100, pid=pid, name=name)

    def memcpy(self, correlation: int, kind: int, size: int, *, pid: int = 7) -> None:
        """A copy of 5 ns."""
        values = {
            "start": 500,
            "end": 505,
            "correlationId": correlation,
            "globalPid": global_tid(pid, 0),
        }
        place = {"deviceId": 0, "contextId": 1, "streamId": 7}
        self.row(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            self.layout["memcpy"],
            **values,
            **place,
            bytes=size,
            copyKind=kind,
        )

    def write(self, path: Path) -> Path:
        """The file; tables in the order they were first named, StringIds first."""
        path.unlink(missing_ok=True)
        connection = sqlite3.connect(path)
        connection.execute(
            "CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)"
        )
        connection.execute(
            "CREATE TABLE ProcessStreams (globalPid INTEGER, filenameId INTEGER, contentId INTEGER)"
        )
        connection.executemany(
            "INSERT INTO StringIds VALUES (?, ?)", [(i, text) for text, i in self.strings.items()]
        )
        for name, (columns, rows) in self.tables.items():
            connection.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
            marks = ", ".join("?" * len(columns))
            values = [[row.get(column) for column in columns] for row in rows]
            assert all(set(row) <= set(columns) for row in rows), (name, rows)
            connection.executemany(f"INSERT INTO {name} VALUES ({marks})", values)
        connection.commit()
        connection.close()
        return path


def read(builder: NsysBuilder, folder: Path) -> Report:
    """What perfctl makes of the database, written into ``folder``."""
    return parse(builder.write(folder / "report.sqlite"))


def copied(kernels: SqlKernels) -> list[Kernel]:
    """The rows that a store copies by SQL, with its names and layers; they are the records."""
    fields = list(kernels.fields)
    columns = [f"kernel.rowid - {kernels.first_row}", kernels.name_column, "stretch.*"]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("ATTACH ? AS report", (str(kernels.path),))
        connection.execute("CREATE TABLE stretch (first, last, layer, step, range)")
        for stretches in kernels.stretches():
            rows = zip(*stretches, strict=True)
            marks = "?, ?, nullif(?, -1), nullif(?, -1), nullif(?, -1)"
            connection.executemany(f"INSERT INTO stretch VALUES ({marks})", rows)
        rows = connection.execute(
            f"SELECT {', '.join([*columns, *kernels.fields.values()])} FROM stretch, "
            f"report.{kernels.table} AS kernel WHERE kernel.rowid BETWEEN first AND last"
        ).fetchall()
    found = []
    for launch, name, _, _, number, step, range_number, *values in rows:
        layer, direction, source = (None, None, None) if number is None else kernels.layers[number]
        places = (layer, direction, step, source, range_number)
        more = dict(zip(fields, values, strict=True))
        found.append(Kernel(launch, *kernels.names[name], *places, **more))
    assert found == list(kernels)
    return found


def gap(report: Report, quantity: str) -> str:
    """State and reasons of the gaps in one quantity."""
    return "; ".join(f"{g.state}: {g.reason}" for g in report.gaps if g.quantity == quantity)


def training_step(builder: NsysBuilder) -> NsysBuilder:
    """One step: forward on thread 7, backward on thread 8 (autograd's), with a cuDNN range inside
    of conv1's."""
    builder.range("cudnn", -5, None, eventType=75, domainId=3)
    builder.range("perfctl:step:4", 0, 1000)
    builder.range("perfctl:phase:forward", 10, 400)
    builder.range("conv1:forward", 20, 100)
    builder.range("cudnnConvolutionForward", 30, 90, domainId=3)
    builder.range("perfctl:phase:backward", 450, 900)
    builder.range("conv1:backward", 500, 600, thread=8)
    for at, thread in ((40, 7), (95, 7), (200, 7), (510, 8), (700, 8)):
        builder.launch(at, thread=thread)
    return builder


GRAPH_NODE = "start end nameId eventClass globalTid graphNodeId originalGraphNodeId"
"""Columns that NVIDIA's documentation and public scripts name."""
LAUNCH = 900
"""Of the first replay; the next ones follow every 100 ns."""


def node(
    builder: NsysBuilder,
    number: int,
    at: int,
    *,
    of: int | None = None,
    pid: int = 7,
    thread: int = 7,
) -> None:
    values = {
        "start": at,
        "end": at + 1,
        "globalTid": global_tid(pid, thread),
        "nameId": builder.string("Graph Node Creation"),
    }
    builder.row(
        "CUDA_GRAPH_NODE_EVENTS", GRAPH_NODE, **values, graphNodeId=number, originalGraphNodeId=of
    )


def replay(
    builder: NsysBuilder, nodes: list[int | None], at: int, *, pid: int = 7, thread: int = 7
) -> None:
    """One launch of a graph at ``at``; each of its kernels takes 10 ns."""
    correlation = 1000 + at
    builder.call(correlation, at, at + 2, pid=pid, thread=thread)
    for place, number in enumerate(nodes):
        builder.kernel(correlation, at + 10 + 10 * place, pid=pid, graphNodeId=number)


def captured(builder: NsysBuilder) -> NsysBuilder:
    """A graph of conv1, fc and what lies between them, forward on thread 7 and backward on thread
    8, then copied at 700."""
    builder.range("conv1:forward", 100, 200)
    builder.range("fc:forward", 300, 400)
    builder.range("fc:backward", 500, 600, thread=8)
    for number, (at, thread) in enumerate([(110, 7), (250, 7), (310, 7), (510, 8)], 1):
        node(builder, number, at, thread=thread)
        node(builder, 100 + number, 700 + number, of=number)
    return builder


def with_environment(path: Path, generation: str = "2024.2") -> Path:
    """One training step and a made-up process environment; each generation has it in the tables that
    real ones have."""
    builder = training_step(NsysBuilder(generation))
    for variable in (*ENVIRONMENT, f"FAKE_TOKEN={GITHUB}", f"DB_PASSWORD={PASSWORD}"):
        builder.string(variable)
    if generation != "2020.3":
        row = {"devStateName": "Local (CLI)"}
        columns = "globalVid devStateName name nameEnum value"
        whole = "\n".join((*ENVIRONMENT, f"FAKE_TOKEN={GITHUB}"))
        builder.row("TARGET_INFO_SYSTEM_ENV", columns, **row, name="DeviceEnvironment", value=whole)
        builder.row("TARGET_INFO_SYSTEM_ENV", columns, **row, name="CpuCores", value="2")
    if generation in ("2024.2", "2026.1"):
        for variable in (*ENVIRONMENT, f'DB_PASSWORD="{PASSWORD}"'):
            builder.row(
                "META_DATA_CAPTURE",
                "name value",
                name="PROCESS_0:ENVIRONMENT_VARIABLE",
                value=variable,
            )
        builder.row("META_DATA_CAPTURE", "name value", name="RATE_HZ", value="0")
        said = f"Launched with DB_PASSWORD={PASSWORD}"
        columns = "timestamp timestampType source severity text globalPid"
        builder.row("DIAGNOSTIC_EVENT", columns, severity=1, source=1, text=said)
    return builder.write(path)
