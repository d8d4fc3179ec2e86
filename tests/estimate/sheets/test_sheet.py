"""The worked sheet, as data and as text."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from perfctl.orchestrator.estimate import session as estimation
from perfctl.orchestrator.estimate.sheets.layers import out_size
from perfctl.orchestrator.estimate.sheets.sheet import Sheet, sheet_for
from perfctl.orchestrator.report.estimate import layer_view, sheet_output
from perfctl.orchestrator.report.files.documents import html, markdown

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")


@pytest.fixture(scope="module")
def conv2() -> Sheet:
    found = estimation.Session(estimation.Request("mnist_cnn")).at(64)
    sheet = sheet_for(found.ops, "conv2")
    assert sheet is not None
    return sheet


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "dilation", "wanted"),
    [(26, 3, 1, 0, 1, 24), (224, 7, 2, 3, 1, 112), (10, 3, 1, 0, 2, 6), (2, 3, 1, 0, 1, 0)],
)
def test_the_output_size_follows_the_formula(
    size: int, kernel: int, stride: int, padding: int, dilation: int, wanted: int
) -> None:
    assert out_size(size, kernel, stride, padding, dilation) == wanted


def test_conv2_is_worked_line_by_line(conv2: Sheet) -> None:
    lines = {line.quantity: line for section in conv2.sections for line in section.lines}
    assert (lines["output P (height)"].numbers, lines["output P (height)"].result) == (
        "(26 - 3 + 2x0)/1 + 1",
        "24",
    )
    assert lines["for one output value"].result == f"{32 * 3 * 3} MAC"
    assert lines["one sample"].result == f"{64 * 24 * 24 * 288:,} MAC"
    assert lines["whole batch"].result == f"{64 * 64 * 24 * 24 * 288:,} MAC"
    assert lines["in FLOP"].result == "1,358,954,496 FLOP"
    assert lines["weights"].result == f"{18_432 * 4:,} B"
    assert lines["biases"].result == "256 B"
    assert lines["output map"].result == "9,437,184 B"


def test_a_name_cannot_break_out_of_html_or_a_table() -> None:
    from dataclasses import replace

    found = estimation.Session(estimation.Request("mnist_cnn")).at(1)
    sheet = sheet_for(found.ops, "fc1")
    assert sheet is not None
    sheet = replace(sheet, layer="<script>alert(1)</script>|x")
    view = layer_view(sheet_output("net", {1: sheet}, {}, ()), has_sheet=True)
    assert "<script>alert" not in html(view)
    assert "&#124;x" in markdown(view) and "<script>" not in markdown(view)
    HTMLParser().feed(html(view))


def test_a_layer_that_was_not_seen_has_no_sheet() -> None:
    assert sheet_for((), "conv9") is None


def test_a_layer_without_a_product_has_a_sheet_and_no_facts() -> None:
    found = estimation.Session(estimation.Request("mnist_cnn")).at(2)
    sheet = sheet_for(found.ops, "dropout1")
    assert sheet is not None
    assert sheet.facts is None
