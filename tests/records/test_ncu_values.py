"""Cells of ncu's CSV that are no numbers, facts about launches and devices among them, and the
order of launches."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.records.report import Counter, Gap, Report
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
