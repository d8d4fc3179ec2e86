"""Networks of published steps, as scripts/accuracy/published_rows.py traces them."""

from __future__ import annotations

import pytest

pytest.importorskip("torchvision")

from scripts.accuracy.published_rows import key_of, traced

FORWARD = 20 + 20 + 17 + 8 + 2 + 1
"""Convolutions, batch norms, ReLUs, additions, pools and the linear layer of ResNet-18."""


@pytest.mark.parametrize(("training", "counters"), [(False, 0), (True, 20)], ids=["inference", "training"])
def test_only_a_step_of_training_counts_the_batches_of_each_batch_norm(training: bool, counters: int) -> None:
    found = traced(key_of("torchvision:resnet18", 224, training))
    assert found is not None
    assert sum(work[1] for work in found["works"]) == FORWARD + counters


def test_the_mode_of_a_trace_is_part_of_its_key() -> None:
    assert key_of("timm:resnet50", 224, training=True) == "timm:resnet50 224"
    assert key_of("timm:resnet50", 224, training=False) == "timm:resnet50 224 infer"
    assert key_of("timm:resnet50", 224, training=False, fused=True) == "timm:resnet50 224 fused"
