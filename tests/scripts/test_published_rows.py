"""Networks of published steps, as scripts/proof/accuracy/published_rows.py traces them."""

import importlib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torchvision")

from scripts.proof.accuracy.published_rows import key_of, traced

FORWARD = 20 + 20 + 17 + 8 + 2 + 1
"""Convolutions, batch norms, ReLUs, additions, pools and the linear layer of ResNet-18."""


@pytest.mark.parametrize(
    ("training", "counters"), [(False, 0), (True, 20)], ids=["inference", "training"]
)
def test_only_a_step_of_training_counts_the_batches_of_each_batch_norm(training, counters):
    found = traced(key_of("torchvision:resnet18", 224, training))
    assert found is not None
    assert sum(work[1] for work in found["works"]) == FORWARD + counters


def test_the_mode_of_a_trace_is_part_of_its_key():
    assert key_of("timm:resnet50", 224, training=True) == "timm:resnet50 224"
    assert key_of("timm:resnet50", 224, training=False) == "timm:resnet50 224 infer"
    assert key_of("timm:resnet50", 224, training=False, fused=True) == "timm:resnet50 224 fused"


def test_the_standardisation_of_weights_is_counted_once_not_for_each_sample():
    """A scaled convolution of timm reads its weights as (1, channels out, the rest) and writes as
    many: twice the weights."""
    pytest.importorskip("timm")
    found = traced(key_of("timm:nf_resnet26", 64, training=False))
    assert found is not None
    stem = 64 * 3 * 7 * 7
    norms = [(work[3], work[4], work[5]) for work in found["works"] if work[0] == "norm"]
    assert (0, 0, 2 * stem) in norms
    assert all(inputs == outputs == 0 for inputs, outputs, _ in norms)


@pytest.fixture
def publish(monkeypatch):
    pytest.importorskip("scipy")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts" / "proof" / "accuracy"))
    return importlib.import_module("publish")


def test_costs_of_regimes_are_pulled_together_as_strongly_as_their_differences_are_small_against_the_errors(
    publish,
):
    """Two regimes of one part, 100 steps each, predicted 10% too high and too low in turn; the
    third cost is the part's own."""
    errors = np.tile([0.9, 1.1], 50)
    together = np.array([[1.0, 0.0, -1.0], [0.0, 1.0, -1.0]])
    pull = np.vstack([0.1 * together, [0.0, 0.0, 0.1]])
    found = []
    for apart in (0.4, 0.04):
        costs = np.array([1.0 - apart, 1.0 + apart, 1.0])
        data = np.zeros((200, 3))
        data[:100, 0], data[100:, 1] = errors / costs[0], errors / costs[1]
        found.append(publish._likeliest(data, np.ones(200), pull, together, costs, 0.01))
    # Errors of 0.1 and two differences of 0.4, of which the rows determine between one and two.
    assert 0.1**2 / (2 * 0.4**2) <= found[0] <= 1.1 * 2 * 0.1**2 / (2 * 0.4**2)
    assert found[1] / found[0] == pytest.approx((0.4 / 0.04) ** 2, rel=0.1)
