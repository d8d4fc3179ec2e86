"""Nsight Compute report files: read through NVIDIA's package, in a process that may die
without harm."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from perfctl.parsers.ncu import csv as ncu_csv
from perfctl.parsers.ncu import rep as ncu_rep
from perfctl.parsers.ncu.rep import outline
from perfctl.records.errors import ReportError
from tests.make.ncu_rep import block, report_bytes


def test_a_report_is_recognised_by_its_first_bytes(tmp_path: Path) -> None:
    assert ncu_rep.sniff(tmp_path, b"NVR\0\x02\0\0\0")
    assert not ncu_rep.sniff(tmp_path, b"SQLite format 3\0")


def test_without_the_package_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ncu_rep, "find_spec", lambda name: None)
    path = tmp_path / "a.ncu-rep"
    path.write_bytes(report_bytes(block(b"", 1)))
    with pytest.raises(ReportError, match=r"perfctl\[ncu\]"):
        ncu_rep.parse(path)


@pytest.mark.parametrize("kept", [4, 6, 9, 12, 18, 30])
def test_a_report_that_is_cut_off_is_refused_before_the_package_sees_it(
    tmp_path: Path, kept: int
) -> None:
    path = tmp_path / "cut.ncu-rep"
    path.write_bytes(report_bytes(block(b"x" * 20, 1))[:kept])
    with pytest.raises(ReportError, match="truncated"):
        ncu_rep.parse(path)


def test_bytes_without_structure_behind_the_magic_are_an_error(tmp_path: Path) -> None:
    pytest.importorskip("ncu_report")
    for filling in (bytes(1000), b"\xff" * 1000, bytes(range(256)) * 4):
        path = tmp_path / "noise.ncu-rep"
        path.write_bytes(b"NVR\0" + filling)
        with pytest.raises(ReportError):
            ncu_rep.parse(path)


REAL = {
    "armleth_mlp_report.ncu-rep": (1, "2024.2.1.0", "7.5", 40),
    "cs599k_h100_silu_2025-04-21.ncu-rep": (3, "2025.1.0.0", "8.0", 108),
    "lashi_profile.ncu-rep": (3, "2023.1.0.0", "8.9", 128),
    "matrixMul_profile.nsight-cuprof-report": (8, None, "7.5", 36),
    "montecarlo_profile.ncu-rep": (2, "2020.2.1.0", "8.6", 68),
}


@pytest.mark.parametrize("name", REAL)
def test_real_reports_of_2019_to_2025_open(reports: Path, name: str) -> None:
    pytest.importorskip("ncu_report")
    path = reports / "ncu/rep" / name
    report = ncu_rep.parse(path)
    kernels, version, capability, processors = REAL[name]
    assert len(list(report.kernels)) == kernels == outline(path).results
    assert report.tool_version == version
    assert [(device.compute_capability, device.sm_count) for device in report.devices] == [
        (capability, processors)
    ]
    assert {counter.launch for counter in report.counters} == set(range(kernels))


@pytest.mark.parametrize("locale", ["C", "en_US.UTF-8", "de_DE.UTF-8", "C.units_base"])
def test_the_raw_export_of_a_report_agrees_with_the_report_in_every_locale(
    reports: Path, locale: str
) -> None:
    pytest.importorskip("ncu_report")
    truth = {
        (counter.launch, counter.name): counter.value
        for counter in ncu_rep.parse(reports / "ncu/rep/lashi_profile.ncu-rep").counters
        if isinstance(counter.value, int | float) and "[" not in counter.name
    }
    report = ncu_csv.parse(reports / f"ncu/locale_generated/lashi_profile.raw.{locale}.csv")
    compared = 0
    for counter in report.counters:
        expected = truth.get((counter.launch, counter.name))
        if expected is None or counter.value is None:
            continue
        compared += 1
        assert math.isclose(counter.value, expected, rel_tol=1e-3, abs_tol=0.0051), counter
    assert compared > 0.9 * len(truth)
