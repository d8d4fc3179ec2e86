"""The worked sheet as text."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from perfctl.orchestrator.estimate import session as estimation
from perfctl.orchestrator.estimate.sheets.sheet import sheet_for
from perfctl.orchestrator.report.estimate import layer_view, sheet_output
from perfctl.orchestrator.report.files.documents import html, markdown

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")


def test_a_name_cannot_break_out_of_html_or_a_table() -> None:
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
