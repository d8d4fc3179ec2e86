"""A worked sheet for each kind of layer: what it says is what the layer's rows say, and what is
true by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from perfctl.orchestrator.estimate import session as estimation
from perfctl.orchestrator.estimate.sheets.sheet import build_layer_sheet
from perfctl.orchestrator.estimate.sheets.slips import diagnose_stated_value, parse_stated_value
from perfctl.orchestrator.report.sheets import (
    build_layer_calculation_sheets,
    build_layer_calculation_view,
)

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")


class Attend(nn.Module):
    """Causal attention of 2 heads."""

    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


class Mha(nn.Module):
    def __init__(self):
        super().__init__()
        self.mha = nn.MultiheadAttention(16, 2)

    def forward(self, x):
        return self.mha(x, x, x, need_weights=False)[0]  # type: ignore[no-any-return]


KINDS: dict[str, tuple[nn.Module, Any, str, int]] = {
    "grouped": (nn.Conv2d(8, 12, 3, groups=4), (2, 8, 9, 9), "", 2 * 7 * 7 * 12 * 2 * 9),
    "depthwise": (
        nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8),
        (2, 8, 9, 9),
        "",
        2 * 5 * 5 * 8 * 9,
    ),
    "dilated, 1 dimension": (nn.Conv1d(4, 6, 3, dilation=2), (2, 4, 10), "", 2 * 6 * 6 * 4 * 3),
    "3 dimensions": (nn.Conv3d(2, 3, 3), (2, 2, 5, 6, 7), "", 2 * 3 * 4 * 5 * 3 * 2 * 27),
    "transposed": (nn.ConvTranspose2d(8, 6, 3, 2, 1, 1), (2, 8, 5, 5), "", 2 * 5 * 5 * 8 * 6 * 9),
    "linear, rank 3": (nn.Linear(6, 4), (2, 5, 6), "", 2 * 5 * 6 * 4),
    "linear without bias": (nn.Linear(6, 4, bias=False), (2, 6), "", 2 * 6 * 4),
    "lstm": (
        nn.LSTM(6, 8, 2, bidirectional=True, proj_size=4),
        (5, 2, 6),
        "",
        10 * 2 * (32 * (6 + 4) + 32 + 32 * (8 + 4) + 32),
    ),
    "gru": (nn.GRU(6, 8, batch_first=True), (2, 5, 6), "", 10 * 24 * (6 + 8)),
    "rnn": (nn.RNN(6, 8), (5, 2, 6), "", 10 * 8 * (6 + 8)),
    "attention": (Attend(), (2, 2, 5, 8), "", 2 * 2 * 2 * 5 * 5 * 8),
    "multi-head": (Mha(), (5, 2, 16), "mha", 4 * 10 * 16 * 16 + 2 * 2 * 2 * 5 * 5 * 8),
}


def sheet_of(model, given, layer=""):
    found = estimation.estimate(model, given)
    assert found.problem is None
    output = next(module.output for module in found.modules if module.path == layer)
    sheet = build_layer_sheet(found.ops, layer, output)
    assert sheet is not None
    return sheet, found


def lines(sheet):
    return {line.quantity: line for section in sheet.sections for line in section.lines}


@pytest.mark.parametrize("name", KINDS)
def test_the_steps_end_at_the_value_by_hand_and_at_the_layers_row(name):
    model, given, layer, macs = KINDS[name]
    sheet, found = sheet_of(model, given, layer)
    assert lines(sheet)["in FLOP"].result == f"{2 * macs:,} FLOP"
    assert found.forward.macs == macs
    assert found.parameters == sum(values.numel() for values in model.parameters())
    assert sheet.facts is not None
    assert (sheet.facts.forward_macs_of_batch, sheet.facts.batch) == (macs, 2)
    assert diagnose_stated_value(macs, sheet.facts).mistakes == ()


@pytest.mark.parametrize("name", KINDS)
def test_the_view_has_every_result(name):
    model, given, layer, _ = KINDS[name]
    sheet, _ = sheet_of(model, given, layer)
    view = build_layer_calculation_view(
        build_layer_calculation_sheets("net", {1: sheet}, {}, ()), show_calculation=True
    )
    for section, table in zip(sheet.sections, view.tables, strict=True):
        assert section.title == table.caption
        assert [line.result for line in section.lines] == [row[-1].text for row in table.rows]


@pytest.mark.parametrize(
    ("name", "value", "slip"),
    [
        # neither the input nor the initial state needs a gradient
        ("rnn", 3 * 10 * 8 * (6 + 8) - 10 * 8 * 6 - 2 * 8 * 8, "forward and backward together"),
        ("multi-head", 4 * 10 * 16 * 16, "attention itself left out, projections alone"),
    ],
)
def test_a_slip_of_a_traced_layer_is_named_and_its_step_is_known(name, value, slip):
    """All slips of a kind and their multiply-adds: test_sheet_conv, _ways, _rnn and _products."""
    model, given, layer, _ = KINDS[name]
    sheet, _ = sheet_of(model, given, layer)
    assert sheet.facts is not None
    assert diagnose_stated_value(value, sheet.facts).mistakes == (slip,)


@pytest.mark.parametrize(
    ("model", "given"),
    [
        pytest.param(nn.Linear(192, 1000), (4, 32, 192), id="a Linear of sequences"),
        pytest.param(nn.Linear(6, 4, bias=False), (2, 6), id="a Linear without bias"),
        pytest.param(nn.Embedding(1000, 64), torch.zeros(4, 32, dtype=torch.long), id="a table"),
        pytest.param(nn.Conv2d(3, 16, 7), (2, 3, 32, 32), id="a convolution"),
        pytest.param(nn.LSTM(64, 96, 2, bidirectional=True), (5, 2, 64), id="an LSTM"),
        pytest.param(nn.BatchNorm2d(8), (2, 8, 6, 6), id="a norm with running sums"),
    ],
)
def test_parameters_are_those_of_the_module(model, given):
    sheet, _ = sheet_of(model, given)
    stated = parse_stated_value(
        f"{sum(values.numel() for values in model.parameters())} parameters"
    )
    assert diagnose_stated_value(stated, sheet.facts, sheet.quantities).is_correct
