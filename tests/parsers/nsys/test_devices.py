"""Devices, versions and messages of nsys exports, and what must not leave them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.make.nsys_sqlite import NsysBuilder, read, training_step

SECRET = "token-that-must-not-leave"


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
