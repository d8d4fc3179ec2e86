"""What the time is that no layer explains: each cause from a run made for it."""

from __future__ import annotations

from types import ModuleType

import pytest

from perfctl.orchestrator.analyse.analysis import analyse
from perfctl.orchestrator.analyse.grouping import studies
from perfctl.orchestrator.analyse.ledger import ledger
from perfctl.orchestrator.analyse.unattributed import (
    BETWEEN,
    COMPILED_CODE,
    NO_BACKWARD,
    NO_CALL,
    NO_RANGES,
    beyond_time,
    causes,
)
from perfctl.orchestrator.report.findings import findings
from perfctl.parsers.records import Gap, Kernel, Range
from perfctl.parsers.stored import Run


def kernel(launch: int, duration: int, inside: int | None = None, name: str = "k", **more: object) -> Kernel:
    return Kernel(launch, name, range_number=inside, start_ns=launch, duration_ns=duration, **{"step": 0, **more})


def span(number: int, name: str, parent: int | None = None, duration: int | None = 100, **more: object) -> Range:
    return Range(number, name, None, number, duration, 1, 0 if parent is None else 1, parent, step=0, **more)


def gpu(synthetic: ModuleType, kernels: list[Kernel], ranges: list[Range], **more: object) -> Run:
    return synthetic.make_run(
        1, profiler="nsys", device=synthetic.V100, kernels=kernels, ranges=ranges,
        layer_calls=synthetic.layer_calls(64), **more,
    )  # fmt: skip


STEP = span(0, "perfctl:step:0")
FORWARD = span(1, "perfctl:phase:forward", 0, phase="forward")
BACKWARD = span(2, "perfctl:phase:backward", 0, phase="backward")
CONV = span(3, "conv1:forward", 1, layer="conv1", direction="forward", phase="forward")
GRADIENT = span(4, "conv1:backward", layer="conv1", direction="backward", phase="backward")
IN_CONV = {"layer": "conv1", "direction": "forward", "layer_source": "range"}


def shares(run: Run) -> dict[str, float]:
    return {cause.text: cause.share for cause in causes(run)}


def test_a_report_without_ranges_says_so(synthetic: ModuleType) -> None:
    run = gpu(synthetic, [kernel(0, 10), kernel(1, 30)], [])
    (cause,) = causes(run)
    assert (cause.text, cause.share, cause.launches) == (NO_RANGES, 1, 2)


def test_kernels_of_backward_without_any_backward_range_miss_autograds_thread(synthetic: ModuleType) -> None:
    kernels = [kernel(0, 50, 3, **IN_CONV), kernel(1, 30), kernel(2, 10, 1)]
    found = shares(gpu(synthetic, kernels, [STEP, FORWARD, BACKWARD, CONV]))
    assert found[NO_BACKWARD] == 30 / 40
    assert sum(found.values()) == pytest.approx(1)
    assert any("the loss" in text for text in found)


def test_with_backward_ranges_a_launch_outside_of_all_is_another_threads(synthetic: ModuleType) -> None:
    kernels = [kernel(0, 50, 3, **IN_CONV), kernel(1, 30), kernel(2, 10, 0), kernel(3, 60, 2)]
    found = shares(gpu(synthetic, kernels, [STEP, FORWARD, BACKWARD, CONV, GRADIENT]))
    assert found[NO_CALL] == 30 / 100
    assert found[BETWEEN] == 10 / 100
    assert found["gradients of what no module ran, and autograd's own work"] == 60 / 100


def test_compiled_code_is_told_by_its_range_or_its_kernels(synthetic: ModuleType) -> None:
    compiled = span(5, "Torch-Compiled Region: 0/0", 1, phase="forward")
    kernels = [kernel(0, 50, 3, **IN_CONV), kernel(1, 30, 5), kernel(2, 20, 1, "triton_poi_fused_relu_0")]
    found = shares(gpu(synthetic, kernels, [STEP, FORWARD, CONV, GRADIENT, compiled]))
    assert found == {COMPILED_CODE: 1}


def test_launches_outside_of_all_steps_and_graphs_without_kernels_are_not_in_the_time(synthetic: ModuleType) -> None:
    kernels = [kernel(0, 50, 3, **IN_CONV), kernel(1, 1000, step=None)]
    gap = Gap("kernel", "not_collected", "CUDA graphs were recorded as a whole: record with --cuda-graph-trace=node")
    run = gpu(synthetic, kernels, [STEP, FORWARD, CONV], gaps=(gap,))
    assert causes(run) == ()
    graph, outside = beyond_time(run)
    assert "--cuda-graph-trace=node" in graph
    assert outside.startswith("1 of 2 launches lie outside of every measured step")


def test_on_a_cpu_it_is_what_phases_and_steps_hold_beside_layers(synthetic: ModuleType) -> None:
    ranges = [
        span(0, "perfctl:step:0", None, 1000),
        span(1, "perfctl:phase:forward", 0, 600, phase="forward"),
        span(2, "Net:forward", 1, 500, layer="Net", direction="forward", phase="forward"),
        span(3, "conv1:forward", 2, 450, layer="conv1", direction="forward", phase="forward"),
        span(4, "perfctl:phase:data", 0, 150, phase="data"),
        span(5, "perfctl:phase:optimizer", 0, 50, phase="optimizer"),
    ]
    run = synthetic.make_run(1, profiler="torch", ranges=ranges)
    found = shares(run)
    left = {"step": 1000 - 600 - 150 - 50, "forward": 600 - 500, "data": 150}
    assert found[BETWEEN] == left["step"] / sum(left.values())
    assert found["loading of data and copies to the device"] == left["data"] / sum(left.values())
    assert sum(found.values()) == pytest.approx(1)


@pytest.mark.parametrize(("loose", "said"), [(4, False), (20, True)])
def test_the_page_speaks_of_it_above_a_twentieth(loose: int, said: bool, synthetic: ModuleType) -> None:
    kernels = [kernel(0, 96, 3, **IN_CONV), kernel(1, loose, 1)]
    (study,) = studies([gpu(synthetic, kernels, [STEP, FORWARD, BACKWARD, CONV, GRADIENT])])
    texts = [item.text for item in findings(analyse(study)) if "outside of every layer" in item.text]
    assert bool(texts) is said
    if said:
        share = f"{loose / (96 + loose) * 100:.1f} %"
        assert texts[0].startswith(f"{share} of the kernel time of a step at batch 64")
        assert f"{share} operations of the forward pass" in texts[0] and "(1 launch)" in texts[0]


def test_a_run_of_which_no_kernel_has_a_layer_still_has_its_row_of_unattributed_time(synthetic: ModuleType) -> None:
    (study,) = studies([gpu(synthetic, [kernel(0, 10), kernel(1, 30)], [STEP])])
    (item,) = ledger(study).unattributed
    assert (item.share, item.time.median) == (1, 40)
