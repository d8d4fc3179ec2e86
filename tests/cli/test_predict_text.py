"""perfctl predict --prompt, and tokens a second in training, from the command line's side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfctl.orchestrator.cli.main import run

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")
FILE = Path(__file__).parents[1] / "data" / "scripts" / "language_model.py"
ASKED = ["predict", f"{FILE}:plain", "--prompt", "6", "--generate", "5", "--device", "H100 SXM5"]


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_every_figure_has_its_range_its_basis_and_its_neighbour(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([*ASKED, "--engine", "tensorrt-llm", "--precision", "fp8"]) == 0
    out = said(capsys)
    for start in ("first token", "next token", "last token", "total"):
        assert f"{start} " in out
    assert out.count(" to ") >= 5
    assert "at context 7" in out, "the token after a prompt of 6 meets 7"
    assert "at context 10" in out, "the last of 5 tokens is the input of no step"
    assert "basis fitted to published measurements: 84 published figures of TensorRT-LLM" in out
    assert "closest H100 SXM5" in out
    assert "per million generated tokens" in out
    assert "billion weights in the layers" in out, "so small a model was not measured"


def test_json_has_spans_in_seconds_and_a_reason_for_each_null(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([*ASKED, "--batches", "1,4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["batch"] for one in found["batches"]] == [1, 4]
    for one in found["batches"]:
        for name in ("prefill", "decode_first_step", "decode_last_step"):
            span = one[name]["seconds"]
            assert span["low"] <= span["value"] <= span["high"]
        assert one["tokens_per_s"]["value"] == pytest.approx(
            5 * one["batch"] / one["total_s"]["value"]
        )
        assert one["coverage"] is None
        assert one["missing_values"]["coverage"]


def test_training_of_a_language_model_has_tokens_a_second(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = "hf:gpt2:class=GPT2LMHeadModel,n_layer=2,n_embd=64,n_head=2,vocab_size=500"
    asked = ["predict", model, "--mode", "train", "--seq", "24", "--batch", "8", "--device", "T4"]
    assert run([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    point = found["batches"][0]
    assert found["tokens_per_sample"] == 24
    for part in ("value", "low", "high"):
        assert point["tokens_per_s"][part] == pytest.approx(24 * point["samples_per_s"][part])
    assert (
        point["tokens_per_s"]["low"]
        < point["tokens_per_s"]["value"]
        < point["tokens_per_s"]["high"]
    )
    assert run(asked) == 0
    assert "tokens/s (24 per sample)" in said(capsys)


def test_images_have_no_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["predict", "mlp", "--batch", "4", "--device", "T4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["batches"][0]
    assert found["tokens_per_s"] is None
    assert found["missing_values"]["tokens_per_s"] == "a sample is not a sequence of tokens"
