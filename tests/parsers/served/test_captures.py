"""Layers of a graph's kernels from the trace of its capture: found, refused, and in public traces."""

import json

import pytest

from perfctl import parsers
from perfctl.parsers.kineto import captures
from perfctl.parsers.kineto import trace as kineto_trace
from perfctl.parsers.kineto.captures import (
    ExplainedGraphs,
    assign_layers_by_eager_run,
    group_kernels_by_graph_launch,
)
from perfctl.records.errors import ReportError
from tests.make import kineto as traces
from tests.make.files import write
from tests.make.kineto import (
    MADE,
    WHERE,
    capturing,
    executing,
    kernel,
    written,
)


def test_the_capture_beside_a_trace_is_found_by_the_server_s_list(tmp_path):
    run, folder = executing(tmp_path / "run.json"), tmp_path / "capture_traces"
    assert {one.layer for one in kineto_trace.parse(run).kernels} == {None}
    folder.mkdir()
    capturing(folder / "large.json", ["embed", *["other"] * 4], size=64)
    capturing(folder / "small.json")
    listed = [
        {"file": name, "batch_size": size, "mode": "FULL"}
        for name, size in (("large.json", 64), ("small.json", 8))
    ]
    (folder / captures.DETAILS).write_text(json.dumps(listed))
    assert [path.name for path in captures.find_neighbouring_capture_traces(run, [8])] == [
        "small.json",
        "large.json",
    ]
    assert [one.layer for one in kineto_trace.parse(run).kernels] == list(WHERE)


def test_a_capture_that_cannot_help_is_refused_in_one_line(tmp_path):
    run, capture = executing(tmp_path / "run.json"), capturing(tmp_path / "graphs.json")
    eager = written(tmp_path / "eager.json", kernel("a", 1, 1))
    smi = write(
        tmp_path / "smi.csv",
        "timestamp, name, utilization.gpu [%]\n2026/01/01 00:00:00.000, A, 22 %\n",
    )
    for trace, given, why in (
        (run, run, "captures no graph"),
        (eager, capture, "no graph launch"),
        (smi, capture, "another kind"),
    ):
        with pytest.raises(ReportError, match=why):
            parsers.parse(trace, capture=given)


# Layers of a graph's kernels by sequence, from a run of the same steps without graphs: a guess,


def guessed(folder, ran=MADE, *, grid=None, replays=1, **eager):
    run = traces.executing(folder / "run.json", ran, replays=replays)
    if grid is not None:
        held = json.loads(run.read_text())
        for event in held["traceEvents"]:
            if event["cat"] == "kernel":
                event["args"] |= {"grid": grid, "block": [32, 1, 1]}
        run.write_text(json.dumps(held))
    return kineto_trace.parse(run, capture=traces.eager(folder / "eager.json", **eager))


def test_each_kernel_has_the_module_of_the_one_at_its_place_in_the_eager_run(tmp_path):
    found = guessed(tmp_path, grid=[4, 1, 1], blocks=4, replays=2)
    assert [one.layer for one in found.kernels] == [*WHERE] * 2
    assert {one.layer_source for one in found.kernels} == {"guessed"}
    for replay in found.graph_launches:
        assert (replay.how, replay.kernels, replay.matched, replay.confidence) == ("eager", 5, 5, 1)
        assert replay.capture == "eager.json, without graphs"
    assert any(
        "were guessed from eager.json, by sequence; confidence 1.00" in one.text
        for one in found.diagnostics
    )


def test_kernels_with_other_grids_count_half(tmp_path):
    """The eager run had other shapes: the same kernels, on 8 blocks in the place of 4."""
    found = guessed(tmp_path, grid=[4, 1, 1], blocks=8)
    assert [one.layer for one in found.kernels] == list(WHERE)
    assert [one.confidence for one in found.graph_launches] == [1 / 2]


def test_a_kernel_that_only_one_of_both_has_lowers_the_confidence(tmp_path):
    ran = ("embed", "gemm", "copy", "norm", "gemm", "norm")
    found = guessed(tmp_path, ran, grid=[4, 1, 1], blocks=4)
    assert [one.layer for one in found.kernels] == [*WHERE[:2], None, *WHERE[2:]]
    (replay,) = found.graph_launches
    assert (replay.matched, replay.confidence) == (5, pytest.approx(5 / 6))


def test_a_run_of_other_kernels_is_not_taken(tmp_path):
    found = guessed(tmp_path, ran=("a", "b", "c", "gemm", "norm"))
    assert {one.layer for one in found.kernels} == {None}
    assert [one.confidence for one in found.graph_launches] == [None]
    assert any("1 of 1 graph launches match no capture" in gap.reason for gap in found.gaps)


def test_a_trace_without_modules_is_refused(tmp_path):
    run = traces.executing(tmp_path / "run.json")
    held = json.loads(traces.eager(tmp_path / "eager.json").read_text())
    bare = [event for event in held["traceEvents"] if event["cat"] != "python_function"]
    other = traces.written(tmp_path / "bare.json", *bare)
    with pytest.raises(ReportError, match=r"the trace captures no graph.*without graphs"):
        kineto_trace.parse(run, capture=other)


SGLANG = "kineto/llm/sglang_qwen3_decode"


@pytest.fixture(scope="module")
def decode(reports):
    """With the layers of its capture."""
    path = reports / SGLANG / "execution.json.gz"
    if not path.is_file():
        pytest.skip(f"{path.name} is not there")
    return kineto_trace.parse(path, single_operators=False)


@pytest.mark.parametrize("lost", [10, 50, 10**6])
def test_most_kernels_keep_their_layer_where_the_eager_run_lacks_some(decode, lost):
    """The eager run is made from the capture: the same kernels with its layers, and the server's
    own among them. Every n-th is taken out, as other fusion would (of 10**6 the first): what is
    guessed is mostly true, and doubted as much."""
    (replay,) = decode.graph_launches
    bare = [
        one._replace(layer=None) if one.layer_source == "capture" else one for one in decode.kernels
    ]
    eager = [one for at, one in enumerate(decode.kernels) if at % lost]
    found = ExplainedGraphs(bare)
    assign_layers_by_eager_run(
        found, group_kernels_by_graph_launch(bare, {replay.correlation}), eager, "made.json"
    )
    true = {one.launch: one.layer for one in decode.kernels if one.layer_source == "capture"}
    told = [
        (one.layer, true[one.launch])
        for one in found.kernels
        if one.launch in true and one.layer is not None
    ]
    right = sum(layer == truth for layer, truth in told) / len(true)
    assert right > 1 - 3 / lost
    assert found.launches[0].confidence == pytest.approx(len(eager) / len(decode.kernels), abs=0.01)
