"""Devices, versions and messages of nsys exports, and what must not leave them."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers.records import Device
from tests.parsers.nsys_builder import NsysBuilder, gap, read, training_step

SECRET = "token-that-must-not-leave"


def gpu(builder: NsysBuilder, number: int, ordinal: int | None, name: str, **more: object) -> None:
    columns = "vmId id name totalMemory memoryBandwidth clockRate smCount cuDevice computeMajor computeMinor"
    builder.row("TARGET_INFO_GPU", columns, id=number, cuDevice=ordinal, name=name, **more)


def test_devices_stand_by_cuda_ordinal_those_that_worked_first(tmp_path: Path) -> None:
    builder = NsysBuilder()
    gpu(builder, 0, 1, "B")
    gpu(builder, 1, 0, "A")
    builder.kernel(1, deviceId=1)
    assert [(d.index, d.name) for d in read(builder, tmp_path).devices] == [(1, "B"), (0, "A")]


def test_the_cuda_device_table_overrules_and_hides_gpus_the_program_did_not_see(tmp_path: Path) -> None:
    builder = NsysBuilder("2026.1")
    gpu(builder, 0, 0, "A")
    gpu(builder, 3, 3, "D")
    builder.row("TARGET_INFO_CUDA_DEVICE", "gpuId cudaId pid", gpuId=3, cudaId=0, pid=7)
    report = read(builder, tmp_path)
    assert [(d.index, d.name) for d in report.devices] == [(0, "D")]
    assert gap(report, "device") == ""


def test_processes_that_number_the_gpus_differently_are_a_gap(tmp_path: Path) -> None:
    builder = NsysBuilder("2026.1")
    for number, name in ((0, "A"), (1, "B")):
        gpu(builder, number, number, name)
        builder.row("TARGET_INFO_CUDA_DEVICE", "gpuId cudaId pid", gpuId=number, cudaId=0, pid=9 - number)
    report = read(builder, tmp_path)
    assert gap(report, "device").startswith("ambiguous")


def test_a_reexport_with_empty_columns_leaves_them_unknown(tmp_path: Path) -> None:
    builder = NsysBuilder()
    gpu(builder, 0, None, "Tesla T4", totalMemory=0)
    assert read(builder, tmp_path).devices == (Device("Tesla T4", "gpu", 0),)


@pytest.mark.parametrize(
    ("memory", "bandwidth", "expected"),
    [
        (32510, 0, (32510 * 2**20, None)),
        (48601, 0xF0000000, (48601 * 2**20, None)),
        (10_495_524_864, 760_080_000, (10_495_524_864, 760_080_000_000)),
    ],
)
def test_old_gpu_tables_are_brought_to_bytes_and_hertz(
    memory: int, bandwidth: int, expected: tuple[int, int | None], tmp_path: Path
) -> None:
    builder = NsysBuilder("2020.3")
    columns = "deviceId name numMultiprocessors globalMemorySize globalMemoryBandwidth coreClockRate"
    facts = {"globalMemorySize": memory, "globalMemoryBandwidth": bandwidth, "coreClockRate": 1_380_000}
    builder.row("TARGET_INFO_CUDA_GPU", columns, deviceId=0, name="V100", numMultiprocessors=80, **facts)
    builder.row("TARGET_INFO_GPU", "vmId deviceId name busLocation isDiscrete", deviceId=1, name="V100")
    assert read(builder, tmp_path).devices == (
        Device("V100", "gpu", 0, None, 80, expected[0], expected[1], clock_hz=1_380_000_000),
    )


def test_only_named_facts_leave_the_tables_that_hold_the_environment(tmp_path: Path) -> None:
    builder = training_step(NsysBuilder())
    builder.string(f"HOME=/root\nAPI_KEY={SECRET}")
    for name, value in (("NvDriverVersion", "5206105"), ("CudaDriverVersion", "12020"), ("EnvVars", SECRET)):
        builder.row("TARGET_INFO_SYSTEM_ENV", "globalVid devStateName name nameEnum value", name=name, value=value)
    builder.row("META_DATA_CAPTURE", "name value", name="PROCESS_0:ENVIRONMENT", value=SECRET)
    report = read(builder, tmp_path)
    assert (report.environment["driver"], report.environment["cuda_driver"]) == ("520.61.05", "12.2")
    everything = (report, *report.kernels, *report.copies, *report.ranges)
    assert SECRET not in repr(everything)


def test_start_length_and_messages_of_the_capture(tmp_path: Path) -> None:
    builder = NsysBuilder()
    builder.row("TARGET_INFO_SESSION_START_TIME", "utcEpochNs utcTime", utcEpochNs=1_705_446_034_890_745_579)
    builder.row("ANALYSIS_DETAILS", "globalVid duration startTime stopTime", duration=12_561_596_789)
    builder.row("ENUM_DIAGNOSTIC_SOURCE_TYPE", "id name label", id=1, label="Injection")
    for severity in (1, 2, 3):
        columns = "timestamp timestampType source severity text globalPid"
        builder.row("DIAGNOSTIC_EVENT", columns, source=1, severity=severity, text="No CUDA\n events.")
    report = read(builder, tmp_path)
    assert (report.started_at, report.duration_ns) == ("2024-01-16T23:00:34Z", 12_561_596_789)
    assert [(d.severity, d.source, d.text) for d in report.diagnostics] == [
        (severity, "Injection", "No CUDA events.") for severity in ("info", "warning", "error")
    ]
