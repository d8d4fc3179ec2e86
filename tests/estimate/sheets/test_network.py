"""One sheet for a whole network: every line by hand, the totals as sums, in four formats."""

import pytest

from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.estimate.session import estimate_model_for_batches
from perfctl.orchestrator.estimate.sheets.network import (
    NetworkLine,
    build_network_sheet,
)
from perfctl.orchestrator.report.files.documents import FORMS
from perfctl.orchestrator.report.sheets import NetworkSheets, build_network_calculation_view
from perfctl.records.paper import LayerCall, TracedModule

BATCH = 4
CONV1 = BATCH * 32 * 26 * 26 * 9
CONV2 = BATCH * 64 * 24 * 24 * 288
FC1, FC2 = BATCH * 9216 * 128, BATCH * 128 * 10


@pytest.fixture(scope="module")
def sheet():
    return estimate_model_for_batches(
        Request("mnist_cnn"), (BATCH,)
    ).build_network_sheets_by_batch()[BATCH]


def test_every_layer_has_a_line_with_its_hand_values(sheet):
    lines = {line.layer: line for line in sheet.lines}
    outputs = BATCH * 64 * 24 * 24
    assert lines["conv2"] == NetworkLine(
        "conv2",
        "Conv2d",
        (BATCH, 64, 24, 24),
        18_496,
        4 * 18_496,
        CONV2,
        2 * CONV2,
        4 * CONV2,
        outputs,
        4 * outputs,
    )
    assert lines["conv1"].backward_flops == 2 * CONV1, "its input needs no gradient"
    assert (lines["flatten"].flops, lines["flatten"].written_bytes) == (0, 0)
    assert [line.layer for line in sheet.lines][:4] == ["conv1", "relu1", "conv2", "relu2"]


def test_the_totals_are_the_sums(sheet):
    total = sheet.total
    assert (total.parameters, total.macs) == (1_199_882, CONV1 + CONV2 + FC1 + FC2)
    assert total.flops == 2 * (CONV1 + CONV2 + FC1 + FC2)
    assert total.backward_flops == 2 * (CONV1 + 2 * (CONV2 + FC1 + FC2))
    found = estimate_model_for_batches(Request("torchvision:resnet18"), (2,))
    estimate, whole = found.batches[2], found.build_network_sheets_by_batch()[2].total
    assert (whole.flops, whole.backward_flops) == (estimate.forward.flops, estimate.backward.flops)
    assert (whole.parameters, whole.elementwise_flops) == (
        11_689_512,
        estimate.forward.elementwise_flops,
    )


def document(form, model, sheet, problems=()):
    return FORMS[form](
        build_network_calculation_view(NetworkSheets(model, {BATCH: sheet}, problems))
    )


@pytest.mark.parametrize("form", FORMS)
def test_each_format_has_every_line_the_totals_and_the_conventions(sheet, form):
    text = document(form, "mnist_cnn", sheet)
    for said in (
        f"{CONV2:,}",
        f"{4 * CONV2:,}",
        "1,199,882",
        "1 multiply-add (MAC) is 2 FLOPs",
        "log",
        "4x64x24x24",
    ):
        assert said in text, said
    if form == "html":
        assert text.count("<tr") == len(sheet.lines) + 2, "the heads and the totals"
        assert text.count("<script") == 1, "that of the template"


HOSTILE = "<b>a_b & 100% $x$ {y} \\end #~^|*"


def made():
    """A layer that did not run, and one whose operation has no formula."""
    modules = (
        TracedModule("", "Net", 0, (2, 3), 0, 0, 0, True),
        TracedModule(HOSTILE, "Odd", 1, (2, 3), 5, 5, 20, True),
        TracedModule("unused", "Linear", 1, None, 6, 6, 24, False),
    )
    call = LayerCall(
        HOSTILE, "Odd", "forward", None, None, 5, 24, 24, 6, "no formula for my.op (1 call)"
    )
    known = LayerCall(HOSTILE, "add", "forward", 0, 0, 0, 24, 24, 6, "6 values", 6, 1, 1)
    return build_network_sheet(modules, (call, known))


def test_what_is_not_known_is_said_and_totals_are_at_least():
    sheet = made()
    odd, add, unused = sheet.lines
    assert (odd.macs, odd.flops, odd.elementwise_flops, odd.written_bytes) == (None, None, None, 24)
    assert (add.kind, add.macs, add.elementwise_flops) == ("add", 0, 6)
    assert (unused.parameters, unused.macs, unused.written_bytes) == (6, None, None)
    assert sheet.missing == (f"{HOSTILE}, forward: no formula for my.op (1 call)",)
    text = document("md", "net", sheet)
    assert text.count("unknown") == 3
    assert "| not called |" in text
    stopped = document("md", "net", sheet, ["odd: RuntimeError: no such operator"])
    assert "| forward stopped before it |" in stopped and "not called" not in stopped
    assert text.count("≥ ") == 3 and "≥ 48" not in text, "what was written is known"
    assert "backward FLOP" not in text, "there was none"


def test_names_cannot_be_taken_for_markup():
    assert "<b>" not in document("html", HOSTILE, made()).replace("<body>", "")
