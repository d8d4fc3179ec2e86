"""DLProf's JSON: tests/data/dlprof-json-synthetic is made up (no real file is known), and the CSV's data turned to JSON."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from perfctl.parsers import ReportError, dlprof_json, parse, sniff

DATA = Path(__file__).resolve().parent.parent / "data"
FILE = DATA / "dlprof-json-synthetic" / "dlprof_all.json"
CSV = DATA / "dlprof-synthetic"
KINDS = {"iteration": "dlprof_iteration.csv", "detail": "dlprof_detailed.csv", "kernel": "dlprof_kernel.csv"}


def rows(name: str) -> tuple[list[str], list[list[str]]]:
    with (CSV / name).open(newline="") as file:
        _, columns, *found = list(csv.reader(file))
    return columns, found


def test_reports_are_found_by_their_keys_wherever_they_stand() -> None:
    report = parse(FILE)
    assert report.form == "DLProf JSON: detail, expert_systems, iteration, summary"
    (kernel,) = report.kernels
    assert (kernel.name, kernel.layer, kernel.step, kernel.grid_x) == ("void conv<float>(float *)", "conv1", 1, 8)
    (operation,) = report.operations
    assert (operation.calls, operation.cpu_ns, operation.device_ns) == (3, 9000, 300)
    figures = {figure.name: figure.value for figure in report.summaries}
    assert figures["GPU Utilization"] == 12.5
    assert figures["All Kernels: Memory: GPU Time"] == 100.0
    assert figures["Tensor Core Kernel Utilization"] is None
    assert (report.tool_version, report.duration_ns) == ("1.8.0", 1000000)


def test_every_reading_says_that_the_form_is_unverified() -> None:
    assert any("without a real file" in entry.text for entry in parse(FILE).diagnostics)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ["objects", "columns", "wrapped"])
def test_rows_of_the_csv_read_the_same_as_json(tmp_path: Path, kind: str, shape: str) -> None:
    columns, found = rows(KINDS[kind])
    objects = [dict(zip(columns, row, strict=True)) for row in found]
    shapes = {
        "objects": objects,
        "columns": {"Columns": columns, "Rows": found},
        "wrapped": {"report": [{"title": "x", "table": objects}]},
    }
    path = tmp_path / "report.json"
    path.write_text(json.dumps(shapes[shape]))
    one, other = parse(path), parse(CSV / KINDS[kind])
    assert list(one.kernels) == list(other.kernels)
    assert list(one.operations) == list(other.operations)
    assert one.summaries == other.summaries


def test_other_json_is_not_dlprofs(tmp_path: Path) -> None:
    for text in ('{"traceEvents": []}', "[]", '{"a": {"Op Name": 1}}', '{"System Config": {}}'):
        (tmp_path / "a.json").write_text(text)
        found = sniff(tmp_path / "a.json")
        assert found is None or found.name != "DLProf JSON"


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.99])
def test_a_cut_file_is_refused(tmp_path: Path, kept: float) -> None:
    text = FILE.read_text().rstrip()
    path = tmp_path / "cut.json"
    path.write_text(text[: int(len(text) * kept)])
    with pytest.raises(ReportError, match="no whole JSON"):
        parse(path)


@pytest.mark.parametrize("text", ["5", '"System Config Summary Report"', "[1, [2, {}]]", "null"])
def test_json_that_is_no_object_of_dlprof_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ReportError, match="no report of DLProf"):
        dlprof_json.parse(path)


def test_nesting_too_deep_and_a_row_without_a_column_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text('{"System Config": 1, "Summary Report": ' + "[" * 100000)
    with pytest.raises(ReportError, match="no whole JSON"):
        parse(path)
    columns, found = rows(KINDS["kernel"])
    ragged = [dict(zip(columns, found[0], strict=True)), {"Op Name": "x"}]
    path.write_text(json.dumps(ragged))
    with pytest.raises(ReportError, match="row 1 of a table has no"):
        parse(path)


def split(folder: Path) -> Path:
    """The CSV's tables as one JSON file each."""
    for kind, name in KINDS.items():
        columns, found = rows(name)
        objects = [dict(zip(columns, row, strict=True)) for row in found]
        (folder / f"dlprof_{kind}.json").write_text(json.dumps(objects))
    return folder


def test_a_folder_of_json_reports_is_one_report_as_a_folder_of_csv_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    parser = sniff(split(tmp_path))
    assert parser is not None
    assert parser.name == "DLProf JSON"
    report = parse(tmp_path)
    assert report.form == "DLProf JSON: detail, iteration, kernel"
    assert list(report.kernels) == list(parse(CSV / KINDS["iteration"]).kernels)
    assert list(report.operations) == list(parse(CSV / KINDS["detail"]).operations)
    assert any("notes.txt" in said.text for said in report.diagnostics)


def test_a_folder_with_a_report_twice_or_with_foreign_json_is_none(tmp_path: Path) -> None:
    split(tmp_path)
    (tmp_path / "again.json").write_text((tmp_path / "dlprof_detail.json").read_text())
    assert sniff(tmp_path) is None
    (tmp_path / "again.json").unlink()
    for file in list(tmp_path.iterdir()):
        file.rename(tmp_path / file.name.removeprefix("dlprof_"))
    assert sniff(tmp_path) is not None
    (tmp_path / "package.json").write_text('{"name": "x"}')
    assert sniff(tmp_path) is None
