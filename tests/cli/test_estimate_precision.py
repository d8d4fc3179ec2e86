"""perfctl estimate --precision from the command line's side: mnist_cnn at batch 64, by hand."""

from __future__ import annotations

import json

import pytest

from perfctl.orchestrator.cli.main import run
from perfctl.orchestrator.report.numbers import si

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")

BATCH = 64
CONV = BATCH * (26 * 26 * 32 * 9 + 24 * 24 * 64 * 32 * 9)
FC1, FC2 = BATCH * 9216 * 128, BATCH * 128 * 10
MACS = CONV + FC1 + FC2


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(["estimate", "mnist_cnn", "--batch", str(BATCH), *words]) == 0
    return capsys.readouterr().out


def test_the_json_has_the_types_and_fp32_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    for words, name in (((), "fp32"), (("--precision", "fp16"), "fp16")):
        found = json.loads(said(capsys, *words, "--json"))["batches"][str(BATCH)]
        assert found["precision"] == name
        assert {
            row["type"]: row["forward_macs"] for row in found["types"] if row["forward_macs"]
        } == {name: MACS}
        assert (found["casts"]["calls"] > 0) is (name == "fp16")
    assert "by type" not in said(capsys)


def test_fp8_names_the_linear_layers_that_it_does_not_take(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = said(capsys, "--precision", "fp8", "--mode", "infer")
    rows = {
        line.split()[0]: " ".join(line.split()[1:3])
        for line in text.splitlines()
        if line.startswith(("fp8 ", "bf16 "))
    }
    assert rows == {"fp8": si(2 * FC1), "bf16": si(2 * (CONV + FC2))}
    assert "Linear, not in fp8: fc2: rows, inputs or outputs are not a multiple of 16" in text
    assert "fp8: assumed:" in text


def test_sheets_show_the_types(capsys: pytest.CaptureFixture[str]) -> None:
    network = said(capsys, "--precision", "tf32", "--sheet")
    (row,) = (line.split() for line in network.splitlines() if line.startswith("conv2 "))
    assert row[:3] == ["conv2", "Conv2d", "tf32"]
    assert f"tf32: {2 * MACS:,} FLOP forward" in network
    layer = said(capsys, "--precision", "bf16", "--sheet", "--layer", "fc2")
    assert f"forward in bf16           2 x MAC                   2 x {FC2:,}" in layer
    assert (
        f"parameters kept in fp32   besides the copies above  {129 * 10:,} values x 4 B  "
        f"{129 * 10 * 4:,} B" in layer
    )


def test_a_hand_value_in_bytes_is_right_for_the_kept_and_for_the_cast_weights(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for value in (f"{128 * 10 * 2} B", f"{129 * 10 * 4} B"):
        assert f"{int(value.split()[0]):,} B is correct" in said(
            capsys, "--precision", "bf16", "--layer", "fc2", "--check", value
        )
