"""DCGM's two forms: tests/data/dcgm-synthetic (made up) and the real long CSV."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from perfctl.parsers import ReportError, parse, sniff
from perfctl.parsers.monitors import dcgm
from perfctl.records.report import Gap, Sample, Summary
from tests.parsers.cuts import cuts
from tests.parsers.monitor_logs import read

DATA = Path(__file__).resolve().parents[2] / "data" / "dcgm-synthetic"
FIRST = 1709632800000000 * 1000
SECOND = 10**9


def test_rows_of_the_long_form_are_put_together_by_gpu_and_moment() -> None:
    report = parse(DATA / "long.csv")
    assert list(report.samples) == [
        Sample(FIRST, 0.5, None, None, 70.5, None, None, 0),
        Sample(FIRST + SECOND // 2, None, 1024 * 2**20, None, None, None, None, 1),
        Sample(FIRST + SECOND, 0.6, None, None, 80.5, None, None, 0),
    ]
    assert (report.tool, report.started_at, report.duration_ns) == (
        "dcgm",
        "2024-03-05T10:00:00Z",
        SECOND,
    )
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
    for size in cuts(whole):
        path.write_bytes(whole[:size])
        try:
            samples = list(dcgm.parse(path).samples)
        except ReportError:
            continue
        for sample in samples:
            known = good[sample.at_ns, sample.device_index]
            assert all(
                value in (field, None) for field, value in zip(known, sample, strict=True)
            ), size


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
    with pytest.raises(ReportError, match="no complete reading"):
        parse(path)


FIELDS = {
    "gpu_utilization": "GPUTL",
    "fb_used": "FBUSD",
    "fb_total": "FBTTL",
    "power_usage": "POWER",
    "gpu_temp": "TMPTR",
    "sm_clock": "SMCLK",
    "fb_free": "FBFRE",
    "memory_temp": "MMTMP",
    "memory_clock": "MMCLK",
    "mem_copy_utilization": "MCUTL",
    "enc_utilization": "ENCUT",
    "dec_utilization": "DECUT",
    "power_management_limit": "PMLMT",
    "total_energy_consumption": "TOTEC",
    "sm_active": "sm_active",
}
"""Field -> dcgmi's short name; the first six fill a sample."""


@pytest.mark.parametrize("form", ["long", "text"])
def test_every_field_has_its_unit_in_both_forms(tmp_path: Path, form: str) -> None:
    if form == "long":
        rows = "".join(f"3,1709632800000000,{name},{n}\n" for n, name in enumerate(FIELDS, 10))
        report = read(tmp_path, "GPUId,TimeStampUs,Field,Values\n" + rows)
    else:
        figures = " ".join(str(n) for n in range(10, 10 + len(FIELDS)))
        report = read(tmp_path, f"#Entity {' '.join(FIELDS.values())}\nID\nGPU 3 {figures}\n")
    assert report.form == ("DCGM CSV" if form == "long" else "dcgmi dmon")
    at_ns = FIRST if form == "long" else 0
    assert list(report.samples) == [
        Sample(at_ns, 0.1, 11 * 2**20, 12 * 2**20, 13, 14, 15 * 10**6, 3)
    ]
    means = [figure for figure in report.summaries if figure.name.endswith(" mean")]
    assert means == [
        Summary("fb_free mean", 16 * 2**20, "byte"),
        Summary("memory_temp mean", 17, "C"),
        Summary("memory_clock mean", 18 * 10**6, "Hz"),
        Summary("mem_copy_utilization mean", 19, "%"),
        Summary("enc_utilization mean", 20, "%"),
        Summary("dec_utilization mean", 21, "%"),
        Summary("power_management_limit mean", 22, "W"),
        Summary("total_energy_consumption mean", 23 / 1000, "J"),
        Summary("sm_active mean", 24, None),
    ]
    assert not [entry for entry in report.diagnostics if "not understood" in entry.text]


@pytest.mark.parametrize(
    ("field", "short"), [("power_usage_instant", "PWINST"), ("power_usage", "POWER")]
)
def test_power_has_two_names(tmp_path: Path, field: str, short: str) -> None:
    long = read(tmp_path, f"GPUId,TimeStampUs,Field,Values\n0,1709632800000000,{field},50.5\n")
    text = read(tmp_path, f"# Entity {short}\nGPU-0 50.5\n")
    assert [sample.power_w for report in (long, text) for sample in report.samples] == [50.5, 50.5]


@pytest.mark.parametrize(
    ("gpu", "moment", "counts"),
    [
        ("0", "1709632800000000", True),
        ("99999", "1709632800000000", True),
        ("100000", "1709632800000000", False),
        ("x", "1709632800000000", False),
        ("-1", "1709632800000000", False),
        # 20 x 365 days, in microseconds
        ("0", "630720000000000", True),
        ("0", "630719999999999", False),
        ("0", "7253279999999999", True),
        ("0", "7253280000000000", False),  # 230 x 365 days
        ("0", "now", False),
    ],
)
def test_a_row_counts_with_a_gpu_and_a_moment_between_1990_and_2200(
    tmp_path: Path, gpu: str, moment: str, counts: bool
) -> None:
    text = "GPUId,TimeStampUs,Field,Values\n7,1709632800000000,gpu_temp,40\n"
    report = read(tmp_path, f"{text}{gpu},{moment},gpu_temp,50\n")
    found = {(sample.at_ns, sample.device_index, sample.temperature_c) for sample in report.samples}
    assert found == {(FIRST, 7, 40)} | ({(int(moment) * 1000, int(gpu), 50)} if counts else set())
    assert (
        any("1 of 3 lines are not readings" in entry.text for entry in report.diagnostics)
        is not counts
    )


def test_a_round_of_the_text_form_begins_with_the_first_gpu_that_is_there_already(
    tmp_path: Path,
) -> None:
    rows = "".join(
        f"GPU {gpu} {watt}\n"
        for gpu, watt in ((1, 10), (0, 20), (0, 30), (1, 40), (2, 50), (1, 60))
    )
    report = read(
        tmp_path, f"GPU 0 5\n#Entity POWER\nID W\n{rows}\n#Entity POWER\nGPU 2\nGPU 2 N/A\n"
    )
    found = [(sample.at_ns, sample.device_index, sample.power_w) for sample in report.samples]
    assert found == [
        (0, 1, 10),
        (0, 0, 20),
        (1, 0, 30),
        (1, 1, 40),
        (1, 2, 50),
        (2, 1, 60),
        (2, 2, None),
    ]
    assert any(
        "2 of 13 lines are not readings, for example 'GPU 0 5'; 'GPU 2'" in entry.text
        for entry in report.diagnostics
    )


@pytest.mark.parametrize(
    "text",
    [
        (
            "GPUId,TimeStampUs,Field,Values\n0,1709632800000000,power_usage,50\n"
            "0,1709632800000000,gpu_temp,4"
        ),
        "#Entity POWER TMPTR\nGPU 0 50 4",
    ],
)
def test_a_number_that_the_end_of_the_file_cuts_is_left_out_and_named(
    tmp_path: Path, text: str
) -> None:
    cut, whole = (list(read(tmp_path, text + end).samples) for end in ("", "0\n"))
    assert [(sample.power_w, sample.temperature_c) for sample in (*cut, *whole)] == [
        (50, None),
        (50, 40),
    ]
    reason = "the file ends inside its last number, which was left out"
    assert Gap("sample:gpu_temp", "unreadable", reason) in read(tmp_path, text).gaps
    assert not [gap for gap in read(tmp_path, text + "0\n").gaps if ":" in gap.quantity]


@pytest.mark.parametrize(
    "text",
    [
        "GPUId,TimeStampUs,Field,Values\n0,1709632800000000,gpu_temp,40\n{}\n",
        "#Entity TMPTR\nGPU 0 40\n{}\n",
    ],
)
def test_a_line_of_4096_characters_is_nobody_s_reading(tmp_path: Path, text: str) -> None:
    last = text.splitlines()[1]
    found = [
        list(read(tmp_path, text.format(last.replace("40", "50").ljust(length))).samples)
        for length in (4095, 4096)
    ]
    assert [samples[-1].temperature_c for samples in found] == [50, 40]
    assert len(list(read(tmp_path, text.format(last.ljust(5000))).samples)) == 1


def test_a_file_without_a_header_or_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("GPU 0 40\n")
    with pytest.raises(ReportError, match="the DCGM header has no complete reading below it"):
        dcgm.parse(path)
    with pytest.raises(ReportError, match=r"it cannot be read \(No such file or directory\)"):
        dcgm.parse(tmp_path / "absent.csv")


def test_a_number_below_zero_may_be_cut_too_and_a_word_is_not(tmp_path: Path) -> None:
    head = "#Entity POWER TMPTR\nGPU 0 50 -4\n"
    for last, cut in (("-4", True), ("N/A", False)):
        found = read(tmp_path, f"{head}GPU 0 50 {last}").gaps
        assert ("sample:gpu_temp" in {gap.quantity for gap in found}) is cut


def test_samples_of_the_long_form_are_in_the_order_of_time(tmp_path: Path) -> None:
    rows = "".join(
        f"{gpu},{1709632800000000 + us},gpu_temp,40\n"
        for gpu, us in ((0, 2), (0, 5), (1, 1), (1, 3))
    )
    report = read(tmp_path, "GPUId,TimeStampUs,Field,Values\n" + rows)
    assert [(sample.at_ns - FIRST) // 1000 for sample in report.samples] == [1, 2, 3, 5]
    assert report.duration_ns == 4000


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
    assert {
        (sample.at_ns, sample.device_index, sample.power_w) for sample in report.samples
    } == power
    assert len(list(report.samples)) == len(power)
    masks = [
        row
        for row in rows
        if row["GPUId"] == "0" and row["Field"] == "current_clock_throttle_reasons"
    ]
    counted = [
        f.value
        for f in report.summaries
        if f.name.startswith("GPU 0: current_clock_throttle_reasons:")
    ]
    assert sum(value or 0 for value in counted) == len(masks)
