"""MFU of models by name: their traced layers against their dimensions; and what is refused before
anything is traced."""

from __future__ import annotations

import json
from typing import Any

import pytest

import perfctl
from perfctl.orchestrator.commands.mfu import trace_decoder
from perfctl.orchestrator.counts.hardware.dense_peak import find_dense_peak
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.mfu import PARAMETERS, AttentionSizes

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")

LAYERS, HIDDEN, HEADS, KV, DEPTH, FFN, VOCAB = 4, 64, 4, 2, 24, 96, 160
"""heads x depth is not hidden, and heads of keys are fewer."""
ATTENTION = HIDDEN * DEPTH * (2 * HEADS + 2 * KV)
COMMON = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "head_dim": DEPTH,
    "intermediate_size": FFN,
    "vocab_size": VOCAB,
    "tie_word_embeddings": False,
}
SIZES: dict[str, Any] = {
    "layers": LAYERS,
    "hidden": HIDDEN,
    "heads": HEADS,
    "ffn": FFN,
    "vocab": VOCAB,
    "head_dim": DEPTH,
    "kv_heads": KV,
    "gated": True,
}


@pytest.fixture
def config(tmp_path):
    pytest.importorskip("transformers")
    return tmp_path / "config.json"


def write(config, kind, **more):
    config.write_text(json.dumps({"model_type": kind, **COMMON, **more}), encoding="utf-8")
    return str(config)


def test_a_traced_llama_has_the_terms_of_its_dimensions(config):
    by_name = perfctl.mfu(write(config, "llama"), tokens_per_second=1, device="A100", seq=512)
    by_hand = perfctl.mfu(**SIZES, tokens_per_second=1, device="A100", seq=512)
    model = by_name.model
    assert (model.products, model.head) == (LAYERS * (ATTENTION + 3 * HIDDEN * FFN), HIDDEN * VOCAB)
    assert model.attention == (AttentionSizes(2 * HEADS * DEPTH),) * LAYERS
    assert (model.others, model.unweighted, model.tied) == ((2 * LAYERS + 1) * HIDDEN, 0, False)
    assert model.kv_share == KV / HEADS
    assert by_name.exact.terms == by_hand.exact.terms
    for row in by_hand.rows:
        beyond = 6 * model.others if row.convention.counted == PARAMETERS else 0
        assert by_name.get_convention_row(row.convention.key).total == (row.total or 0) + beyond, (
            row.convention.key
        )


def test_a_traced_mixture_of_experts_has_its_router_and_idle_experts(config):
    experts, top, width = 8, 2, 48
    path = write(
        config,
        "qwen3_moe",
        num_experts=experts,
        num_experts_per_tok=top,
        moe_intermediate_size=width,
        decoder_sparse_step=1,
        mlp_only_layers=[],
    )
    model = trace_decoder(path, 256)
    assert model.router == LAYERS * HIDDEN * experts
    assert model.products == LAYERS * (ATTENTION + top * 3 * HIDDEN * width)
    assert model.idle == LAYERS * (experts - top) * 3 * HIDDEN * width
    assert model.others == (2 * LAYERS + 1) * HIDDEN + LAYERS * 2 * DEPTH, (
        "norms, of queries and keys too"
    )


def test_windows_come_from_the_config(config):
    kinds = ["sliding_attention", "full_attention"] * (LAYERS // 2)
    path = write(
        config,
        "gpt_oss",
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=128,
        layer_types=kinds,
    )
    model = trace_decoder(path, 512)
    assert [layer.window for layer in model.attention] == [128, None] * (LAYERS // 2)
    assert (
        model.compute_attention_flops_per_token("window")
        == 12 * HEADS * DEPTH * (128 + 512) * LAYERS // 2
    )
    assert trace_decoder(write(config, "mistral", sliding_window=64), 512).attention[0].window == 64


def test_a_tied_head_and_learned_positions_are_seen(config):
    positions = 128
    config.write_text(
        json.dumps(
            {
                "model_type": "gpt2",
                "n_layer": LAYERS,
                "n_embd": HIDDEN,
                "n_head": HEADS,
                "n_positions": positions,
                "vocab_size": VOCAB,
            }
        ),
        encoding="utf-8",
    )
    model = trace_decoder(str(config), 64)
    biases = LAYERS * (3 + 1 + 4 + 1) * HIDDEN
    assert model.tied
    assert model.positions == positions * HIDDEN
    assert model.others == biases + 2 * (2 * LAYERS + 1) * HIDDEN
    assert "class=" not in model.name and "GPT2LMHeadModel" in " ".join(model.notes)


def test_an_encoder_and_parameters_without_a_product_are_said(config):
    config.write_text(
        json.dumps(
            {
                "model_type": "bert",
                "hidden_size": HIDDEN,
                "num_hidden_layers": 1,
                "num_attention_heads": HEADS,
                "intermediate_size": FFN,
                "vocab_size": VOCAB,
                "max_position_embeddings": 128,
                "architectures": ["BertForMaskedLM"],
            }
        ),
        encoding="utf-8",
    )
    notes = trace_decoder(str(config), 64).notes
    assert any("no causal mask" in note for note in notes)
    assert any("are not in a matrix multiplication of a text token" in note for note in notes), (
        "biases of a model so small"
    )


def test_a_model_without_a_table_of_tokens_is_refused():
    with pytest.raises(UsageError, match="no token embedding"):
        perfctl.mfu("mlp:depth=2,width=8", tokens_per_second=1, device="A100")


@pytest.mark.parametrize(
    ("device", "peak", "said"),
    [
        (
            "H100",
            1979,
            "1,979 TFLOP/s is the sparse peak of H100 SXM5, twice its dense bf16 peak of 989.4",
        ),
        (None, 1979, "the sparse peak of H100 SXM5"),
        ("B200", 4500, "the sparse peak of B200"),
        ("H100", 3958, "sparse peak of H100 SXM5, in FP8, four times"),
        (None, 624, "the sparse peak of A100"),
        ("RTX A6000", 309.7, "309.7 TFLOP/s is the sparse peak of RTX A6000"),
        ("H800", 1979, "the sparse peak of H800 SXM5"),
    ],
)
def test_sparse_peaks_are_refused(device, peak, said):
    with pytest.raises(UsageError, match=said):
        find_dense_peak(device, "bf16", peak)


@pytest.mark.parametrize("peak", [275, 459, 918, 197, 123, 383, 989, 989.5, 1307, 2307])
def test_dense_peaks_of_other_accelerators_pass(peak):
    assert find_dense_peak(None, "bf16", peak)[0].flops == peak * 1e12


def test_an_mfu_of_152_percent_is_the_peak_of_an_a100_as_in_torchtitan_4779():
    """It printed about 152% for Llama 3 8B on MI350X, which it did not know, and 20.5% with the
    dense 2.3 PFLOP/s."""
    llama: dict[str, Any] = {
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 8,
        "ffn": 14336,
        "gated": True,
        "vocab": 128_256,
    }
    at_1000 = (
        perfctl.mfu(**llama, tokens_per_second=1000, device="MI350X", seq=8192)
        .get_convention_row("torchtitan")
        .mfu
    )
    assert at_1000 is not None
    audited = [
        perfctl.mfu(
            **llama,
            tokens_per_second=0.205 / at_1000 * 1000,
            device="MI350X",
            seq=8192,
            reported=printed,
        ).reported
        for printed in ("20.5", "152")
    ]
    right, wrong = (
        {} if one is None else {match.said: match.value for match in one.matches} for one in audited
    )
    assert "torchtitan" in right
    slip = "torchtitan over 312 TFLOP/s of the A100 (torchtitan on a device that it does not know)"
    assert wrong[slip] == pytest.approx(1.516, abs=0.001)
    assert not any(" over " not in said for said in wrong), (
        "no count of FLOPs explains more than 100%"
    )


def test_a_peak_beside_the_tables_is_said():
    found, notes = find_dense_peak("A100 SXM4 80 GB", "bf16", 250)
    assert found.flops == 250e12
    assert any("250.0 TFLOP/s as given; the table has 311.9" in note for note in notes)
    assert not find_dense_peak("A100 SXM4 80 GB", "bf16", 312)[1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tokens_per_second", 0),
        ("gpus", 0),
        ("seq", 0),
        ("formula", "7N"),
        ("recompute", "half"),
        ("recompute", 1.5),
        ("reported", "high"),
        ("reported", 0),
        ("precision", "int4"),
        ("device", "H1000"),
        ("peak_tflops", -1),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_by_field(field, value):
    good: dict[str, Any] = {"tokens_per_second": 1, "device": "A100"}
    with pytest.raises(UsageError, match=f"`{field}`"):
        perfctl.mfu(**{**SIZES, **good, field: value})


def test_dimensions_that_make_no_sense_are_refused():
    with pytest.raises(UsageError, match="`layers` must be above 0"):
        perfctl.mfu(**{**SIZES, "layers": 0}, tokens_per_second=1, device="A100")
    with pytest.raises(UsageError, match="not a multiple of `heads`"):
        perfctl.mfu(
            **{**SIZES, "hidden": 9, "heads": 2, "head_dim": None},
            tokens_per_second=1,
            device="A100",
        )


def test_more_than_the_device_can_do_is_refused_whole():
    with pytest.raises(
        perfctl.PerfctlError, match="MFU over 100% by the formula with the fewest FLOPs"
    ):
        perfctl.mfu(**SIZES, tokens_per_second=1e12, device="A100")


def test_an_encoder_decoder_is_refused(config):
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    name = write(config, "t5", **sizes, architectures=["T5ForConditionalGeneration"])
    with pytest.raises(
        perfctl.PerfctlError,
        match="is an encoder-decoder, and MFU formulas apply to decoder-only models",
    ):
        perfctl.mfu(name, tokens_per_second=1, device="A100", seq=16)
