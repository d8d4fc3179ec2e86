"""ncu's per-kernel summary: three figures of each metric, told by kernel, launches, grid
and block."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError
from perfctl.parsers.ncu import summary
from perfctl.records.report import Diagnostic, Gap, Summary
from tests.make.ncu_csv import line, read

HEADER = [
    "Process ID",
    "Process Name",
    "Host Name",
    "Device",
    "Kernel Name",
    "Block Size",
    "Grid Size",
    "CC",
    "Invocations",
    "Section Name",
    "Metric Name",
    "Metric Unit",
    "Minimum",
    "Maximum",
    "Average",
]
NEEDED = [
    "Kernel Name",
    "Invocations",
    "Metric Name",
    "Metric Unit",
    "Minimum",
    "Maximum",
    "Average",
]
NO_LAUNCHES = [
    Gap(
        "kernel",
        "not_available",
        "a per-kernel summary has no launches; export without --print-summary",
    ),
    Gap(
        "counter",
        "not_available",
        "a per-kernel summary has averages instead; export without --print-summary",
    ),
]


def row(metric: str, unit: str, *figures: str) -> str:
    identity = (42, "app", "host", 0, "k(int)", "(32, 1, 1)", "(4, 1, 1)", "8.0", 3, "S")
    return line(*identity, metric, unit, *figures)


def figures(metric: str, unit: str | None, *values: float) -> list[Summary]:
    about = "of 3 launches of k(int) grid (4, 1, 1) block (32, 1, 1)"
    words = ("minimum", "maximum", "average")
    return [
        Summary(f"{metric}, {word} {about}", value, unit)
        for word, value in zip(words, values, strict=True)
    ]


def test_a_summary_has_all_three_figures_and_the_number_of_launches() -> None:
    assert set(NEEDED) == summary.FIGURE_COLUMNS < set(HEADER)


def test_columns_of_a_summary_in_no_list_are_named(tmp_path: Path) -> None:
    lines = [
        line(*HEADER, "Median"),
        row("a__b.sum", "inst", "1", "3", "2").replace("\n", ',"2"\n'),
    ]
    report = read(tmp_path, *lines)
    assert report.form == "ncu CSV, summary, 16 columns"
    assert report.diagnostics == (
        Diagnostic("warning", "perfctl parser", "not understood and left out: columns Median"),
    )


def test_figures_are_in_base_units_with_their_kernel_and_rows_that_are_cut_are_a_gap(
    tmp_path: Path,
) -> None:
    report = read(
        tmp_path,
        line(*HEADER),
        row("gpu__time_duration.sum", "usecond", "1.25", "2", "1.625"),
        line(42, "app", "host", 0, "k(int)"),
        row("ratio", "", "0", "1", "0.5"),
        row("lost", "inst", "1", "2"),
        "\n",
    )
    expected = [
        *figures("gpu__time_duration.sum", "ns", 1250, 2000, 1625),
        *figures("ratio", None, 0, 1, 0.5),
    ]
    assert list(report.summaries) == expected
    cut = Gap("counter", "unreadable", "2 rows of the CSV are cut off or broken")
    assert list(report.gaps) == [*NO_LAUNCHES, cut]
    assert (report.form, report.kernels, report.diagnostics) == (
        "ncu CSV, summary, 15 columns",
        (),
        (),
    )


def read_rows(row: dict[str, str]) -> tuple[list[Summary], list[Gap]]:
    report = summary.report(Path("x"), "form", [row], (), ())
    return list(report.summaries), list(report.gaps)


def test_the_style_of_the_numbers_is_decided_by_all_three_figures() -> None:
    known = {
        "Kernel Name": "k",
        "Invocations": "2",
        "Metric Name": "a__b.sum",
        "Metric Unit": "inst",
    }
    for name in ("Minimum", "Maximum", "Average"):
        decides = dict.fromkeys(("Minimum", "Maximum", "Average"), "1.234") | {name: "1.234,5"}
        found, gaps = read_rows(known | decides)
        assert [figure.value for figure in found if figure.value != 1234.5] == [1234, 1234]
        assert gaps == NO_LAUNCHES


def test_what_may_be_a_whole_number_or_a_fraction_is_a_gap_and_words_stay_words() -> None:
    known = {
        "Kernel Name": "k",
        "Invocations": "2",
        "Metric Name": "a__b.sum",
        "Metric Unit": "Kbyte",
    }
    found, gaps = read_rows(known | {"Minimum": "1.234", "Maximum": "n/a", "Average": "7"})
    name = "a__b.sum, {} of 2 launches of k"
    assert found == [
        Summary(name.format("minimum"), None, "byte", "1.234"),
        Summary(name.format("maximum"), None, "byte", "n/a"),
        Summary(name.format("average"), 7000, "byte"),
    ]
    reason = '"1.234" may be a whole number or a fraction'
    assert gaps == [*NO_LAUNCHES, Gap(f"summary:{name.format('minimum')}", "ambiguous", reason)]
    for half in ("Grid Size", "Block Size"):
        shapeless, _ = read_rows(
            known | dict.fromkeys(("Minimum", "Maximum", "Average"), "1") | {half: "(1, 1, 1)"}
        )
        assert shapeless[0].name == name.format("minimum")


def test_rows_without_any_and_no_rows_are_told(tmp_path: Path) -> None:
    with pytest.raises(
        ReportError, match=r"the CSV has a header but no rows: the CSV ends after its header"
    ):
        read(tmp_path, line(*HEADER))


def test_a_second_page_is_refused_with_its_line(tmp_path: Path) -> None:
    one = row("a__b.sum", "inst", "1", "3", "2")
    with pytest.raises(ReportError, match=r"it holds 2 runs; the second begins at line 4\b"):
        read(tmp_path, line(*HEADER), one, one.replace("a__b", "c__d"), line(*HEADER), one)
