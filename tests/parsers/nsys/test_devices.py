"""Devices, versions and messages of nsys exports, and what must not leave them."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.records.report import Device, Diagnostic
from tests.make.nsys_sqlite import NsysBuilder, gap, read, training_step

OLD_GPU = (
    "deviceId name numMultiprocessors computeCapabilityMajor computeCapabilityMinor "
    "globalMemorySize globalMemoryBandwidth coreClockRate"
)
SECRET = "token-that-must-not-leave"


def gpu(builder: NsysBuilder, number: int, ordinal: int | None, name: str, **more: object) -> None:
    columns = (
        "vmId id name totalMemory memoryBandwidth clockRate smCount cuDevice computeMajor "
        "computeMinor"
    )
    builder.row("TARGET_INFO_GPU", columns, id=number, cuDevice=ordinal, name=name, **more)


def test_the_cuda_device_table_overrules_and_hides_gpus_the_program_did_not_see(
    tmp_path: Path,
) -> None:
    builder = NsysBuilder("2026.1")
    gpu(builder, 0, 0, "A")
    gpu(builder, 3, 3, "D")
    builder.row("TARGET_INFO_CUDA_DEVICE", "gpuId cudaId pid", gpuId=3, cudaId=0, pid=7)
    report = read(builder, tmp_path)
    assert [(d.index, d.name) for d in report.devices] == [(0, "D")]
    assert gap(report, "device") == ""


def test_a_reexport_with_empty_columns_leaves_them_unknown(tmp_path: Path) -> None:
    builder = NsysBuilder()
    gpu(builder, 0, None, "Tesla T4", totalMemory=0)
    assert read(builder, tmp_path).devices == (Device("Tesla T4", "gpu", 0),)


@pytest.mark.parametrize(
    ("memory", "bandwidth", "expected"),
    [
        (32510, 0, (32510 * 2**20, None)),
        (48601, 0xF0000000, (48601 * 2**20, None)),
        (2**24 - 1, 0, ((2**24 - 1) << 20, None)),
        (2**24, 0, (2**24, None)),
        (10_495_524_864, 760_080_000, (10_495_524_864, 760_080_000_000)),
    ],
)
def test_old_gpu_tables_are_brought_to_bytes_and_hertz(
    memory: int, bandwidth: int, expected: tuple[int, int | None], tmp_path: Path
) -> None:
    builder = NsysBuilder("2020.3")
    facts = {
        "globalMemorySize": memory,
        "globalMemoryBandwidth": bandwidth,
        "coreClockRate": 1_380_000,
    }
    builder.row(
        "TARGET_INFO_CUDA_GPU", OLD_GPU, deviceId=0, name="V100", numMultiprocessors=80, **facts
    )
    builder.row(
        "TARGET_INFO_GPU", "vmId deviceId name busLocation isDiscrete", deviceId=1, name="V100"
    )
    assert read(builder, tmp_path).devices == (
        Device("V100", "gpu", 0, None, 80, expected[0], expected[1], clock_hz=1_380_000_000),
    )


def test_only_named_facts_leave_the_tables_that_hold_the_environment(tmp_path: Path) -> None:
    builder = training_step(NsysBuilder())
    builder.string(f"HOME=/root\nAPI_KEY={SECRET}")
    for name, value in (
        ("NvDriverVersion", "5206105"),
        ("CudaDriverVersion", "12020"),
        ("EnvVars", SECRET),
    ):
        builder.row(
            "TARGET_INFO_SYSTEM_ENV",
            "globalVid devStateName name nameEnum value",
            name=name,
            value=value,
        )
    builder.row("META_DATA_CAPTURE", "name value", name="PROCESS_0:ENVIRONMENT", value=SECRET)
    report = read(builder, tmp_path)
    assert (report.environment["driver"], report.environment["cuda_driver"]) == (
        "520.61.05",
        "12.2",
    )
    everything = (report, *report.kernels, *report.copies, *report.ranges)
    assert SECRET not in repr(everything)


def test_start_length_and_messages_of_the_capture(tmp_path: Path) -> None:
    builder = NsysBuilder()
    builder.row(
        "TARGET_INFO_SESSION_START_TIME", "utcEpochNs utcTime", utcEpochNs=1_705_446_034_890_745_579
    )
    builder.row(
        "ANALYSIS_DETAILS", "globalVid duration startTime stopTime", duration=12_561_596_789
    )
    builder.row("ENUM_DIAGNOSTIC_SOURCE_TYPE", "id name label", id=1, label="Injection")
    for severity in (1, 2, 3):
        columns = "timestamp timestampType source severity text globalPid"
        builder.row(
            "DIAGNOSTIC_EVENT", columns, source=1, severity=severity, text="No CUDA\n events."
        )
    report = read(builder, tmp_path)
    assert (report.started_at, report.duration_ns) == ("2024-01-16T23:00:34Z", 12_561_596_789)
    assert [(d.severity, d.source, d.text) for d in report.diagnostics] == [
        (severity, "Injection", "No CUDA events.") for severity in ("info", "warning", "error")
    ]


def said(builder: NsysBuilder, **facts: str) -> None:
    for name, value in facts.items():
        builder.row(
            "TARGET_INFO_SYSTEM_ENV",
            "globalVid devStateName name nameEnum value",
            name=name,
            value=value,
        )


@pytest.mark.parametrize(
    ("fact", "value", "expected"),
    [
        ("NvDriverVersion", "5206105", {"driver": "520.61.05"}),
        ("NvDriverVersion", "535.104.05", {"driver": "535.104.05"}),
        ("NvDriverVersion", "520610", {"driver": "520610"}),
        ("NvDriverVersion", "52061055", {"driver": "52061055"}),
        ("CudaDriverVersion", "12020", {"cuda_driver": "12.2"}),
        ("CudaDriverVersion", "11080", {"cuda_driver": "11.8"}),
        ("CudaDriverVersion", "13010", {"cuda_driver": "13.1"}),
        ("CudaDriverVersion", "new", {}),
        ("CudaDriverVersion", "12090", {"cuda_driver": "12.9"}),
        ("CudaDriverVersion", "9020", {"cuda_driver": "9.2"}),
        ("NvDriverVersion", "535.1.5", {"driver": "535.1.5"}),
        ("CpuFlags", "sse", {}),
        ("CpuDescription", "EPYC", {"cpu": "EPYC"}),
        ("CpuCores", "64", {"cpu_cores": "64"}),
        ("CpuArchitecture", "x86_64", {"cpu_architecture": "x86_64"}),
        ("OsDescription", "Linux", {"os": "Linux"}),
        ("OsDescription", "", {}),
    ],
)
def test_facts_of_the_host_have_names_of_perfctls_own(
    fact: str, value: str, expected: dict[str, str], tmp_path: Path
) -> None:
    builder = NsysBuilder()
    said(builder, **{fact: value})
    own = {"nsys": "2024.2.3.38", "nsys_schema": "3.11.1"}
    report = read(builder, tmp_path)
    assert report.environment == own | expected
    assert report.tool_version == own["nsys"]


@pytest.mark.parametrize(
    ("epochs", "durations", "expected"),
    [
        ((0, -1, 1_000_000_000), (5, 9, 7), ("1970-01-01T00:00:01Z", 9)),
        ((0,), (0,), (None, None)),
        ((), (), (None, None)),
        (
            (None, 1_705_446_034_999_999_999, 1_705_446_099_000_000_000),
            (None, 1),
            ("2024-01-16T23:00:34Z", 1),
        ),
    ],
)
def test_a_start_is_the_first_above_zero_in_whole_seconds_and_the_longest_duration_counts(
    epochs: tuple[int | None, ...],
    durations: tuple[int | None, ...],
    expected: tuple[object, object],
    tmp_path: Path,
) -> None:
    builder = NsysBuilder()
    for epoch in epochs:
        builder.row("TARGET_INFO_SESSION_START_TIME", "utcEpochNs utcTime", utcEpochNs=epoch)
    for duration in durations:
        builder.row("ANALYSIS_DETAILS", "globalVid duration startTime stopTime", duration=duration)
    report = read(builder, tmp_path)
    assert (report.started_at, report.duration_ns, report.diagnostics) == (*expected, ())


def test_what_a_gpu_table_says_is_taken_as_it_stands_and_zero_is_not_known(tmp_path: Path) -> None:
    builder = NsysBuilder()
    said(builder, NvDriverVersion="550.54")
    rates = {"totalMemory": 8, "memoryBandwidth": 9, "clockRate": 10, "smCount": 1}
    gpu(builder, 5, 0, "A", computeMajor=9, computeMinor=0, **rates)
    gpu(builder, 6, 1, "", computeMajor=0, computeMinor=5, **dict.fromkeys(rates, 0))
    gpu(builder, 7, -1, "hidden")
    gpu(builder, 8, 3, "C", computeMajor=1, computeMinor=None, **dict.fromkeys(rates, -1))
    assert read(builder, tmp_path).devices == (
        Device("A", "gpu", 0, "9.0", 1, 8, 9, clock_hz=10, driver_version="550.54"),
        Device(None, "gpu", 1, driver_version="550.54"),
        Device("C", "gpu", 3, driver_version="550.54"),
    )


def test_a_gpu_that_no_kernel_ran_on_stands_after_those_that_worked(tmp_path: Path) -> None:
    builder = NsysBuilder()
    for number in range(4):
        gpu(builder, number, number, f"G{number}")
    for device in (3, 1):
        builder.kernel(1, deviceId=device)
    assert [device.index for device in read(builder, tmp_path).devices] == [1, 3, 0, 2]


def test_the_lowest_process_numbers_the_gpus(tmp_path: Path) -> None:
    builder = NsysBuilder("2026.1")
    for number, name in ((0, "A"), (1, "B")):
        gpu(builder, number, number, name)
    for pid, first in ((9, 0), (5, 1)):
        for number in (0, 1):
            ordinal = number ^ first
            builder.row(
                "TARGET_INFO_CUDA_DEVICE", "gpuId cudaId pid", gpuId=number, cudaId=ordinal, pid=pid
            )
    report = read(builder, tmp_path)
    assert [(device.index, device.name) for device in report.devices] == [(0, "B"), (1, "A")]
    assert gap(report, "device").startswith("ambiguous")


def test_two_tables_about_one_gpu_complete_each_other(tmp_path: Path) -> None:
    builder = NsysBuilder()
    gpu(builder, 0, 0, "first", smCount=80)
    more = {"numMultiprocessors": 99, "computeCapabilityMajor": 7, "computeCapabilityMinor": 0}
    more |= {"globalMemorySize": 2**34, "coreClockRate": 3}
    builder.row("TARGET_INFO_CUDA_GPU", OLD_GPU, deviceId=0, name="second", **more)
    assert read(builder, tmp_path).devices == (
        Device("first", "gpu", 0, "7.0", 80, 2**34, clock_hz=3000),
    )


def test_messages_without_a_text_or_a_source_are_left_out_or_nsyss_own(tmp_path: Path) -> None:
    builder = NsysBuilder()
    columns = "timestamp timestampType source severity text globalPid"
    for severity, text in ((2, "kept"), (2, None), (2, ""), ("2", "odd"), (9, "other")):
        builder.row("DIAGNOSTIC_EVENT", columns, source=4, severity=severity, text=text)
    found = read(builder, tmp_path).diagnostics
    assert list(found) == [
        Diagnostic("warning", "nsys", "kept"),
        Diagnostic("info", "nsys", "other"),
    ]


def test_the_oldest_gpu_table_alone_names_the_gpus_and_no_more(tmp_path: Path) -> None:
    builder = NsysBuilder("2020.3")
    for index, name in ((1, "V100"), (0, ""), (None, "T4")):
        builder.row("TARGET_INFO_GPU", "vmId deviceId name busLocation", deviceId=index, name=name)
    assert read(builder, tmp_path).devices == (Device(None, "gpu", 0), Device("V100", "gpu", 1))


def test_an_old_gpu_without_a_number_is_the_first_and_its_bandwidth_counts_in_kilobytes(
    tmp_path: Path,
) -> None:
    builder = NsysBuilder("2020.3")
    more = {
        "computeCapabilityMajor": 1,
        "computeCapabilityMinor": 0,
        "globalMemoryBandwidth": 1,
        "coreClockRate": 1,
    }
    builder.row("TARGET_INFO_CUDA_GPU", OLD_GPU, name="G", numMultiprocessors=1, **more)
    builder.row("TARGET_INFO_CUDA_GPU", OLD_GPU, deviceId=1, globalMemorySize=1, **more)
    assert read(builder, tmp_path).devices == (
        Device("G", "gpu", 0, "1.0", 1, None, 1000, clock_hz=1000),
        Device(None, "gpu", 1, "1.0", None, 2**20, None, clock_hz=1000),
    )


def test_gpus_without_an_ordinal_among_others_that_have_one_were_not_seen_by_the_program(
    tmp_path: Path,
) -> None:
    builder = NsysBuilder()
    gpu(builder, 4, None, "hidden")
    gpu(builder, 5, 0, "seen")
    assert [(device.index, device.name) for device in read(builder, tmp_path).devices] == [
        (0, "seen")
    ]


@pytest.mark.parametrize(
    ("rows", "ambiguous"),
    [
        (((0, 0, 7), (1, 1, 7), (0, 0, 9), (1, 1, 9)), False),
        (((0, 0, 7), (0, 1, 9)), True),
        (((0, 0, 7), (1, 0, 9)), True),
        (((0, 0, 7), (1, 1, 7), (0, 1, 9), (1, 0, 9)), True),
        (((0, 1, 7),), False),
    ],
)
def test_processes_that_agree_on_the_gpus_are_no_gap(
    rows: tuple[tuple[int, int, int], ...], ambiguous: bool, tmp_path: Path
) -> None:
    """(GPU, ordinal, process): each GPU must have one ordinal, and each ordinal one GPU."""
    builder = NsysBuilder("2026.1")
    for number in (0, 1):
        gpu(builder, number, number, f"G{number}")
    for number, ordinal, pid in rows:
        builder.row(
            "TARGET_INFO_CUDA_DEVICE", "gpuId cudaId pid", gpuId=number, cudaId=ordinal, pid=pid
        )
    said = (
        "the processes of this report number the GPUs in different orders; perfctl uses the "
        "numbers of the first process"
    )
    assert gap(read(builder, tmp_path), "device") == (f"ambiguous: {said}" if ambiguous else "")
