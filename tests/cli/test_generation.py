"""perfctl estimate --prompt from the command line's side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfctl.orchestrator.cli.main import run

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")
FILE = Path(__file__).parents[1] / "data" / "scripts" / "language_model.py"
ASKED = ["estimate", f"{FILE}:mixture", "--prompt", "6", "--generate", "5"]


def test_json_has_every_layer_of_each_phase(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ASKED, "--batches", "1,2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["batches"]
    for one in found.values():
        for phase in one["phases"]:
            assert phase["flops"] == sum(layer["flops"] for layer in phase["layers"])
            assert phase["bytes"] == sum(
                layer[name]
                for layer in phase["layers"]
                for name in ("weight_bytes", "cache_read_bytes", "cache_written_bytes")
            )
    assert found["2"]["kv_cache"]["bytes_at_end"] == 2 * found["1"]["kv_cache"]["bytes_at_end"]
    assert found["1"]["kv_cache"]["bytes_per_token"] * 11 == found["1"]["kv_cache"]["bytes_at_end"]


def test_layers_are_shown_on_request_and_a_part_of_the_model_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([*ASKED, "--all"]) == 0
    assert capsys.readouterr().out.count("blocks.2.attention.kv") == 2, "once a phase"
    assert run([*ASKED, "--layer", "blocks.1"]) == 0
    part = capsys.readouterr().out
    assert "blocks.1.attention.kv" in part
    assert "blocks.2" not in part
    assert "a token and sequence" not in part, "the cache is the model's, not the part's"


@pytest.mark.parametrize(
    ("form", "piece"),
    [
        ("md", "## Decode, by layer"),
        ("tex", "\\end{longtable}"),
        ("html", "<figcaption>Decode, by layer"),
    ],
)
def test_the_sheet_comes_in_every_format(
    form: str, piece: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*ASKED, "--sheet", "--format", form]) == 0
    out = capsys.readouterr().out
    assert piece in out
    assert "blocks.0.mlp.experts" in out.replace("\\_", "_")
    assert "total" in out


def test_a_model_that_is_cast_whole_reads_half_the_bytes_and_does_the_same_work(
    capsys: pytest.CaptureFixture[str],
) -> None:
    totals = []
    for precision in ("fp32", "bf16-true"):
        assert run([*ASKED, "--precision", precision, "--json"]) == 0
        (batch,) = json.loads(capsys.readouterr().out)["batches"].values()
        totals.append(next(phase for phase in batch["phases"] if phase["name"] == "total"))
    whole, cast = totals
    assert cast["macs"] == whole["macs"]
    for name in ("weight_bytes", "cache_read_bytes", "cache_written_bytes"):
        assert cast[name] == whole[name] / 2 > 0
