"""DCGM's two forms: tests/data/dcgm-synthetic (made up) and the real long CSV."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from perfctl.parsers import ReportError, parse, sniff
from perfctl.parsers.records import Sample

DATA = Path(__file__).resolve().parent.parent / "data" / "dcgm-synthetic"
FIRST = 1709632800000000 * 1000
SECOND = 10**9


def test_rows_of_the_long_form_are_put_together_by_gpu_and_moment() -> None:
    report = parse(DATA / "long.csv")
    assert list(report.samples) == [
        Sample(FIRST, 0.5, None, None, 70.5, None, None, 0),
        Sample(FIRST + SECOND // 2, None, 1024 * 2**20, None, None, None, None, 1),
        Sample(FIRST + SECOND, 0.6, None, None, 80.5, None, None, 0),
    ]
    assert (report.tool, report.started_at, report.duration_ns) == ("dcgm", "2024-03-05T10:00:00Z", SECOND)
    states = {gap.quantity: gap.state for gap in report.gaps}
    assert states["sample.temperature_c"] == "not_available"
    assert states["sample.sm_clock_hz"] == "not_collected"


def test_bit_masks_are_counted_and_not_averaged() -> None:
    figures = {figure.name: figure.text for figure in parse(DATA / "long.csv").summaries}
    assert figures["GPU 0: current_clock_throttle_reasons"] == "4"
    assert "GPU 0: current_clock_throttle_reasons mean" not in figures


def test_the_text_form_has_short_names_and_the_stated_interval() -> None:
    report = parse(DATA / "dmon.txt")
    samples = list(report.samples)
    assert samples[0] == Sample(0, 0.75, 2048 * 2**20, None, 180.5, 60, 1_410_000_000, 0)
    assert [(sample.at_ns, sample.device_index) for sample in samples] == [
        (0, 0),
        (0, 1),
        (500_000_000, 0),
        (500_000_000, 1),
    ]
    assert samples[3].gpu_utilisation is None
    figures = {figure.name: figure.value for figure in report.summaries}
    assert figures["GPU 0: SMACT mean"] == 0.625
    assert "sample.at_ns" in {gap.quantity for gap in report.gaps}


@pytest.mark.parametrize("name", ["dmon.txt", "long.csv"])
def test_a_cut_file_gives_no_number_that_the_whole_one_does_not(tmp_path: Path, name: str) -> None:
    whole = (DATA / name).read_bytes()
    good = {(sample.at_ns, sample.device_index): sample for sample in parse(DATA / name).samples}
    path = tmp_path / name
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        try:
            samples = list(parse(path).samples)
        except ReportError:
            continue
        for sample in samples:
            known = good[sample.at_ns, sample.device_index]
            assert all(value in (field, None) for field, value in zip(known, sample, strict=True)), size


def test_lines_of_others_and_impossible_moments_are_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text(
        "GPUId,TimeStampUs,Field,Values\n0,99999999999999999999,gpu_temp,1\nError: lost\n"
        + "0,1709632800000000,gpu_temp,50\n"
    )
    report = parse(path)
    assert [sample.temperature_c for sample in report.samples] == [50]
    assert any("Error: lost" in entry.text for entry in report.diagnostics)


def test_a_header_alone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("GPUId,TimeStampUs,Field,Values\n")
    with pytest.raises(ReportError, match="no whole reading"):
        parse(path)


def test_the_real_file_arrives_whole(reports: Path) -> None:
    path = reports / "nvidia_smi" / "dcgm_test_dmon.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    power = {
        (int(row["TimeStampUs"]) * 1000, int(row["GPUId"]), float(row["Values"]))
        for row in rows
        if row["Field"] == "power_usage_instant"
    }
    found = sniff(path)
    assert found is not None
    assert found.name == "DCGM"
    report = parse(path)
    assert {(sample.at_ns, sample.device_index, sample.power_w) for sample in report.samples} == power
    assert len(list(report.samples)) == len(power)
    masks = [row for row in rows if row["GPUId"] == "0" and row["Field"] == "current_clock_throttle_reasons"]
    counted = [f.value for f in report.summaries if f.name.startswith("GPU 0: current_clock_throttle_reasons:")]
    assert sum(value or 0 for value in counted) == len(masks)
