"""Steps of a server in a trace: numbered in order of time, one for annotations inside
each other."""

from __future__ import annotations

from pathlib import Path

from perfctl.records.report import Gap
from tests.make.kineto import annotation, event, kernel, launch, read

PREFILL, DECODE = "step[EXTEND bs=2 toks=64]", "step[DECODE bs=2]"
OUTER = "execute_2_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq2sk66sqsq2sqsk66)"


def test_kernels_belong_to_the_step_that_launched_them_whenever_they_ran(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        annotation(DECODE, 100, 50),
        annotation(PREFILL, 0, 50),
        launch(10, 1),
        kernel("a", 120, 5, correlation=1),
        launch(110, 2),
        kernel("b", 130, 5, correlation=2),
        launch(70, 3),
        kernel("c", 140, 5, correlation=3),
    )
    assert [(one.name, one.step) for one in found.kernels] == [("a", 0), ("b", 1), ("c", None)]
    assert [(step.number, step.phase) for step in found.served_steps] == [
        (0, "prefill"),
        (1, "decode"),
    ]
    assert [(step.number, step.phase, step.duration_ns) for step in found.steps] == [
        (0, "step", 50_000),
        (1, "step", 50_000),
    ]
    assert found.phase is None  # more than one


def test_one_annotation_inside_another_is_one_step_with_what_both_say(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        annotation(OUTER, 0, 50),
        annotation(DECODE, 10, 30),
        launch(20, 1),
        kernel("a", 30, 5, correlation=1),
    )
    (step,) = found.served_steps
    assert (step.name, step.decodes, step.decode_tokens, step.decode_keys) == (OUTER, 2, 2, 66)
    assert [(one.number, one.duration_ns) for one in found.steps] == [(0, 50_000)]
    assert found.phase == "decode"


def test_the_profiler_s_own_steps_count_only_where_no_server_names_one(tmp_path: Path) -> None:
    events = annotation("ProfilerStep#7", 0, 100), launch(20, 1), kernel("a", 30, 5, correlation=1)
    assert [step.number for step in read(tmp_path, *events).steps] == [7]
    found = read(tmp_path, *events, annotation(DECODE, 10, 30))
    assert [(step.number, step.duration_ns) for step in found.steps] == [(0, 30_000)]


def test_graph_kernels_without_a_capture_are_named_as_missing_with_what_to_do(
    tmp_path: Path,
) -> None:
    replay = event("cuda_runtime", "cudaGraphLaunch", 20, 1, correlation=5)
    found = read(
        tmp_path,
        annotation(DECODE, 10, 30),
        replay,
        kernel("a", 30, 30, correlation=5),
        launch(35, 6),
        kernel("b", 70, 10, correlation=6),
    )
    assert [
        (one.kernels, one.kernel_ns, one.capture, one.matched) for one in found.graph_launches
    ] == [(1, 30_000, None, 0)]
    reason = (
        "1 of 2 kernels (75.0 % of their time) were launched by graphs; no module is known of "
        "them: give the trace of the capture with perfctl ingest --capture"
    )
    assert Gap("kernel.layer", "not_collected", reason) in found.gaps
