"""perfctl predict --prompt, and tokens a second in training, from the command line's side."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")
FILE = Path(__file__).parents[1] / "data" / "scripts" / "language_model.py"
PREDICT = f"predict {FILE}:plain --prompt 6 --generate 5 --device 'H100 SXM5'"


def test_json_has_spans_in_seconds_and_a_reason_for_each_null(perfctl):
    found = perfctl(f"{PREDICT} --batches 1,4 --json").json["batches"]
    assert [one["batch"] for one in found] == [1, 4]
    for one in found:
        for name in ("prefill", "decode_first_step", "decode_last_step"):
            span = one[name]["seconds"]
            assert span["low"] <= span["value"] <= span["high"]
        tokens = 5 * one["batch"]
        assert one["tokens_per_s"]["value"] == pytest.approx(tokens / one["total_s"]["value"])
        assert one["coverage"] is None and one["missing_values"]["coverage"]


def test_training_of_a_language_model_has_tokens_a_second(perfctl):
    model = "hf:gpt2:class=GPT2LMHeadModel,n_layer=2,n_embd=64,n_head=2,vocab_size=500"
    typed = f"predict {model} --mode train --seq 24 --batch 8 --device T4"
    found = perfctl(f"{typed} --json").json
    tokens, samples = (found["batches"][0][f"{what}_per_s"] for what in ("tokens", "samples"))
    assert found["tokens_per_sample"] == 24
    assert tokens == pytest.approx({part: 24 * value for part, value in samples.items()})
    assert tokens["low"] < tokens["value"] < tokens["high"]
    assert "tokens/s (24 per sample)" in " ".join(perfctl(typed).out.split())


def test_images_have_no_tokens(perfctl):
    (found,) = perfctl("predict mlp --batch 4 --device T4 --json").json["batches"]
    assert found["tokens_per_s"] is None
    assert found["missing_values"]["tokens_per_s"] == "a sample is not a sequence of tokens"


def test_every_figure_has_its_range_its_basis_and_its_neighbour(perfctl):
    said = perfctl(f"{PREDICT} --engine tensorrt-llm --precision fp8").ok()
    out = " ".join(said.out.split())
    assert out.count(" to ") >= 5
    for part in (
        *("first token ", "next token ", "last token ", "total "),
        "at context 7",  # the token after a prompt of 6 meets 7
        "at context 10",  # the last of 5 tokens is the input of no step
        "basis fitted to published measurements: 84 published figures of TensorRT-LLM",
        *("closest H100 SXM5", "per million generated tokens"),
        "billion weights in the layers",  # so small a model was not measured
    ):
        assert part in out, part
