"""Graphs and phases as a user meets them: ``ingest --capture``, and what show, ledger and the
page say."""

import pytest

from tests.make import kineto as traces
from tests.make.nsys_sqlite import LAUNCH, NsysBuilder, captured, replay


@pytest.fixture
def taken(perfctl, tmp_path):
    run, capture = (
        traces.executing(tmp_path / "run.json", replays=2),
        traces.capturing(tmp_path / "graphs.json"),
    )
    return perfctl(f"ingest {run} {capture} --capture {capture}")


def test_ingest_says_how_much_of_the_kernel_time_has_a_module(taken, perfctl, tmp_path):
    assert taken.code == 0
    assert "100.0% of the kernel time has a module or operator" in taken.out
    again = perfctl(f"ingest {tmp_path / 'run.json'} --again --json").json
    assert again["runs"][0]["kernel_time_with_module"] == 0  # the capture is in another place


def test_the_ledger_has_paper_flops_of_captured_operators(taken, perfctl):
    rows = perfctl("ledger --json").json
    assert str(2 * 8 * 16 * 32) in str(rows)


def test_the_store_answers_by_phase(taken, perfctl):
    query = "SELECT phase, sum(decode_tokens) AS tokens FROM served_step GROUP BY phase"
    assert perfctl("query", query, "--json").json == [{"phase": "decode", "tokens": 16}]
    query = "SELECT capture, matched, how, confidence FROM graph_launch"
    assert (
        perfctl("query", query, "--json").json
        == [{"capture": "capture_8_FULL", "matched": 5, "how": "name", "confidence": 1.0}] * 2
    )


def test_the_trace_of_a_capture_is_read_with_the_others_of_its_folder_and_is_no_run(
    perfctl, tmp_path
):
    folder = tmp_path / "both"
    folder.mkdir()
    capture = traces.capturing(folder / "graphs.json")
    (folder / "execution_details.json").write_text(
        '[{"file": "graphs.json", "batch_size": 8, "mode": "FULL"}]'
    )
    assert perfctl("ingest", folder, "--store", "alone.db").code == 0
    assert len(perfctl("runs --store alone.db --json").json) == 1, "alone, it is a run"
    traces.executing(folder / "run.json", replays=2)
    said = perfctl("ingest", folder)
    assert "100.0% of the kernel time has a module or operator" in said.out
    assert "graphs.json. Name such a file itself to store it" in said.err
    assert "not a report" not in said.err
    assert len(perfctl("runs --json").json) == 1
    assert perfctl("ingest", capture).code == 0, "named by itself, it is a run"
    assert len(perfctl("runs --json").json) == 2


def test_show_says_how_layers_of_graphs_in_a_report_of_nsys_were_found(perfctl, tmp_path):
    builder = captured(NsysBuilder("2026.1"))
    builder.range("perfctl:step:0", LAUNCH, LAUNCH + 90)
    replay(builder, [101, 102, 103, 104], LAUNCH)
    assert perfctl("ingest", builder.write(tmp_path / "graphs.sqlite")).code == 0
    words = " ".join(perfctl("show 1").out.split())
    assert "75.0% of the kernel time has a module or operator" in words, (
        "three of four kernels that take equally long"
    )
    assert "4 of 4 kernels of graphs by the capture (inferred, confidence 1.00)" in words
    query = "SELECT layer, layer_source FROM kernel WHERE layer IS NOT NULL ORDER BY launch"
    assert perfctl("query", query, "--json").json == [
        {"layer": layer, "layer_source": "capture"} for layer in ("conv1", "fc", "fc")
    ]


def test_show_and_ledger_say_phase_tokens_and_how_modules_were_found(taken, perfctl):
    for said in (perfctl("show 1").out, perfctl("ledger --explain").out):
        words = " ".join(said.split())
        assert "10 of 10 kernels of graphs by the capture (inferred, confidence 1.00)" in words
        # two steps of 8 sequences; five kernels of 10 us each: 100 us over 16 tokens
        assert "decode 2 16 16 100 µs 6.25 µs 160 k" in words
        assert "Decode by part of the model: 2 steps, 16 tokens" in words


def test_the_page_has_prefill_and_decode(taken, perfctl, tmp_path):
    assert perfctl(f"report -o {tmp_path / 'page.html'}").code == 0
    page = (tmp_path / "page.html").read_text()
    assert "Prefill and decode" in page
    assert "kernels of graphs by the capture" in page
