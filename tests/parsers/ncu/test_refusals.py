"""What ncu's tables lack, and what is refused, in the words that the user reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError, nvprof, parse, reports
from perfctl.parsers.ncu import csv as ncu_csv
from perfctl.parsers.ncu import text as ncu_text
from perfctl.parsers.nsys import stats
from tests.make.ncu_csv import METRIC, line, read

CASES = Path(__file__).resolve().parents[2] / "data" / "ncu"
BARE = ["ID", "Process ID", "Kernel Name", *METRIC]


def reasons(case: str, quantity: str) -> list[str]:
    """Return the reasons of gaps in a file among the cases."""
    return [gap.reason for gap in parse(CASES / case).gaps if gap.quantity == quantity]


@pytest.mark.parametrize(
    ("header", "missing"),
    [
        (BARE[:3], "with metrics"),
        ([*BARE[:2], *METRIC], "Kernel Name"),
        (BARE[:5], "Metric Value"),
        (BARE[:4], "Metric Unit, Metric Value"),
        ([*BARE[:3], "Metric Value"], "Metric Name, Metric Unit"),
    ],
)
def test_a_header_without_a_column_that_every_row_needs_is_refused(
    header: list[str], missing: str, tmp_path: Path
) -> None:
    with pytest.raises(ReportError, match=rf"the CSV has no column {missing} \(it is truncated"):
        read(tmp_path, line(*header), line(0, 42, "k", "a__b.sum", "inst", 1))


def test_a_header_without_rows_is_refused(tmp_path: Path) -> None:
    reason = "the CSV has a header but no rows: the CSV ends after its header"
    with pytest.raises(ReportError, match=reason):
        read(tmp_path, line(*BARE))


@pytest.mark.parametrize(
    ("case", "runs", "start"),
    [
        ("outputs/headers.csv", 3, 3),
        ("outputs/messages.csv", 3, 5),
        ("summary/two_outputs.csv", 2, 3),
        ("wide/two_outputs.csv", 2, 4),
        ("text-launches/two_outputs.txt", 2, 7),
        ("text-launches/two_logs.txt", 2, 8),
    ],
)
def test_several_outputs_in_a_file_are_pointed_out_with_the_line_of_the_second(
    case: str, runs: int, start: int
) -> None:
    with pytest.raises(ReportError, match=rf"it holds {runs} runs; .* begins at line {start}\b"):
        parse(CASES / case)


def test_a_further_table_without_its_columns_says_which_lines_cannot_be_read() -> None:
    _, second = reports(CASES / "outputs/second_without_columns.csv")
    assert second.error is not None
    assert second.error.reason.startswith("lines 3 to 4: the CSV has no column Kernel Name")


def test_a_summary_on_the_console_is_refused_with_the_way_to_export_it(tmp_path: Path) -> None:
    ruler = "    ------------ ----------- -------- -------- --------\n"
    path = tmp_path / "summary.txt"
    head = "  k(int) (4, 1, 1)x(32, 1, 1), Device 0, CC 8.0, Invocations 3\n"
    path.write_text(f"{head}    Section: S\n{ruler}    a__b.s  Kbyte  1  3  2\n{ruler}")
    with pytest.raises(ReportError, match="a summary, or the source page") as caught:
        parse(path)
    assert "ncu --import" in caught.value.remedy


def test_files_that_are_not_there_are_refused_by_every_reader_of_text(tmp_path: Path) -> None:
    reason = r"it cannot be read \(No such file or directory\). Check the path and its permissions"
    for module in (ncu_csv, ncu_text, nvprof, stats):
        with pytest.raises(ReportError, match=reason):
            module.parse(tmp_path / "absent")


LEFT_OUT = "excluded from the export, or lost"
LACKS = "launches lacks 1 metrics that all other launches have, such as Registers Per Thread"


@pytest.mark.parametrize(
    ("case", "quantity", "expected"),
    [
        (
            "completeness/ids_left_out.csv",
            "kernel",
            f"3 IDs of launches are not in the file: {LEFT_OUT}",
        ),
        ("completeness/one_of_3_lacks_a_metric.csv", "counter", f"1 of 3 {LACKS}"),
        ("completeness/no_metrics.csv", "counter", "1 of 4 launches have no metric values"),
        (
            "completeness/no_facts.csv",
            "kernel.duration_ns",
            "gpu__time_duration.sum is not among the metrics",
        ),
        (
            "completeness/no_facts.csv",
            "kernel.grid_x",
            "no launch has a Grid Size (older versions of ncu give none)",
        ),
        (
            "long/failed_launch.csv",
            "kernel.duration_ns",
            "ncu could not measure gpu__time_duration.sum in 1 of 3 launches",
        ),
        (
            "long/failed_launch.csv",
            "kernel.grid_x",
            "ncu gives the grid (0, 0, 0): this launch failed",
        ),
        (
            "long/not_available.csv",
            "counter.value",
            "none of the 4 metric values is a number: check the metrics' names with "
            "'ncu --query-metrics', and ncu's messages",
        ),
        (
            "long/units.csv",
            "counter:sm__x.sum",
            'ncu printed "n/a" instead of 2 values: this GPU or ncu version has no such metric, '
            "or it could not be collected",
        ),
        ("long/cut_rows.csv", "counter", "6 rows are truncated or broken"),
        ("wide/odd_rows.csv", "counter", "6 rows are truncated or broken"),
        ("wide/no_units.csv", "counter.unit", "a table has no row of units below its header"),
        ("text-tables/off_edge.txt", "counter", "4 rows are truncated or broken"),
        (
            "facts/cycles.csv",
            "kernel.duration_ns",
            "gpu__time_duration.sum is not among the metrics; times are worked out from cycles and "
            "clock rate: gpc__cycles_elapsed.avg / gpc__cycles_elapsed.avg.per_second",
        ),
        (
            "summary/ambiguous.csv",
            "kernel",
            "a per-kernel summary has no launches; export without --print-summary",
        ),
    ],
)
def test_what_a_table_lacks_is_a_gap_with_its_reason(
    case: str, quantity: str, expected: str
) -> None:
    assert reasons(case, quantity) == [expected]


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (
            "long/units.csv",
            "3 metrics are rounded because ncu printed them in scaled units (for example "
            "gpu__time_duration.sum in usecond); export with --print-units base for exact figures",
        ),
        ("long/twice.csv", "not understood and left out: columns New Column"),
        ("wide/columns.csv", "not understood and left out: columns Not A Metric"),
        (
            "text-tables/four_columns.txt",
            "not understood and left out: parts a table of 4 columns in section S",
        ),
    ],
)
def test_what_is_rounded_or_not_understood_is_a_note(case: str, text: str) -> None:
    assert text in [note.text for note in parse(CASES / case).diagnostics]
