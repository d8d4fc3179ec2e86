"""Layers of a graph's kernels from the trace of its capture: by name and order, by node, by order
alone; and refusals."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.parsers.kineto import captures
from perfctl.parsers.kineto import trace as kineto_trace
from perfctl.records.errors import ReportError
from perfctl.records.report import Report
from tests.make.kineto import (
    MADE,
    STEP,
    WHERE,
    annotation,
    capturing,
    event,
    executing,
    kernel,
    module,
    operation,
    written,
)


def explained(folder: Path, **made: Sequence[str]) -> Report:
    run = executing(folder / "run.json", made.get("ran", MADE))
    return kineto_trace.parse(
        run, capture=capturing(folder / "graphs.json", made.get("captured", MADE))
    )


def test_each_kernel_has_the_module_of_its_launch_in_the_capture(tmp_path: Path) -> None:
    found = explained(tmp_path)
    assert [one.layer for one in found.kernels] == list(WHERE)
    assert {one.layer_source for one in found.kernels} == {"capture"}
    (replay,) = found.graph_launches
    assert (replay.capture, replay.matched, replay.how, replay.confidence) == (
        "capture_8_FULL",
        5,
        "name",
        1.0,
    )


def test_the_shapes_of_captured_operators_count_once_a_step(tmp_path: Path) -> None:
    run, capture = executing(tmp_path / "run.json", replays=3), capturing(tmp_path / "graphs.json")
    found = kineto_trace.parse(run, capture=capture)
    assert [(op.layer, op.inputs, op.calls) for op in found.ops] == [
        ("Block_0.Linear_0", ((8, 16), (16, 32)), 1),
        ("Block_1.Linear_1", ((8, 16), (16, 32)), 1),
    ]
    assert [one.layer for one in found.kernels] == [*WHERE] * 3


def test_a_kernel_that_the_capture_lacks_has_no_module_and_its_neighbours_keep_theirs(
    tmp_path: Path,
) -> None:
    found = explained(tmp_path, ran=("embed", "gemm", "copy", "norm", "gemm", "norm"))
    assert [one.layer for one in found.kernels] == [
        "Embedding_0",
        "Block_0.Linear_0",
        None,
        *WHERE[2:],
    ]
    (replay,) = found.graph_launches
    assert (replay.kernels, replay.matched) == (6, 5)
    assert replay.confidence == pytest.approx(5 / 6)
    (gap,) = (gap for gap in found.gaps if gap.quantity == "kernel.layer")
    assert "1 of 6 launches" in gap.reason
    assert "copy (16.7 %)" in gap.reason


def test_streams_side_by_side_change_the_order_and_not_the_modules(tmp_path: Path) -> None:
    found = explained(tmp_path, ran=("gemm", "embed", "norm", "gemm", "norm"))
    assert sorted(one.layer or "" for one in found.kernels) == sorted(WHERE)
    assert next(one.layer for one in found.kernels if one.name == "embed") == "Embedding_0"


def test_ids_of_nodes_come_before_names(tmp_path: Path) -> None:
    run = executing(tmp_path / "run.json", [f"renamed {name}" for name in MADE], nodes=True)
    found = kineto_trace.parse(
        run, capture=capturing(tmp_path / "graphs.json", [None] * 5, nodes=True)
    )
    assert [one.layer for one in found.kernels] == list(WHERE)
    assert [(one.how, one.confidence) for one in found.graph_launches] == [("node", 1.0)]


def test_without_names_order_decides_only_where_the_numbers_of_launches_are_equal(
    tmp_path: Path,
) -> None:
    capture = capturing(tmp_path / "graphs.json", [None] * 5)
    found = kineto_trace.parse(executing(tmp_path / "run.json"), capture=capture)
    assert [one.layer for one in found.kernels] == list(WHERE)
    assert [(one.how, one.confidence) for one in found.graph_launches] == [
        ("order", captures.ORDER_ALONE)
    ]
    longer = kineto_trace.parse(
        executing(tmp_path / "run.json", [*MADE, "one more"]), capture=capture
    )
    assert {one.layer for one in longer.kernels} == {None}


def test_a_capture_of_another_graph_is_not_taken(tmp_path: Path) -> None:
    found = explained(tmp_path, captured=("other", "gemm", "thing", "else", "here"))
    assert {one.layer for one in found.kernels} == {None}
    assert [(one.capture, one.confidence) for one in found.graph_launches] == [(None, None)]
    assert any("1 of 1 graph launches match no capture" in gap.reason for gap in found.gaps)


def test_the_capture_beside_a_trace_is_found_by_the_server_s_list(tmp_path: Path) -> None:
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
    assert [path.name for path in captures.find_captures(run, [8])] == ["small.json", "large.json"]
    assert [one.layer for one in kineto_trace.parse(run).kernels] == list(WHERE)


def test_compiled_code_is_named_by_its_part_and_the_operator_it_calls(tmp_path: Path) -> None:
    call = "## Call CompiledFxGraph f00 ##"
    names = ("rope", "experts")
    capture = written(
        tmp_path / "graphs.json",
        annotation("capture_8_PIECEWISE", 0, 200),
        module("Net_0", 5, 100),
        module("GraphModule_0", 6, 90),
        *(
            made
            for at in (0, 1)
            for made in (
                event(
                    "cuda_runtime", "hipStreamBeginCapture", 10 + 40 * at, 1, correlation=10 + at
                ),
                annotation(call, 12 + 40 * at, 20),
                operation("vllm::moe", 13 + 40 * at, 10, at),
                operation("x::inner", 14 + 40 * at, 5, 10 + at),
                event(
                    "hip_runtime",
                    "hipLaunchKernel",
                    15 + 40 * at,
                    1,
                    correlation=20 + at,
                    kernel=names[at],
                ),
                event("cuda_runtime", "hipStreamEndCapture", 40 + 40 * at, 1, correlation=30 + at),
            )
        ),
    )
    events = [annotation(STEP, 0, 500)]
    for at, name in enumerate(names):
        events += [
            event("hip_runtime", "hipGraphLaunch", 10 + at, 1, correlation=at),
            kernel(name, 50 + 20 * at, 9, correlation=at),
        ]
    found = kineto_trace.parse(written(tmp_path / "run.json", *events), capture=capture)
    assert [one.layer for one in found.kernels] == [
        "GraphModule_0.part_0.vllm.moe",
        "GraphModule_0.part_1.vllm.moe",
    ]


def test_a_capture_that_cannot_help_is_refused_in_one_line(tmp_path: Path) -> None:
    run, capture = executing(tmp_path / "run.json"), capturing(tmp_path / "graphs.json")
    eager = written(tmp_path / "eager.json", kernel("a", 1, 1))
    smi = tmp_path / "smi.csv"
    smi.write_text("timestamp, name, utilization.gpu [%]\n2026/01/01 00:00:00.000, A, 22 %\n")
    for trace, given, why in (
        (run, run, "captures no graph"),
        (eager, capture, "launches no graph"),
        (smi, capture, "another kind"),
    ):
        with pytest.raises(ReportError, match=why):
            parsers.parse(trace, capture=given)


PAIRS = (("sglang_qwen3_decode", 544), ("vllm_prefilldecode_piecewise", 361))


@pytest.mark.parametrize(("folder", "inside"), PAIRS)
def test_public_traces_of_servers_have_a_module_for_95_percent_of_the_kernel_time(
    folder: str, inside: int, reports: Path
) -> None:
    path = reports / "kineto" / "llm" / folder / "execution.json.gz"
    found = kineto_trace.parse(path, single_operators=False)
    times = {"all": 0.0, "placed": 0.0}
    for one in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
        times["all"] += one["dur"] * 1000 if one.get("cat") == "kernel" else 0
    times["placed"] = sum(one.duration_ns or 0 for one in found.kernels if one.layer is not None)
    assert times["placed"] / times["all"] > 0.95
    assert sum(one.layer_source == "capture" for one in found.kernels) == inside
    assert {one.confidence for one in found.graph_launches} == {1.0}
