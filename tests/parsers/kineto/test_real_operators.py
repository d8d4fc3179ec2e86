"""Paper FLOPs of real traces by others, against what the networks are known to cost; needs the
collected reports."""

from __future__ import annotations

from collections import Counter

from perfctl.orchestrator.estimate.flops.engine import (
    BACKWARD,
    build_layer_calls_with_flops,
    sum_layer_call_work,
)
from perfctl.parsers import parse
from perfctl.records.report import COVERS

RESNET50 = 4_089_184_256
"""Multiply-adds of an image, as torchvision publishes them (4.089 GMAC)."""
FIRST = 112 * 112 * 64 * 3 * 7 * 7
"""Of its first convolution, whose input needs no gradient."""


def test_training_of_resnet50_from_2021_without_stride_and_padding(reports):
    found = parse(
        reports / "kineto" / "kineto2021_resnet50_nw0_worker0.1623143089861.pt.trace.json.gz"
    )
    calls, batch = build_layer_calls_with_flops(found.ops), 32
    assert sum_layer_call_work(calls, ("forward",)).macs == batch * RESNET50
    assert sum_layer_call_work(calls, BACKWARD).macs == batch * (2 * RESNET50 - FIRST)
    assert (
        not sum_layer_call_work(calls, (*BACKWARD, "forward")).missing
        and COVERS not in found.environment
    )
    placed = Counter(one.direction for one in found.kernels if one.layer is not None)
    assert placed["forward"] == 6 * sum(
        1 for one in found.kernels if one.direction == "forward" and one.step == 5
    )
    assert set(placed) == {"forward", "backward"}


def test_vision_transformer_on_an_h100_by_modules(reports):
    found = parse(reports / "kineto" / "tracelens_h100_Falconsai_vit.json.gz")
    batch, tokens, wide, hidden, layers, classes = 4, 197, 768, 3072, 12, 2
    layer = tokens * (4 * wide * wide + 2 * wide * hidden) + 2 * tokens * tokens * wide
    patches = (tokens - 1) * wide * 3 * 16 * 16
    macs = batch * (layers * layer + patches + wide * wide)  # the last is the pooler
    assert sum_layer_call_work(build_layer_calls_with_flops(found.ops), ("forward",)).macs in (
        macs,
        macs + batch * wide * classes,
    )
    assert found.precision == "bf16" and all(one.layer for one in found.kernels)
    assert {op.kind for op in found.ops} == {"Conv2d", "Linear", "ViTSdpaSelfAttention"}


def test_autocast_on_an_a100_counts_each_product_once_and_in_half(reports):
    for batch in (16, 128):
        found = parse(reports / "kineto" / f"harryjmoss_forward_batch_size_{batch}.json")
        assert found.precision == "fp16"
        assert not any(op.op == "aten.linear" for op in found.ops)
        assert not any((one.layer or "").startswith("aten::linear") for one in found.kernels)
