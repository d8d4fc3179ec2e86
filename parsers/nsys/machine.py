"""Reads facts about the machine from an nsys export: GPUs, versions, the capture, and nsys's
messages. nsys also keeps the whole environment of every process (StringIds, TARGET_INFO_SYSTEM_ENV,
META_DATA_CAPTURE). Only the keys named here are read; nothing else of these tables leaves
the file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from perfctl.parsers.common.numbers import iso_utc
from perfctl.parsers.common.sqlite import Database
from perfctl.parsers.nsys.tables import KERNEL, Strings
from perfctl.records.report import Device, Diagnostic, Gap, Thread

MIB = 1 << 20
HOST_FACTS = {
    "CpuDescription": "cpu",
    "CpuCores": "cpu_cores",
    "CpuArchitecture": "cpu_architecture",
    "OsDescription": "os",
}


def versions(database: Database) -> tuple[str | None, str | None]:
    """Return (nsys version, schema version); None up to 2021.3, which wrote no version."""
    facts = database.pairs("EXPORT_META_DATA") | database.pairs("META_DATA_EXPORT")
    return facts.get("EXPORT_PRODUCT_VERSION"), facts.get("EXPORT_SCHEMA_VERSION")


def environment(database: Database) -> dict[str, str]:
    """Facts about versions and the host, from the keys named here only."""
    version, schema = versions(database)
    facts = {"nsys": version, "nsys_schema": schema, "driver": driver_version(database)}
    facts |= {name: _host_fact(database, key) for key, name in HOST_FACTS.items()}
    cuda = _host_fact(database, "CudaDriverVersion")
    if cuda and cuda.isdecimal():  # 12020 is CUDA 12.2
        facts["cuda_driver"] = f"{int(cuda) // 1000}.{int(cuda) % 1000 // 10}"
    return {key: value for key, value in facts.items() if value}


def driver_version(database: Database) -> str | None:
    """Of the NVIDIA driver; some versions write 520.61.05 as 5206105 (seen in 2021.3, 2022.1
    and 2022.4)."""
    text = _host_fact(database, "NvDriverVersion")
    if text and text.isdecimal() and len(text) == 7:
        return f"{text[:3]}.{text[3:5]}.{text[5:]}"
    return text


def threads(database: Database, seen: set[int]) -> tuple[Thread, ...]:
    """Names of these threads (globalTid); the file holds those of all other programs, too."""
    if not database.has("ThreadNames", "nameId", "globalTid"):
        return ()
    strings = Strings(database)
    found = {
        number: strings[name]
        for name, number in database.rows("ThreadNames", "nameId", "globalTid")
        if isinstance(number, int) and number in seen
    }
    return tuple(
        Thread(number >> 24 & 0xFFFFFF, number & 0xFFFFFF, name)
        for number, name in sorted(found.items())
        if name
    )


def started_at(database: Database) -> str | None:
    """Start of the session, UTC, ISO 8601."""
    for (epoch,) in database.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"):
        if isinstance(epoch, int) and epoch > 0:
            return iso_utc(epoch)
    return None


def duration_ns(database: Database) -> int | None:
    """Length of the capture; None up to 2021.3."""
    lengths = [
        value
        for (value,) in database.rows("ANALYSIS_DETAILS", "duration")
        if isinstance(value, int)
    ]
    return max(lengths, default=0) or None


def diagnostics(database: Database) -> tuple[Diagnostic, ...]:
    """nsys's messages about the capture, in its order; the table exists since 2024.2."""
    severities = {2: "warning", 3: "error"}
    sources = {
        row[0]: row[1] for row in database.rows("ENUM_DIAGNOSTIC_SOURCE_TYPE", "id", "label")
    }
    rows = database.rows("DIAGNOSTIC_EVENT", "severity", "source", "text")
    return tuple(
        Diagnostic(
            severities.get(severity, "info"),
            str(sources.get(source) or "nsys"),
            " ".join(str(text).split()),
        )
        for severity, source, text in rows
        if text and isinstance(severity, int)
    )


def devices(database: Database) -> tuple[tuple[Device, ...], tuple[Gap, ...]]:
    """Return the GPUs, those that ran kernels first, then by CUDA ordinal; and a gap where there
    are none or ordinals differ."""
    driver = driver_version(database)
    found: dict[int, Device] = {}
    for device in (*_of_target_info(database), *_of_cuda_info(database)):
        found[device.index] = _merge(found.get(device.index), device)
    ordered = sorted(
        found.values(),
        key=lambda device: (len(found) > 1 and _idle(database, device), device.index),
    )
    gaps = (
        _device_gaps(database)
        if found
        else (Gap("device", "not_collected", "the report names no GPU"),)
    )
    return tuple(replace(device, driver_version=driver) for device in ordered), gaps


def _of_target_info(database: Database) -> Iterable[Device]:
    """TARGET_INFO_GPU: bytes, bytes per second and hertz; its rows are not in the order of
    the ordinals."""
    if not database.has("TARGET_INFO_GPU", "id"):
        return _of_short_target_info(database)
    wanted = ("id", "cuDevice", "name", "smCount", "computeMajor", "computeMinor")
    rows = database.rows("TARGET_INFO_GPU", *wanted, "totalMemory", "memoryBandwidth", "clockRate")
    by_gpu = {gpu: ordinal for gpu, ordinal, _ in reversed(_ordinals(database))}
    if not by_gpu:  # before 2025.1
        by_gpu = {row[0]: row[1] for row in rows if row[1] is not None}
    if not by_gpu:  # an old report exported by a newer nsys: the columns are there, and NULL
        by_gpu = {row[0]: row[0] for row in rows}
    found = ((by_gpu.get(gpu), facts) for gpu, _, *facts in rows)
    return [
        _gpu(ordinal, facts)
        for ordinal, facts in found
        if isinstance(ordinal, int) and ordinal >= 0
    ]


def _of_short_target_info(database: Database) -> Iterable[Device]:
    """TARGET_INFO_GPU of 2020.x names the GPUs and no more: of use only without
    TARGET_INFO_CUDA_GPU."""
    if database.filled("TARGET_INFO_CUDA_GPU"):
        return []
    rows = database.rows("TARGET_INFO_GPU", "deviceId", "name")
    return [_gpu(index, [name, *[None] * 6]) for index, name in rows if isinstance(index, int)]


def _of_cuda_info(database: Database) -> Iterable[Device]:
    """TARGET_INFO_CUDA_GPU (2020.x): kHz, kB/s, and bytes or MiB. 2020.3 gives memory in MiB, and
    with it a bandwidth of 0 or of 0xF0000000, which is none; its successor gives bytes and a
    bandwidth that agrees with the data sheet."""
    wanted = (
        "deviceId",
        "name",
        "numMultiprocessors",
        "computeCapabilityMajor",
        "computeCapabilityMinor",
    )
    rates = ("globalMemorySize", "globalMemoryBandwidth", "coreClockRate")
    for index, *facts, memory, speed, clock in database.rows(
        "TARGET_INFO_CUDA_GPU", *wanted, *rates
    ):
        size = _count(memory)
        if size is not None and size < 16 * MIB:
            size, speed = size * MIB, None
        yield _gpu(index if isinstance(index, int) else 0, [*facts, size, speed, clock], scale=1000)


def _gpu(index: int, facts: Sequence[object], scale: int = 1) -> Device:
    """A GPU from its name, SMs, capability (two), memory, bandwidth and clock; ``scale`` is that of
    the last two."""
    name, sms, major, minor, memory, bandwidth, clock = facts
    rate, frequency = _count(bandwidth), _count(clock)
    capability = (
        f"{major}.{minor}"
        if isinstance(major, int) and major > 0 and isinstance(minor, int)
        else None
    )
    return Device(
        name=_text(name),
        kind="gpu",
        index=index,
        compute_capability=capability,
        sm_count=_count(sms),
        memory_bytes=_count(memory),
        memory_bandwidth_bps=rate and rate * scale,
        clock_hz=frequency and frequency * scale,
    )


def _ordinals(database: Database) -> list[tuple[object, object, object]]:
    """(GPU, CUDA ordinal, process) from 2025.1 on, lowest process first."""
    rows = [
        (row[0], row[1], row[2])
        for row in database.rows("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid")
    ]
    return sorted(rows, key=lambda row: row[2] if isinstance(row[2], int) else 0)


def _device_gaps(database: Database) -> tuple[Gap, ...]:
    rows = {(gpu, ordinal) for gpu, ordinal, _ in _ordinals(database)}
    if len({gpu for gpu, _ in rows}) == len({ordinal for _, ordinal in rows}) == len(rows):
        return ()
    reason = (
        "the processes of this report number the GPUs in different orders; perfctl uses the "
        "numbers of the first process"
    )
    return (Gap("device", "ambiguous", reason),)


def _idle(database: Database, device: Device) -> bool:
    if not database.has(KERNEL, "deviceId"):
        return False
    query = f"SELECT 1 FROM {KERNEL} WHERE deviceId = ? LIMIT 1"
    return database.connection.execute(query, (device.index,)).fetchone() is None


def _merge(first: Device | None, second: Device) -> Device:
    if first is None:
        return second
    names = (
        "name",
        "compute_capability",
        "sm_count",
        "memory_bytes",
        "memory_bandwidth_bps",
        "clock_hz",
    )
    return replace(
        first, **{name: getattr(second, name) for name in names if getattr(first, name) is None}
    )


def _host_fact(database: Database, key: str) -> str | None:
    if not database.has("TARGET_INFO_SYSTEM_ENV", "name", "value"):
        return None
    query = "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = ? LIMIT 1"
    row = database.connection.execute(query, (key,)).fetchone()
    return _text(row[0]) if row else None


def _count(value: object) -> int | None:
    """A size or rate; None where the report has 0 or NULL: nsys writes both for unknown values."""
    return value if isinstance(value, int) and value > 0 else None


def _text(value: object) -> str | None:
    return str(value) if value else None
