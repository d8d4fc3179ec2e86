"""Prefill and decode of small models of our own: hand values, torch's counter on real steps, and
every step by itself."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.generation_steps import (
    estimate_generation,
    extract_layer_generation,
)
from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.estimate.session import estimate_model_for_batches
from perfctl.orchestrator.estimate.trace_cache import OFF
from perfctl.workloads.models import generation as models

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")
FILE = Path(__file__).parents[1] / "data" / "scripts" / "language_model.py"
WIDTH, HEADS, PAIRS, SIZE, INNER, WORDS, LAYERS = 32, 4, 2, 8, 48, 200, 3
EXPERTS, TOP, BATCH, PROMPT, STEPS = 6, 2, 2, 10, 7
PROJECTIONS = 2 * WIDTH * HEADS * SIZE + WIDTH * 2 * PAIRS * SIZE
DENSE = 2 * WIDTH * INNER


def estimated(name, **more):
    settings = {"prompt": PROMPT, "generate": STEPS} | more
    found = estimate_generation(Request(f"{FILE}:{name}", **settings), (BATCH,))[BATCH]
    assert found.problem is None
    return found


def built(name):
    spec = importlib.util.spec_from_file_location("language_model", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def attention(queries, keys):
    return BATCH * HEADS * queries * keys * 2 * SIZE


def test_prefill_and_decode_are_what_they_are_by_hand():
    found = estimated("plain")
    layer = PROJECTIONS + DENSE
    prefill = LAYERS * (BATCH * PROMPT * layer + attention(PROMPT, PROMPT)) + BATCH * WIDTH * WORDS
    assert found.get_phase("prefill").totals.macs == prefill, "logits of the last token only"

    def step(context):
        return BATCH * (LAYERS * layer + WIDTH * WORDS) + LAYERS * attention(1, context)

    assert found.get_phase("decode, first step").totals.macs == step(PROMPT + 1)
    assert found.get_phase("decode, last step").totals.macs == step(PROMPT + STEPS)
    decode = found.get_phase("decode")
    assert decode.totals.macs == sum(step(PROMPT + at) for at in range(1, STEPS + 1))
    assert decode.traced_steps == 3, "two ends of a line, and one step to check it"
    assert found.get_phase("total").totals.macs == prefill + decode.totals.macs
    assert decode.totals.flops == 2 * decode.totals.macs


def test_bytes_are_weights_once_a_step_and_the_cache_before_it():
    found = estimated("plain")
    token = LAYERS * 2 * PAIRS * SIZE * 4
    blocks = LAYERS * (PROJECTIONS + DENSE) + WIDTH * WORDS
    prefill, decode = found.get_phase("prefill"), found.get_phase("decode")
    assert prefill.sum_layer_field("weight_bytes") == 4 * (blocks + BATCH * PROMPT * WIDTH), (
        "of the embedding the rows of the tokens"
    )
    assert decode.sum_layer_field("weight_bytes") == STEPS * 4 * (blocks + BATCH * WIDTH)
    assert decode.sum_layer_field("cache_read_bytes") == BATCH * token * sum(
        range(PROMPT, PROMPT + STEPS)
    )
    assert prefill.sum_layer_field("cache_written_bytes") == BATCH * token * PROMPT
    assert decode.sum_layer_field("cache_written_bytes") == BATCH * token * STEPS
    assert found.cache is not None
    assert (found.cache.bytes_per_token, found.cache.bytes_at_end) == (
        token,
        BATCH * token * (PROMPT + STEPS),
    )
    first = found.get_phase("decode, first step")
    moved = 4 * (blocks + BATCH * WIDTH) + BATCH * token * (PROMPT + 1)
    assert first.flops_per_byte == first.totals.flops / moved


def test_of_a_table_no_more_is_read_than_it_has():
    found = estimated("plain", prompt=WORDS + 5, generate=0)
    words = next(row for row in found.get_phase("prefill").layers if row.layer == "words")
    assert words.weight_bytes == 4 * WORDS * WIDTH


@pytest.mark.parametrize("name", ["plain", "windowed", "wrapped", "Named"])
def test_every_real_step_counts_what_torch_counts(name):
    found, model = estimated(name), built(name)().eval()
    counts, cache = [], None
    with torch.no_grad(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for tokens in (PROMPT, *[1] * STEPS):
            with FlopCounterMode(display=False) as counter:
                _, cache = model(torch.zeros(BATCH, tokens, dtype=torch.int64), cache, 1)
            counts.append(counter.get_total_flops())
    assert found.get_phase("prefill").totals.flops == counts[0]
    assert found.get_phase("decode, first step").totals.flops == counts[1]
    assert found.get_phase("decode").totals.flops == sum(counts[1:])
    assert found.cache is not None
    held = getattr(cache, "layers", cache)
    assert found.cache.bytes_at_end == sum(one.numel() * 4 for pair in held or () for one in pair)


def test_a_window_limits_the_cache_and_the_work():
    found = estimated("windowed", prompt=3, generate=40)
    assert found.cache is not None
    each = BATCH * 2 * PAIRS * SIZE * 4
    assert found.cache.bytes_at_end == each * (43 + 2 * 7), (
        "of a window of 8 the last 7 are kept for the next token"
    )
    seen = sum(2 * min(context, 8) + context for context in range(4, 44))
    layer = BATCH * 40 * (LAYERS * (PROJECTIONS + DENSE) + WIDTH * WORDS)
    assert found.get_phase("decode").totals.macs == layer + attention(1, 1) * seen
    assert found.get_phase("decode").traced_steps < 12


def test_without_a_cache_each_step_runs_all_tokens_again():
    found = estimated("plain", kv_cache="none", generate=20)
    layer = PROJECTIONS + DENSE
    whole = sum(
        LAYERS * (BATCH * context * layer + attention(context, context)) + BATCH * WIDTH * WORDS
        for context in range(PROMPT + 1, PROMPT + 21)
    )
    decode = found.get_phase("decode")
    assert (decode.totals.macs, decode.traced_steps) == (whole, 4)
    assert found.cache is None
    assert decode.sum_layer_field("cache_read_bytes") == 0


@pytest.mark.parametrize(("kind", "size"), [("fp32", 4), ("bf16", 2), ("fp8", 1)])
def test_the_type_of_the_cache_changes_its_bytes_alone(kind, size):
    found, own = estimated("plain", kv_cache=kind), estimated("plain")
    assert found.cache is not None
    assert found.cache.bytes_per_token == LAYERS * 2 * PAIRS * SIZE * size
    for name in ("cache_read_bytes", "cache_written_bytes"):
        assert (
            found.get_phase("decode").sum_layer_field(name) * 4
            == own.get_phase("decode").sum_layer_field(name) * size
        )
    assert found.get_phase("decode").totals == own.get_phase("decode").totals
    assert found.get_phase("decode").sum_layer_field("weight_bytes") == own.get_phase(
        "decode"
    ).sum_layer_field("weight_bytes")


def test_experts_work_on_tokens_times_top_k_and_are_read_where_they_have_a_token():
    found = estimated("mixture")
    expert = WIDTH * WIDTH
    rows = {row.layer: row for row in found.get_phase("prefill").layers}
    steps = {row.layer: row for row in found.get_phase("decode, first step").layers}
    assert rows["blocks.0.mlp.experts"].macs == BATCH * PROMPT * TOP * expert
    assert rows["blocks.0.mlp.experts"].weight_bytes == 4 * EXPERTS * expert
    assert steps["blocks.0.mlp.experts"].macs == BATCH * TOP * expert
    assert steps["blocks.0.mlp.experts"].weight_bytes == 4 * BATCH * TOP * expert, (
        "4 tokens' choices of 6 experts"
    )
    assert found.active_parameters == found.parameters - LAYERS * (EXPERTS - TOP) * expert
    assert any(f"experts: {TOP} of {EXPERTS} in {LAYERS} layers" in note for note in found.notes)


def test_a_plain_pass_counts_experts_and_active_parameters_too():
    found = estimate_model_for_batches(Request(f"{FILE}:mixture", ("int64:9",)), (BATCH,)).batches[
        BATCH
    ]
    forward = sum(
        call.macs or 0
        for call in found.calls
        if call.layer == "blocks.1.mlp.experts" and call.direction == "forward"
    )
    assert forward == BATCH * 9 * TOP * WIDTH * WIDTH
    assert found.active_parameters == found.parameters - LAYERS * (EXPERTS - TOP) * WIDTH * WIDTH
    assert not found.forward.is_lower_bound, "each operation has a formula"
    assert found.data_dependent == (), "no index is a mask"
    gates = LAYERS * BATCH * 9 * WIDTH * EXPERTS
    assert found.backward.macs == 2 * (found.forward.macs - gates), (
        "gates choose only, so they have no gradient"
    )


def test_parts_of_a_model_add_up_to_it():
    found = estimated("plain")
    parts = [extract_layer_generation(found, path) for path in ("words", "blocks", "head")]
    for name in ("prefill", "decode"):
        assert (
            sum(part.get_phase(name).totals.macs for part in parts)
            == found.get_phase(name).totals.macs
        )
        assert sum(
            part.get_phase(name).sum_layer_field("bytes") for part in parts
        ) == found.get_phase(name).sum_layer_field("bytes")
    assert sum(part.parameters for part in parts) == found.parameters
    with pytest.raises(UsageError, match="layer 'tail' not found"):
        extract_layer_generation(found, "tail")


def test_a_step_that_fails_is_named_and_shows_no_figures():
    found = estimate_generation(Request(f"{FILE}:Breaks", prompt=4, generate=2), (1,))[1]
    assert found.problem is not None
    assert "one token at a time is not my style" in found.problem
    assert found.phases == ()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"prompt": 0}, "`prompt` must be at least 1"),
        ({"generate": -1}, "`generate` must not be negative"),
        ({"kv_cache": "fp7"}, "invalid value 'fp7' for `kv_cache`"),
        ({"seq": 4}, "`seq` and `prompt` exclude each other"),
        ({"prompt": None}, "`generate` needs `prompt`"),
        ({"optimizer": "adam"}, "`optimizer` and `prompt`"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(more, said):
    with pytest.raises(UsageError, match=said):
        estimate_generation(Request(f"{FILE}:plain", **({"prompt": 4, "generate": 2} | more)))


def test_a_model_that_keeps_nothing_is_refused():
    with pytest.raises(UsageError, match="NoCache does not return past_key_values"):
        estimate_generation(Request(f"{FILE}:NoCache", prompt=4, generate=2))
    with pytest.raises(
        UsageError,
        match="mnist_cnn: its forward accepts none of past_key_values, cache, cache_params",
    ):
        estimate_generation(Request("mnist_cnn", prompt=4))


def test_a_second_call_traces_nothing_and_says_the_same(tmp_path, monkeypatch):
    monkeypatch.delenv(OFF)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    request = Request("hf:gpt2:n_layer=2", prompt=8, generate=4)
    first = estimate_generation(request, (2,))

    def refuse(*_, **__):
        raise AssertionError("a model was built")

    monkeypatch.setattr(models, "build_text_generator", refuse)
    assert estimate_generation(request, (2,)) == first
    with pytest.raises(AssertionError, match="a model was built"):
        estimate_generation(request, (3,))
