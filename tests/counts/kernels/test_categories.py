"""Kinds of work: named operations, and public traces from 2021 to now with next to nothing
left over."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from typing import Any

import pytest

from perfctl import parsers
from perfctl.orchestrator.counts.kernels import categories
from perfctl.orchestrator.ledger.arm_figures import list_longest_kernels_or_operations
from tests.make import synthetic
from tests.make.tables import table
from tests.sample import sample

TRACES = (
    "hta_alexnet_critical_path_2023.json.gz",
    "kineto2021_resnet50_nw0_worker0.1623143089861.pt.trace.json.gz",
    "hta_cpu_only_rank-34.pt.trace.json.gz",
    "tracelens_b200_eager_trace.json.gz",
    "tracelens_h100_Falconsai_vit.json.gz",
    "tracelens_mi210_gpu_only.json.gz",
)


@table(
    "name kind",
    [
        ("aten::convolution", "convolution"),
        ("aten::mkldnn_convolution", "convolution"),
        ("autograd::engine::evaluate_function: ConvolutionBackward0", "convolution"),
        ("aten::addmm", "GEMM"),
        ("AddmmBackward0", "GEMM"),
        ("aten::mkldnn_rnn_layer_backward", "RNN"),
        ("autograd::engine::evaluate_function: MkldnnRnnLayerBackward0", "RNN"),
        ("aten::_thnn_fused_lstm_cell", "RNN"),
        ("aten::native_batch_norm", "normalisation"),
        ("aten::threshold_backward", "elementwise"),
        ("aten::add_", "elementwise"),
        ("aten::upsample_bilinear2d", "elementwise"),
        ("aten::max_pool2d_with_indices", "reduction"),
        ("aten::_log_softmax", "reduction"),
        ("aten::nll_loss_forward", "reduction"),
        ("aten::sum", "reduction"),
        ("aten::cat", "memory"),
        ("aten::empty_strided", "memory"),
        ("aten::copy_", "copy"),
        ("aten::_to_copy", "copy"),
        ("Optimizer.step#Adam.step", "optimizer"),
        ("torch::autograd::AccumulateGrad", "optimizer"),
        ("my_library::frobnicate", "other"),
    ],
)
def test_an_operation_is_of_its_kind(name, kind):
    assert categories.categorize_operation(name) == kind


def plain(path):
    """(kernel name -> ns, self time of operations in ns), read from the JSON without perfctl."""
    with gzip.open(path, "rt", encoding="utf-8") as opened:
        events = json.load(opened)["traceEvents"]
    kernels: dict[str, float] = defaultdict(float)
    threads: dict[Any, list[tuple[float, float, bool]]] = defaultdict(list)
    for event in events:
        kind = str(event.get("cat", "")).lower()
        if event.get("ph") != "X" or not isinstance(event.get("dur"), (int, float)):
            continue
        start, end = float(event["ts"]), float(event["ts"]) + event["dur"]
        if kind == "kernel":
            kernels[event["name"]] += event["dur"] * 1000
        elif kind in ("cpu_op", "operator", "user_annotation"):
            marks = event["name"].startswith(("ProfilerStep", "Optimizer.", "enumerate("))
            threads[event["pid"], event["tid"]].append(
                (start, -end, kind != "user_annotation" and not marks)
            )
    return kernels, sum(innermost(sorted(spans)) for spans in threads.values()) * 1000


def innermost(spans):
    """Time in which the innermost open span is an operation; spans as (start, -end, is
    an operation)."""
    found, now = 0.0, float("-inf")
    opened: list[tuple[float, bool]] = []
    for start, minus_end, is_operation in [*spans, (float("inf"), 0.0, False)]:
        while opened and opened[-1][0] <= start:
            end, counts = opened.pop()
            found += max(end - now, 0) * counts
            now = max(now, end)
        if opened:
            found += (start - now) * opened[-1][1]
        now = start
        opened.append((-minus_end, is_operation))
    return found


@table("name", sample(TRACES, 2))
def test_real_traces_leave_under_5_percent_over(reports, name):
    report = parsers.parse(reports / "kineto" / name)
    for fields in (
        {"kernels": report.kernels, "copies": report.copies},
        {"operations": report.operations},
    ):
        found = categories.sum_ns_by_category(
            synthetic.make_run(**{key: list(value) for key, value in fields.items()})
        )
        if found is not None and sum(found.values()):
            assert found["other"] < 0.05 * sum(found.values()), found


@table("name", sample(TRACES, 2))
def test_totals_of_real_traces_are_those_of_a_plain_reading(reports, name):
    """Kernels by name to the ns of rounding; self times of all operations together are the time
    that any ran."""
    path = reports / "kineto" / name
    report = parsers.parse(path)
    kernels, covered = plain(path)
    mine: dict[str, float] = defaultdict(float)
    for one in report.kernels:
        mine[one.name] += one.duration_ns or 0
    assert set(mine) == set(kernels)
    for kernel, spent in kernels.items():
        assert mine[kernel] == pytest.approx(spent, abs=1 * len(list(report.kernels)))
    own = sum(item.self_cpu_ns or 0 for item in report.operations)
    assert own == pytest.approx(covered, rel=0.005)
    ranked = sorted(kernels.items(), key=lambda item: -item[1])[:10]
    if ranked:
        found = list_longest_kernels_or_operations(synthetic.make_run(kernels=list(report.kernels)))
        assert [one.self_ns for one in found] == pytest.approx(
            [spent for _, spent in ranked], rel=1e-6
        )
