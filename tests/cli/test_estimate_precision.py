"""perfctl estimate --precision from the command line's side: mnist_cnn at batch 64, by hand."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Perfctl

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")

BATCH = 64
CONV = BATCH * (26 * 26 * 32 * 9 + 24 * 24 * 64 * 32 * 9)
FC1, FC2 = BATCH * 9216 * 128, BATCH * 128 * 10
MACS = CONV + FC1 + FC2
ESTIMATE = f"estimate mnist_cnn --batch {BATCH}"


@pytest.mark.parametrize(("option", "name"), [("", "fp32"), ("--precision fp16", "fp16")])
def test_the_json_has_the_types_and_fp32_is_the_default(
    perfctl: Perfctl, option: str, name: str
) -> None:
    found = perfctl(f"{ESTIMATE} {option} --json").json["batches"][str(BATCH)]
    types = {row["type"]: row["forward_macs"] for row in found["types"] if row["forward_macs"]}
    assert (found["precision"], types) == (name, {name: MACS})
    assert (found["casts"]["calls"] > 0) is (name == "fp16")
    assert ("by type" in perfctl(f"{ESTIMATE} {option}").out) is (name == "fp16")


@pytest.mark.parametrize("size", [128 * 10 * 2, 129 * 10 * 4])
def test_a_hand_value_in_bytes_is_right_for_the_kept_and_for_the_cast_weights(
    perfctl: Perfctl, size: int
) -> None:
    said = perfctl(f"{ESTIMATE} --precision bf16 --layer fc2 --check '{size} B'")
    assert f"{size:,} B is correct" in said.out
