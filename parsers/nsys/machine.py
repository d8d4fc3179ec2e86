"""Reads facts about the machine from an nsys export: GPUs, versions, the capture, and nsys's
messages. nsys also keeps the whole environment of every process (StringIds, TARGET_INFO_SYSTEM_ENV,
META_DATA_CAPTURE). Only the keys named here are read; nothing else of these tables leaves
the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from perfctl.parsers.common.numbers import format_utc_iso
from perfctl.parsers.common.sqlite import Database
from perfctl.parsers.nsys.tables import KERNEL, StringTable
from perfctl.records.report import Device, Diagnostic, Gap, Thread

MIB = 1 << 20
HOST_FACTS = {
    "NvDriverVersion": "driver",
    "CpuDescription": "cpu",
    "CpuCores": "cpu_cores",
    "CpuArchitecture": "cpu_architecture",
    "OsDescription": "os",
    "CudaDriverVersion": "cuda_driver",
}


def read_nsys_and_schema_versions(database: Database) -> tuple[str | None, str | None]:
    """Return (nsys version, schema version); None up to 2021.3, which wrote no version."""
    facts = database.read_name_value_table("EXPORT_META_DATA") | database.read_name_value_table(
        "META_DATA_EXPORT"
    )
    return facts.get("EXPORT_PRODUCT_VERSION"), facts.get("EXPORT_SCHEMA_VERSION")


def read_versions_and_host_facts(database: Database) -> dict[str, str]:
    """Return facts about versions and the host, from the keys named here only."""
    version, schema = read_nsys_and_schema_versions(database)
    facts = {"nsys": version, "nsys_schema": schema, **_read_host_facts(database)}
    return {key: value for key, value in facts.items() if value}


def _read_host_facts(database: Database) -> dict[str, str | None]:
    if not database.has_table_with_columns("TARGET_INFO_SYSTEM_ENV", "name", "value"):
        return {}
    marks = ", ".join("?" * len(HOST_FACTS))
    query = f"SELECT name, value FROM TARGET_INFO_SYSTEM_ENV WHERE name IN ({marks})"
    rows = database.connection.execute(query, list(HOST_FACTS)).fetchall()
    values = dict(reversed(rows))  # the first of several counts
    facts = {name: _text_or_none(values.get(key)) for key, name in HOST_FACTS.items()}
    driver, cuda = facts["driver"] or "", facts["cuda_driver"] or ""
    if driver.isdecimal() and len(driver) == 7:  # 5206105 is 520.61.05 (2021.3, 2022.1, 2022.4)
        facts["driver"] = f"{driver[:3]}.{driver[3:5]}.{driver[5:]}"
    is_number = cuda.isdecimal()  # 12020 is CUDA 12.2
    facts["cuda_driver"] = f"{int(cuda) // 1000}.{int(cuda) % 1000 // 10}" if is_number else None
    return facts


def read_thread_names(database: Database, global_thread_ids: set[int]) -> tuple[Thread, ...]:
    """Names of these threads (globalTid); the file holds those of all other programs, too."""
    if not database.has_table_with_columns("ThreadNames", "nameId", "globalTid"):
        return ()
    strings = StringTable(database)
    names = {
        number: strings[name]
        for name, number in database.read_rows("ThreadNames", "nameId", "globalTid")
        if isinstance(number, int) and number in global_thread_ids
    }
    return tuple(
        Thread(number >> 24 & 0xFFFFFF, number & 0xFFFFFF, name)
        for number, name in sorted(names.items())
        if name
    )


def read_session_start_utc(database: Database) -> str | None:
    """Return the start of the session, UTC, ISO 8601."""
    rows = database.read_rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
    starts = [epoch for (epoch,) in rows if isinstance(epoch, int) and epoch > 0]
    return format_utc_iso(starts[0]) if starts else None


def read_capture_duration_ns(database: Database) -> int | None:
    """Return the length of the capture; None up to 2021.3."""
    rows = database.read_rows("ANALYSIS_DETAILS", "duration")
    return max((value for (value,) in rows if isinstance(value, int)), default=0) or None


def read_nsys_messages(database: Database) -> tuple[Diagnostic, ...]:
    """nsys's messages about the capture, in its order; the table exists since 2024.2."""
    severities = {2: "warning", 3: "error"}
    sources = {
        row[0]: row[1] for row in database.read_rows("ENUM_DIAGNOSTIC_SOURCE_TYPE", "id", "label")
    }
    rows = database.read_rows("DIAGNOSTIC_EVENT", "severity", "source", "text")
    return tuple(
        Diagnostic(
            severities.get(severity, "info"),
            str(sources.get(source) or "nsys"),
            " ".join(str(text).split()),
        )
        for severity, source, text in rows
        if text and isinstance(severity, int)
    )


def read_devices(database: Database) -> tuple[tuple[Device, ...], tuple[Gap, ...]]:
    """Return the GPUs, those that ran kernels first, then by CUDA ordinal; and a gap if there are
    none or ordinals differ."""
    driver = _read_host_facts(database).get("driver")
    rows = database.read_rows("TARGET_INFO_CUDA_DEVICE", "pid", "gpuId", "cudaId")  # since 2025.1
    rows.sort(key=lambda row: row[0] if isinstance(row[0], int) else 0)
    devices: dict[int, Device] = {}
    for device in (*_read_target_info_gpu(database, rows), *_read_target_info_cuda_gpu(database)):
        first = asdict(devices.get(device.index, device))
        stated = {name: value for name, value in first.items() if value is not None}
        devices[device.index] = replace(device, **{**stated, "driver_version": driver})

    busy = set()
    if len(devices) > 1 and database.has_table_with_columns(KERNEL, "deviceId"):
        query = f"SELECT DISTINCT deviceId FROM {KERNEL}"
        busy = {index for (index,) in database.connection.execute(query)}
    ordered = sorted(devices.values(), key=lambda device: (device.index not in busy, device.index))
    gaps = [] if devices else [Gap("device", "not_collected", "the report names no GPU")]
    pairs = {(gpu, ordinal) for _, gpu, ordinal in rows}
    if devices and not len(dict(pairs)) == len({ordinal for _, ordinal in pairs}) == len(pairs):
        reason = (
            "the processes of this report number the GPUs in different orders; perfctl uses the "
            "numbers of the first process"
        )
        gaps.append(Gap("device", "ambiguous", reason))
    return tuple(ordered), tuple(gaps)


def _read_target_info_gpu(
    database: Database, cuda_devices: Sequence[Sequence[object]]
) -> Iterator[Device]:
    """TARGET_INFO_GPU: bytes, bytes per second and hertz; its rows are not in the order of the
    ordinals. ``cuda_devices``: process, GPU, ordinal."""
    table = "TARGET_INFO_GPU"
    if not database.has_table_with_columns(table, "id"):  # 2020.x names the GPUs and no more
        if not database.has_row_or_value("TARGET_INFO_CUDA_GPU"):
            for index, name in database.read_rows(table, "deviceId", "name"):
                if isinstance(index, int):
                    yield Device(_text_or_none(name), "gpu", index)
        return
    columns = ("id", "cuDevice", "name", "smCount", "computeMajor", "computeMinor")
    rows = database.read_rows(table, *columns, "totalMemory", "memoryBandwidth", "clockRate")
    by_gpu = {gpu: ordinal for _, gpu, ordinal in reversed(cuda_devices)}
    if not by_gpu:  # before 2025.1
        by_gpu = {row[0]: row[1] for row in rows if row[1] is not None}
    if not by_gpu:  # an old report exported by a newer nsys: the columns are there, and NULL
        by_gpu = {row[0]: row[0] for row in rows}
    for gpu, _, *facts in rows:
        ordinal = by_gpu.get(gpu)
        if isinstance(ordinal, int) and ordinal >= 0:
            yield _make_gpu(ordinal, facts)


def _read_target_info_cuda_gpu(database: Database) -> Iterator[Device]:
    """TARGET_INFO_CUDA_GPU (2020.x): kHz, kB/s, and bytes or MiB. 2020.3 gives memory in MiB, and
    with it a bandwidth of 0 or of 0xF0000000, which is none; its successor gives bytes and a
    bandwidth that agrees with the data sheet."""
    columns = (
        "deviceId",
        "name",
        "numMultiprocessors",
        "computeCapabilityMajor",
        "computeCapabilityMinor",
    )
    rates = ("globalMemorySize", "globalMemoryBandwidth", "coreClockRate")
    for index, *facts, memory, speed, clock in database.read_rows(
        "TARGET_INFO_CUDA_GPU", *columns, *rates
    ):
        size = _positive_int_or_none(memory)
        if size is not None and size < 16 * MIB:
            size, speed = size * MIB, None
        yield _make_gpu(
            index if isinstance(index, int) else 0, [*facts, size, speed, clock], scale=1000
        )


def _make_gpu(index: int, facts: Sequence[object], scale: int = 1) -> Device:
    """A GPU from its name, SMs, capability (two), memory, bandwidth and clock; ``scale`` is that of
    the last two."""
    name, sms, major, minor, memory, bandwidth, clock = facts
    rate, frequency = _positive_int_or_none(bandwidth), _positive_int_or_none(clock)
    capability = (
        f"{major}.{minor}"
        if isinstance(major, int) and major > 0 and isinstance(minor, int)
        else None
    )
    return Device(
        name=_text_or_none(name),
        kind="gpu",
        index=index,
        compute_capability=capability,
        sm_count=_positive_int_or_none(sms),
        memory_bytes=_positive_int_or_none(memory),
        memory_bandwidth_bps=rate and rate * scale,
        clock_hz=frequency and frequency * scale,
    )


def _positive_int_or_none(value: object) -> int | None:
    """A size or rate; None where the report has 0 or NULL: nsys writes both for unknown values."""
    return value if isinstance(value, int) and value > 0 else None


def _text_or_none(value: object) -> str | None:
    return str(value) if value else None
