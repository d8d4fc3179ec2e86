"""DLProf's JSON: tests/data/dlprof-json-synthetic is made up (no real file is known), and the CSV's
data turned to JSON."""

import csv
import json
from pathlib import Path

import pytest

from perfctl.parsers import ReportError, parse, sniff
from perfctl.parsers.dlprof import json as dlprof_json
from perfctl.parsers.dlprof.records import (
    find_layer_of_op_and_evidence,
    make_unknown_column_missing_op_notes,
)
from perfctl.records.ranges import RangeName
from perfctl.records.report import Diagnostic
from tests.make.files import read, write

DATA = Path(__file__).resolve().parents[2] / "data"
CSV = DATA / "dlprof-synthetic"
LAUNCHES = {"Kernel Name": "k", "Op Name": "o", "Total GPU Time (ns)": 5}
KINDS = {
    "iteration": "dlprof_iteration.csv",
    "detail": "dlprof_detailed.csv",
    "kernel": "dlprof_kernel.csv",
}


def rows(name):
    with (CSV / name).open(newline="") as file:
        _, columns, *found = list(csv.reader(file))
    return columns, found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ["objects", "columns", "wrapped"])
def test_rows_of_the_csv_read_the_same_as_json(tmp_path, kind, shape):
    columns, found = rows(KINDS[kind])
    objects = [dict(zip(columns, row, strict=True)) for row in found]
    shapes = {
        "objects": objects,
        "columns": {"columns": columns, "rows": found},
        "wrapped": {"report": [{"title": "x", "table": objects}]},
    }
    one, other = (
        read(tmp_path, json.dumps(shapes[shape])),
        parse(CSV / KINDS[kind]),
    )
    assert list(one.kernels) == list(other.kernels)
    assert list(one.operations) == list(other.operations)
    assert one.summaries == other.summaries


@pytest.mark.parametrize(
    "content",
    [
        5,
        "System Config Summary Report",
        [1, [2, {}]],
        None,
        {"System Config": {"x": 1}},
        [LAUNCHES, 5],
        [LAUNCHES, {"Op Name": "x"}],
        {"columns": list(LAUNCHES), "rows": [["k"]]},
    ],
)
def test_json_that_is_no_object_of_dlprof_is_refused(tmp_path, content):
    with pytest.raises(ReportError, match="not a DLProf report"):
        dlprof_json.parse(write(tmp_path / "refused.json", json.dumps(content)))


def split(folder):
    """The CSV's tables as one JSON file each."""
    for kind, name in KINDS.items():
        columns, found = rows(name)
        objects = [dict(zip(columns, row, strict=True)) for row in found]
        (folder / f"dlprof_{kind}.json").write_text(json.dumps(objects))
    return folder


def test_a_folder_of_json_reports_is_one_report_as_a_folder_of_csv_is(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    parser = sniff(split(tmp_path))
    assert parser is not None
    assert parser.name == "DLProf JSON"
    report = parse(tmp_path)
    assert report.form == "DLProf JSON: detail, iteration, kernel"
    assert list(report.kernels) == list(parse(CSV / KINDS["iteration"]).kernels)
    assert list(report.operations) == list(parse(CSV / KINDS["detail"]).operations)
    assert any("notes.txt" in said.text for said in report.diagnostics)


def test_a_folder_with_a_report_twice_or_with_foreign_json_is_none(tmp_path):
    split(tmp_path)
    (tmp_path / "again.json").write_text((tmp_path / "dlprof_detail.json").read_text())
    assert sniff(tmp_path) is None
    (tmp_path / "again.json").unlink()
    for file in list(tmp_path.iterdir()):
        file.rename(tmp_path / file.name.removeprefix("dlprof_"))
    assert sniff(tmp_path) is not None
    (tmp_path / "package.json").write_text('{"name": "x"}')
    assert sniff(tmp_path) is None


SUMMARY = {
    "System Config": {"DLProf Version": "v1.8.0", "Flag": True, "Off": False, "None": None},
    "Summary Report": 1,
}


@pytest.mark.parametrize(("files", "is_looked_into"), [(50, True), (51, False)])
def test_a_folder_of_fifty_files_at_most_is_looked_into(tmp_path, files, is_looked_into):
    split(tmp_path)
    for number in range(files - len(KINDS)):
        (tmp_path / f"other{number}.json").write_text("{}")
    assert dlprof_json.sniff(tmp_path, b"") is is_looked_into


def test_one_json_report_alone_makes_no_folder_of_them(tmp_path):
    (tmp_path / "dlprof_kernel.json").write_text(json.dumps([LAUNCHES]))
    (tmp_path / "dir.json").mkdir()
    assert not dlprof_json.sniff(tmp_path, b"")
    (tmp_path / "dlprof_summary.json").write_text(json.dumps(SUMMARY))
    assert dlprof_json.sniff(tmp_path, b"")
    assert dlprof_json.parse(tmp_path).form == "DLProf JSON: kernel, summary"


@pytest.mark.parametrize(
    ("head", "is_ours"),
    [
        (json.dumps(LAUNCHES), True),
        ("  \n" + json.dumps([LAUNCHES]), True),
        (json.dumps("x" + json.dumps(LAUNCHES)), False),
        ('{"Kernel Name": 1, "Op Name": 2}', False),
        (json.dumps(LAUNCHES) + "\0", False),
        ('{"System Config": 1, "All kernels": 2}', True),
        ('{"System Config": 1, "All others": 2}', False),
        ('{"problem": 1, "recommendation": 2}', True),
        ("", False),
    ],
)
def test_json_is_dlprof_s_by_its_keys(tmp_path, head, is_ours):
    path = write(tmp_path / "a.json", head)
    assert dlprof_json.sniff(path, head.encode()) is is_ours
    assert dlprof_json.sniff(path, head.encode("utf-8-sig")) is is_ours


# DLProf's numbers, names of ops and layers, and what its reports leave open


@pytest.mark.parametrize(
    ("name", "place", "source"),
    [
        ("conv2:backward", RangeName("conv2", "backward"), "range"),
        ("/perfctl:step:3/a:forward[2]/b:backward/conv", RangeName("b", "backward", 3), "range"),
        ("/a:forward/perfctl:step:3/perfctl:step:4/x", RangeName("a", "forward", 4), "range"),
        ("features.0", RangeName("features.0"), "operation"),
        ("features", RangeName(), None),
        ("perfctl:step:5", RangeName(step=5), None),
        ("net::__call__/relu", RangeName("net"), "operation"),
        ("net::_call_impl/Linear::_call_impl[3]/linear", RangeName("Linear_3"), "operation"),
        ("net::_call_impl/LazyLinear::_call_impl/Linear", RangeName("LazyLinear_1"), "operation"),
        ("net::_call_impl/LazyConv2d::_call_impl/relu", RangeName("net"), "operation"),
        (
            "net::_call_impl/BatchNorm2d::_call_impl/batch_norm",
            RangeName("BatchNorm2d_1"),
            "operation",
        ),
        (
            "/perfctl:step:2/net::_call_impl/B::_call_impl/C::_call_impl[2]/x",
            RangeName("B_1.C_2", None, 2),
            "operation",
        ),
        ("Conv2d::_call_impl/relu", RangeName("Conv2d"), "operation"),
        ("", RangeName(), None),
    ],
)
def test_an_op_s_name_gives_layer_direction_and_step(name, place, source):
    assert find_layer_of_op_and_evidence(name) == (place, source)


def test_columns_beyond_the_known_are_named_by_report_and_sums_of_time_are_known():
    sums = [
        f"{part} {what} (ns)"
        for part in ("total", "avg", "min", "max")
        for what in ("cpu time", "gpu time", "cpu overhead", "gpu idle", "api time")
    ]
    row = dict.fromkeys([*sums, "op name", "mood"], "")
    (said,) = make_unknown_column_missing_op_notes(
        {"detail": [row, row | {"later": ""}], "other": [{"x": ""}]}, "1.8.9"
    )
    assert said.text == "not understood and left out: columns detail.mood, other.x"
    (said,) = make_unknown_column_missing_op_notes({}, "1.9")
    assert said == Diagnostic(
        "info",
        "perfctl parser",
        "DLProf 1.9 is newer than the newest tested version (1.8): perfctl read all known parts",
    )
    assert make_unknown_column_missing_op_notes({"detail": []}, None) == ()
