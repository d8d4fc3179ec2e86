"""Nsight Compute CSV that is damaged, hostile, or has cells that are no numbers."""

import pytest

from perfctl.parsers.ncu import csv as ncu_csv
from perfctl.records.report import Counter, Gap
from tests.make.memory import measure_peak
from tests.make.ncu_csv import FFMA, HEADER, line, read, row


def parse_text(tmp_path, text):
    return [counter.value for counter in read(tmp_path, text).counters]


def test_a_line_of_nul_bytes_before_the_first_row_of_a_table_with_bare_cells_is_no_row(tmp_path):
    report = read(tmp_path, HEADER.replace('"', "") + "\0" + ",x" * 15 + "\n" + row(0, "100"))
    assert [(counter.launch, counter.value) for counter in report.counters] == [(0, 100)]
    assert ("counter", "unreadable") in {gap[:2] for gap in report.gaps}


PLAIN = f'1,42,app,127.0.0.1,k,1,7,"(32, 1, 1)","(4, 1, 1)",0,8.0,Metrics,{FFMA},inst,2\n'


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            f'{HEADER}{row(0, "1")}"unfinished words of the program\n{row(1, "2")}"done"\n',
            id="lines of the program that begin with a quote",
        ),
        pytest.param(
            f"progress 10%\rprogress 100%{HEADER}{row(0, '1')}50%{row(1, '2')}",
            id="header and row behind output on the same line",
        ),
        pytest.param(
            HEADER.replace('"', "")
            + PLAIN.replace("1", "0", 1).replace("inst,2", "inst,1")
            + PLAIN,
            id="a table saved again without quotes",
        ),
    ],
)
def test_rows_between_other_text_are_found(tmp_path, text):
    assert parse_text(tmp_path, text) == [1, 2]


def test_a_line_of_40_megabytes_is_skipped_in_bounded_memory(tmp_path):
    path = tmp_path / "report.csv"
    with path.open("w") as file:
        file.write(HEADER + row(0, "1"))
        for _ in range(40):
            file.write("x" * 2**20)
        file.write("\n" + row(1, "2"))
    report, peak = measure_peak(lambda: ncu_csv.parse(path))
    assert [counter.value for counter in report.counters] == [1, 2]
    assert peak < 16 * 2**20


SHORT = '"0","42","a","127.0.0.1","gemm(int)","1","7"'


@pytest.mark.parametrize(("column", "cell"), [("", ""), (',"CC"', ',"8.0"')])
def test_an_ncu_header_whose_metric_stands_after_the_value_cuts_short_rows(tmp_path, column, cell):
    """A row that reached the value, but not the metric, was an IndexError; so was one that the
    launch ends."""
    path = tmp_path / "r.csv"
    header = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream"'
    columns = f'"Section Name","Metric Value","Metric Unit","Metric Name"{column}'
    whole = f'"Launch Statistics","256","","Block Size"{cell}'
    path.write_text(f'{header},{columns}\n{SHORT},"Launch Statistics","256"\n{SHORT},{whole}\n')
    report = ncu_csv.parse(path)
    assert [(counter.name, counter.value) for counter in report.counters] == [("Block Size", 256)]


# Cells of ncu's CSV that are no numbers, facts about launches and devices among them, and the


def about_counters(report):
    return [gap for gap in report.gaps if gap.quantity.startswith("counter:")]


@pytest.mark.parametrize(
    "text", ["", "n/a", "N/A", "no data", "nan", "NaN", "-nan", "inf", "-inf", " n/a "]
)
def test_each_way_to_print_no_value_is_a_gap_and_the_counter_keeps_the_text(text, tmp_path):
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


def test_launches_keep_the_order_of_the_file_and_two_processes_may_have_one_id(tmp_path):
    def of(process, number, name):
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
