"""Cells of ncu's CSV that are no numbers, facts about launches and devices among them, and the
order of launches."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.records.report import Counter, Device, Gap, Report
from tests.make.ncu_csv import HEADER, line, read, row


def about_counters(report: Report) -> list[Gap]:
    return [gap for gap in report.gaps if gap.quantity.startswith("counter:")]


@pytest.mark.parametrize(
    "text", ["", "n/a", "N/A", "no data", "nan", "NaN", "-nan", "inf", "-inf", " n/a "]
)
def test_each_way_to_print_no_value_is_a_gap_and_the_counter_keeps_the_text(
    text: str, tmp_path: Path
) -> None:
    report = read(
        tmp_path,
        HEADER,
        row(0, "5", metric="a__b.sum", unit="inst"),
        row(0, text, metric="c__d.sum", unit="inst"),
    )
    assert list(report.counters)[1] == Counter(0, "c__d.sum", None, "inst", "Metrics", text or None)
    reason = (
        f'ncu printed "{text}" instead of 1 values: this GPU or ncu version has no such metric, '
        "or it could not be "
        "collected"
    )
    assert about_counters(report) == [Gap("counter:c__d.sum", "not_available", reason)]


def test_figures_that_no_style_prints_are_unreadable_and_a_word_is_a_text(tmp_path: Path) -> None:
    rows = [
        ("a__b.sum", "1,234.5"),
        ("c__d.sum", "7.1.2"),
        ("c__d.sum", "+-3"),
        ("c__d.sum", "7.1.2"),
        ("e__f", "Shared"),
    ]
    report = read(
        tmp_path, HEADER, *(row(0, text, metric=name, unit="inst") for name, text in rows)
    )
    assert [(one.value, one.text) for one in report.counters] == [
        (1234.5, None),
        (None, "7.1.2"),
        (None, "+-3"),
        (None, "7.1.2"),
        (None, "Shared"),
    ]
    reason = (
        '3 values such as "7.1.2" do not fit the number format of the rest of the file. Export it '
        "again with LC_ALL=C"
    )
    assert about_counters(report) == [Gap("counter:c__d.sum", "unreadable", reason)]


def test_values_that_may_be_whole_or_fractions_are_counted_by_metric(tmp_path: Path) -> None:
    rows = [
        ("a__b.sum", "1.234"),
        ("c__d.sum", "2,345"),
        ("a__b.sum", "3.456"),
        ("a__b.sum", "n/a"),
        ("e__f.sum", "12"),
    ]
    report = read(
        tmp_path, HEADER, *(row(0, text, metric=name, unit="Kbyte") for name, text in rows)
    )
    assert [one.value for one in report.counters] == [None, None, None, None, 12_000]
    reason = (
        '{} values such as "{}" may be whole numbers or fractions, and the file does not state '
        "which. Export it again with "
        "LC_ALL=C"
    )
    assert about_counters(report)[:2] == [
        Gap("counter:a__b.sum", "ambiguous", reason.format(2, "1.234")),
        Gap("counter:c__d.sum", "ambiguous", reason.format(1, "2,345")),
    ]
    assert [(gap.quantity, gap.state) for gap in about_counters(report)[2:]] == [
        ("counter:a__b.sum", "not_available")
    ]


def test_of_a_fact_that_stands_twice_in_a_launch_the_first_counts(tmp_path: Path) -> None:
    rows = [
        row(0, "1.5", metric="gpu__time_duration.sum", unit="usecond"),
        row(0, "9.25", metric="gpu__time_duration.sum", unit="usecond"),
        row(1, "2", metric="Duration", unit="msecond"),
        row(1, "7", metric="gpu__time_duration.sum", unit="nsecond"),
        row(2, "n/a", metric="gpu__time_duration.sum", unit="nsecond"),
        row(2, "40", metric="launch__registers_per_thread", unit=""),
    ]
    report = read(tmp_path, HEADER, *rows)
    assert [(kernel.duration_ns, kernel.registers) for kernel in report.kernels] == [
        (1500, None),
        (7, None),
        (None, 40),
    ]


def attribute(number: int, name: str, value: str, **where: str) -> str:
    return row(number, value, metric=f"device__attribute_{name}", unit="", **where)


def test_each_device_is_described_once_by_its_first_launch_that_says_something(
    tmp_path: Path,
) -> None:
    report = read(
        tmp_path,
        HEADER,
        attribute(0, "display_name", "GPU B", device="1", capability="9.0"),
        attribute(1, "display_name", "GPU A"),
        attribute(1, "multiprocessor_count", "108"),
        attribute(2, "display_name", "GPU X"),
        attribute(3, "multiprocessor_count", "5", device="3", capability=""),
        attribute(4, "display_name", "GPU D", device="3", capability=""),
    )
    assert report.devices == (
        Device("GPU A", "gpu", 0, "8.0", 108),
        Device("GPU B", "gpu", 1, "9.0"),
        Device("GPU D", "gpu", 3),
    )
    assert [kernel.device_index for kernel in report.kernels] == [1, 0, 0, 3, 3]


def test_without_a_column_of_devices_their_number_is_a_metric_or_none(tmp_path: Path) -> None:
    report = read(
        tmp_path,
        HEADER,
        row(0, "2", metric="launch__device_id", unit="", device=""),
        row(1, "5", metric="a__b.sum", unit="", device="x", capability="7.5"),
    )
    assert report.devices == (Device(None, "gpu", 0, "7.5"), Device(None, "gpu", 2, "8.0"))
    assert [kernel.device_index for kernel in report.kernels] == [2, None]


def test_launches_keep_the_order_of_the_file_and_two_processes_may_have_one_id(
    tmp_path: Path,
) -> None:
    def of(process: int, number: int, name: str) -> str:
        return line(
            number,
            process,
            "app",
            "host",
            name,
            "1",
            "7",
            "",
            "",
            "",
            "",
            "S",
            "a__b.sum",
            "inst",
            number,
        )

    report = read(tmp_path, HEADER, of(42, 3, "late"), of(42, 1, "b"), of(41, 1, "a"))
    assert [kernel.name for kernel in report.kernels] == ["late", "b", "a"]
    assert [(counter.launch, counter.value) for counter in report.counters] == [
        (0, 3),
        (1, 1),
        (2, 1),
    ]
