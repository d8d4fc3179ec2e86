"""perfctl estimate --precision from the command line's side: mnist_cnn at batch 64, by hand."""

import pytest

from perfctl.orchestrator.report.numbers import format_si

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")

BATCH = 64
CONV = BATCH * (26 * 26 * 32 * 9 + 24 * 24 * 64 * 32 * 9)
FC1, FC2 = BATCH * 9216 * 128, BATCH * 128 * 10
MACS = CONV + FC1 + FC2
ESTIMATE = f"estimate mnist_cnn --batch {BATCH}"


@pytest.mark.parametrize(("option", "name"), [("", "fp32"), ("--precision fp16", "fp16")])
def test_the_json_has_the_types_and_fp32_is_the_default(perfctl, option, name):
    found = perfctl(f"{ESTIMATE} {option} --json").json["batches"][str(BATCH)]
    types = {row["type"]: row["forward_macs"] for row in found["types"] if row["forward_macs"]}
    assert (found["precision"], types) == (name, {name: MACS})
    assert (found["casts"]["calls"] > 0) is (name == "fp16")
    assert ("by type" in perfctl(f"{ESTIMATE} {option}").out) is (name == "fp16")


@pytest.mark.parametrize("size", [128 * 10 * 2, 129 * 10 * 4])
def test_a_hand_value_in_bytes_is_right_for_the_kept_and_for_the_cast_weights(perfctl, size):
    said = perfctl(f"{ESTIMATE} --precision bf16 --layer fc2 --check '{size} B'")
    assert f"{size:,} B is correct" in said.out


def test_fp8_names_the_linear_layers_that_it_does_not_take(perfctl):
    text = perfctl(f"{ESTIMATE} --precision fp8 --mode infer").out
    lines = [line.split() for line in text.splitlines() if line.startswith(("fp8 ", "bf16 "))]
    rows = {line[0]: " ".join(line[1:3]) for line in lines}
    assert rows == {"fp8": format_si(2 * FC1), "bf16": format_si(2 * (CONV + FC2))}
    assert "Linear, not in fp8: fc2: rows, inputs or outputs are not a multiple of 16" in text
    assert "fp8: assumed:" in text


def test_sheets_show_the_types(perfctl):
    network = perfctl(f"{ESTIMATE} --precision tf32 --sheet").out
    (row,) = (line.split() for line in network.splitlines() if line.startswith("conv2 "))
    assert row[:3] == ["conv2", "Conv2d", "tf32"]
    assert f"tf32: {2 * MACS:,} FLOP forward" in network
    layer = " ".join(perfctl(f"{ESTIMATE} --precision bf16 --sheet --layer fc2").out.split())
    assert f"forward in bf16 2 x MAC 2 x {FC2:,}" in layer
    values = f"{129 * 10:,} values x 4 B {129 * 10 * 4:,} B"
    assert f"parameters kept in fp32 besides the copies above {values}" in layer
