"""perfctl.report and perfctl.compare from Python: records out, nothing printed, errors that name
the field."""

import pytest

import perfctl
from perfctl.orchestrator.errors import LostWarning, PerfctlError, StoreError


def test_a_page_is_written_and_described_and_the_same_store_gives_the_same_page(store, tmp_path):
    page, same = (
        perfctl.report(store, tmp_path / name, title="Two batch sizes")
        for name in ("a.html", "b.html")
    )
    assert page.path.read_text(encoding="utf-8").count("Two batch sizes") >= 1
    assert page.size == page.path.stat().st_size
    assert page.runs == tuple(run.id for run in perfctl.runs(store))
    assert page.omitted is None
    assert page.path.read_bytes() == same.path.read_bytes()
    assert perfctl.report(store, tmp_path / "one.html", runs=[2]).runs == (2,)


def test_a_page_that_cannot_be_made_is_not_written(store, tmp_path):
    with pytest.raises(PerfctlError, match="no run belongs to sweep 7"):
        perfctl.report(store, tmp_path / "page.html", sweep=7)
    with pytest.raises(PerfctlError, match="Create the folder first"):
        perfctl.report(store, tmp_path / "nowhere" / "page.html")
    with pytest.raises(StoreError):
        perfctl.report(tmp_path / "none.db", tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_a_comparison_is_a_record_that_says_what_could_not_be_judged(store, recorded):
    found = perfctl.compare(store, recorded)
    assert sorted(pair.batch_label for pair in found.pairs) == ["16", "32"]
    assert (found.regressions, found.not_comparable, found.failed, found.gate) == ((), (), (), 0.05)
    steps = [
        row
        for pair in found.pairs
        for row in pair.rows
        if (row.key.quantity, row.name) == ("time", "step")
    ]
    assert [(row.change, row.result) for row in steps] == [(0.0, "not judged")] * 2


def test_of_a_folder_reports_that_cannot_be_read_are_skipped_and_said(recorded, tmp_path):
    trace = next((recorded / "b16").glob("report.*"))
    (tmp_path / "good.pt.trace.json.gz").write_bytes(trace.read_bytes())
    (tmp_path / "bad.pt.trace.json").write_text('{"traceEvents": [')
    with pytest.warns(LostWarning, match=r"skipped: .*bad\.pt\.trace\.json") as said:
        found = perfctl.compare(tmp_path, tmp_path / "good.pt.trace.json.gz", anyway=True)
    assert (len(found.a.runs), len(said)) == (1, 1)
