"""DLProf's CSV files: which report each is, its table, its blocks, and the summary by labels."""

import shutil
from pathlib import Path

import pytest

from perfctl.parsers import ReportError, find_report_paths, parse
from perfctl.parsers.common import tables as shared_tables
from perfctl.parsers.dlprof import csv as dlprof_csv
from perfctl.parsers.dlprof.csv import (
    find_report_kind,
    find_single_report_files_by_kind,
    read_report_table,
    read_summary_blocks,
)
from perfctl.parsers.dlprof.records import SummaryBlock, make_tables_report, normalize_column_name
from perfctl.records.report import Gap, Summary
from tests.make.files import write

OPS = "Op Type Summary Report\nOp Type,# Ops,# Calls,Total GPU Time (ns)\n"
SUMMARY = "System Config\nGPU Count,1\n\nSummary Report\nWall Clock Time (ns),5\n"


def members(folder):
    return find_single_report_files_by_kind(folder, "*.csv", find_report_kind)


def summary_of(blocks, *gaps):
    return make_tables_report(Path("a.csv"), "CSV", {}, blocks, (), (), gaps)


def read_summary(path):
    blocks, gaps = read_summary_blocks(path)
    return summary_of(blocks, *gaps)


def gaps_of(report):
    """Those of the summary, without those of the reports that are not there."""
    absent = ("kernel", "operation", "copy")
    return [gap for gap in report.gaps if gap.quantity not in absent]


def put(folder, text, name="a.csv"):
    return write(folder / name, text)


def test_columns_are_spelt_in_small_letters_without_points():
    assert normalize_column_name("  Avg.  CPU Time (ns) ") == "avg cpu time (ns)"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Iteration,Op Name,Kernel Name,GPU Start Time (ns)\n", "iteration"),
        ("title\nOp Name,Op Type,No. Calls,Total CPU Time (ns)\n", "detail"),
        ("title\nName,Num Calls Aggregated,Total GPU Time (ns)\n", "group_op"),
        (OPS, "op_type"),
        ("x\nOp Name,TC Utilization (%)\n", "tensor_core"),
        ("x\nKernel Name,Op Name,Total GPU Time (ns)\n", "kernel"),
        ('"Expert Systems Feedback",,\nProblem,Recommendation\n', "expert_systems"),
        # a header stands in the first two lines
        ("one\ntwo\nKernel Name,Op Name,Total GPU Time (ns)\n", None),
        (SUMMARY, "summary"),
        ('"System Config"\n"DLProf Version",1\n', "summary"),
        ("System Config\nx,1\n", None),
        ("All kernels,1\nSummary Report,2\n", "summary"),
        ("", None),
        ("Problem,Recommendation\n", None),
        (SUMMARY + "\0", None),
    ],
)
def test_a_report_is_told_by_its_columns_or_two_of_its_labels(text, kind):
    kinds = {kind} if kind else set()
    assert find_report_kind(text.encode()) == kinds
    assert find_report_kind(text.encode("utf-8-sig")) == kinds


def test_a_folder_is_one_report_with_one_file_of_a_kind_and_no_foreign_ones_or_dlprof_s_names(
    tmp_path,
):
    ops = put(tmp_path, OPS, "a.csv")
    (tmp_path / "b.csv").mkdir()
    assert members(tmp_path) == {"op_type": ops}
    summary = put(tmp_path, SUMMARY, "c.csv")
    assert members(tmp_path) == {"op_type": ops, "summary": summary}
    foreign = put(tmp_path, "x,y\n", "d.csv")
    assert members(tmp_path) == {}
    named = summary.rename(tmp_path / "dlprof_summary.csv")
    assert members(tmp_path) == {"op_type": ops, "summary": named}
    foreign.unlink()
    put(tmp_path, SUMMARY, "e.csv")
    assert members(tmp_path) == {}


@pytest.mark.parametrize(
    ("below", "said"),
    [
        ("conv,1,2\n", "row at line 3 has 3 of 4 cells"),
        (
            "conv,1,2,3\nOp Type,# Ops,# Calls,Total GPU Time (ns)\n",
            "a DLProf report appears twice.*line 4",
        ),
        ("conv,1,2,3\nOp Type Summary Report\n", "a DLProf report appears twice.*line 4"),
        (
            "conv,1,2,3\nKernel Report,,,\n",
            "a DLProf report appears twice.*line 4",
        ),
        ('conv,1,2,"3', r"the file ends inside a quoted cell \(line 3\)"),
        ('conv,1,2,"3"x\n', "line 3 is no complete CSV"),
    ],
)
def test_a_table_that_is_cut_or_holds_another_is_refused_with_the_line(tmp_path, below, said):
    with pytest.raises(ReportError, match=said):
        read_report_table(put(tmp_path, OPS + below), "op_type")


def test_an_op_named_as_a_title_is_a_row_and_a_file_without_a_header_is_refused(tmp_path):
    assert len(read_report_table(put(tmp_path, OPS + "Kernel Report,1,,\n"), "op_type")) == 1
    with pytest.raises(ReportError, match="it lacks the header line of a kernel report"):
        read_report_table(put(tmp_path, OPS), "kernel")


def test_as_many_rows_as_may_be_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(dlprof_csv, "ROWS", 2)
    assert len(read_report_table(put(tmp_path, OPS + "a,1,1,1\nb,1,1,1\n"), "op_type")) == 2
    with pytest.raises(ReportError, match=r"more than 2 rows.*dlprof_dldb.sqlite"):
        read_report_table(put(tmp_path, OPS + "a,1,1,1\nb,1,1,1\nc,1,1,1\n"), "op_type")


def test_a_line_longer_than_a_cell_may_be_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_tables, "CELL_LIMIT", 60)
    read_report_table(put(tmp_path, OPS + "x" * 53 + ",1,2,3\n"), "op_type")  # 60 with its end
    with pytest.raises(ReportError, match="a line is longer than 60 characters"):
        read_report_table(put(tmp_path, OPS + "x" * 54 + ",1,2,3\n"), "op_type")


def test_blocks_have_labels_with_a_value_or_a_row_of_values(tmp_path):
    text = (
        "loose,1\nSystem Config\nGPU Name(s),A, B\n\nAll Kernels\n,GPU Time (ns),# Kernels\n"
        "Memory,5,6\n Rest ,7\n"
    )
    assert read_summary_blocks(put(tmp_path, text))[0] == [
        SummaryBlock("", (), [("loose", ("1",))]),
        SummaryBlock("System Config", (), [("GPU Name(s)", ("A, B",))]),
        SummaryBlock(
            "All Kernels",
            ("GPU Time (ns)", "# Kernels"),
            [("Memory", ("5", "6")), ("Rest", ("7",))],
        ),
    ]
    with pytest.raises(
        ReportError, match=r"the block 'System Config' of the summary appears twice.*line 3"
    ):
        read_summary_blocks(put(tmp_path, "System Config\nx,1\nSystem Config\n"))


def test_a_summary_s_last_cell_without_the_end_of_its_line_is_left_out(tmp_path):
    for end in ("\n", "\r\n", "\r"):
        whole = read_summary(put(tmp_path, SUMMARY.rstrip() + end))
        assert (whole.duration_ns, gaps_of(whole)[1:]) == (5, [])
    cut = read_summary(put(tmp_path, SUMMARY.rstrip()))
    reason = "the last line is incomplete: the last cell of 'Wall Clock Time (ns)' was skipped"
    assert gaps_of(cut)[1:] == [Gap("summary", "unreadable", reason)]
    assert (cut.duration_ns, cut.summaries[-1]) == (None, Summary("Wall Clock Time", None, "ns"))
    wide = read_summary(
        put(tmp_path, SUMMARY + "\nAll Kernels\n,GPU Time (ns),# Kernels\nMemory,5,6")
    )
    assert [figure.value for figure in wide.summaries[-2:]] == [5, None]
    with pytest.raises(ReportError, match="no lines with a label and a value"):
        read_summary(put(tmp_path, "System Config\n"))


def config(**values):
    return SummaryBlock(
        "System Config", (), [(name.replace("_", " "), (value,)) for name, value in values.items()]
    )


@pytest.mark.parametrize(
    ("count", "fits"), [("2", True), ("1", False), ("3", False), ("", True), ("some", True)]
)
def test_names_of_gpus_count_where_their_number_does_not_contradict(count, fits):
    found = summary_of([config(GPU_Count=count, **{"GPU Name(s)": "A,, B "})])
    assert [device.name for device in found.devices] == (["A", "B"] if fits else [])
    reason = f"the summary counts {count} GPUs and names 2: A, B"
    told = [] if fits else [Gap("device.name", "ambiguous", reason)]
    cudnn = "this DLProf's summary has no line 'cuDNN Version' (pip's 1.8.0 omits it)"
    assert gaps_of(found) == [*told, Gap("environment.cudnn", "not_available", cudnn)]


@pytest.mark.parametrize(
    ("wall", "ns"),
    [
        ("5", 5),
        ("4611686018427387904", 2**62),
        ("4611686018427389000", None),
        ("x", None),
        ("nan", None),
    ],
)
def test_a_wall_clock_beyond_62_bits_is_none(wall, ns):
    found = summary_of([SummaryBlock("", (), [("Wall Clock Time (ns)", (wall,))])])
    assert (found.duration_ns, gaps_of(found), found.tool_version) == (ns, [], None)


# The DLProf CSV parser on tests/data/dlprof-synthetic (written by hand) and on the


FOLDER = Path(__file__).resolve().parents[2] / "data" / "dlprof-synthetic"


@pytest.fixture(scope="module")
def report():
    return parse(FOLDER)


def copied(tmp_path, *names):
    for name in names:
        shutil.copy(FOLDER / name, tmp_path / name)
    return tmp_path


def test_a_folder_of_dlprof_files_is_one_report(report):
    assert find_report_paths(FOLDER) == [FOLDER]
    assert find_report_paths(FOLDER.parent / "dlprof-synthetic" / "dlprof_summary.csv") == [
        FOLDER / "dlprof_summary.csv"
    ]
    assert (report.tool, report.tool_version, report.duration_ns) == ("dlprof", "1.8.0", 1000000)


def test_an_empty_file_in_the_folder_is_a_gap(tmp_path):
    copied(tmp_path, "dlprof_summary.csv")
    (tmp_path / "dlprof_iteration.csv").touch()
    assert ("dlprof_iteration.csv", "unreadable") in {
        (gap.quantity, gap.state) for gap in parse(tmp_path).gaps
    }


def test_expert_systems_feedback_is_a_diagnostic_and_so_is_rounding(report):
    said = [entry.text for entry in report.diagnostics]
    rounded = "DLProf rounds percentages to one decimal in CSV: 0.0% means any value below 0.05%"
    assert {"5 ops could use tensor cores. Try AMP", rounded} <= set(said)


def test_a_folder_without_a_report_is_refused_and_hidden_files_beside_one_are_not_named(tmp_path):
    with pytest.raises(ReportError, match="no DLProf CSV report"):
        dlprof_csv.parse(tmp_path)
    copied(tmp_path, "dlprof_op_type.csv")
    (tmp_path / ".hidden").touch()
    assert parse(tmp_path).diagnostics == ()
    for number in range(11):
        (tmp_path / f"n{number:02}.txt").touch()
    (said,) = parse(tmp_path).diagnostics
    shown = ", ".join(f"n{number:02}.txt" for number in range(10))
    assert (
        said.text
        == f"read as one DLProf report; perfctl skipped the other files in the folder: {shown}"
    )
