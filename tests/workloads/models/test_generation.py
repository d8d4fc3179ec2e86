"""Generation of models of transformers, from configs: hand values, torch's counter on real steps,
published figures."""

import inspect
from importlib.util import find_spec

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from perfctl.orchestrator.estimate.generation_steps import estimate_generation
from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.estimate.session import estimate_model_for_batches
from perfctl.workloads.models import generation, libraries
from perfctl.workloads.tracing.generation import iterate_cache_tensors

pytestmark = [
    pytest.mark.skipif(find_spec("transformers") is None, reason="perfctl[hf]"),
    pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning"),
]
BATCH, PROMPT, STEPS = 2, 10, 5
SMALL = (
    "hidden_size=64,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2,"
    "intermediate_size=96,vocab_size=100"
)
LATENT = (
    "hidden_size=64,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=4,"
    "intermediate_size=96,vocab_size=100,n_routed_experts=8,num_experts_per_tok=2,"
    "moe_intermediate_size=32,first_k_dense_replace=1,q_lora_rank=24,kv_lora_rank=16,"
    "qk_rope_head_dim=8,qk_nope_head_dim=16,v_head_dim=12,n_group=2,topk_group=1"
)
CAUSAL = {
    "llama": SMALL,
    "gpt2": "n_embd=64,n_layer=2,n_head=4,vocab_size=100",
    "mistral": f"{SMALL},sliding_window=12",
    "mixtral": f"{SMALL},num_local_experts=4",
    "gpt_oss": f"{SMALL},head_dim=16,num_local_experts=4,num_experts_per_tok=2,sliding_window=12",
    "deepseek_v3": LATENT,
}


def estimated(name, batch=BATCH, **more):
    found = estimate_generation(
        Request(name, **({"prompt": PROMPT, "generate": STEPS} | more)), (batch,)
    )[batch]
    assert found.problem is None
    return found


def macs(found, name):
    assert not found.get_phase(name).totals.is_lower_bound
    return found.get_phase(name).totals.macs


@pytest.mark.parametrize("kind", CAUSAL)
def test_every_real_step_counts_what_torch_counts(kind):
    found = estimated(f"hf:{kind}:{CAUSAL[kind]}")
    import transformers

    config = transformers.CONFIG_MAPPING[kind].from_dict(
        libraries.split_name_and_settings(f"{kind}:{CAUSAL[kind]}")[1]
    )
    made = transformers.AutoModelForCausalLM._model_mapping[type(config)]
    experts = {"experts_implementation": "eager"} if found.active_parameters else {}
    model = made._from_config(
        config, attn_implementation="eager", **experts
    ).eval()  # real routing, a loop over experts
    counts, cache = [], None
    word = next(
        word for word in generation.CACHES if word in inspect.signature(made.forward).parameters
    )
    with torch.no_grad():
        for tokens in (PROMPT, *[1] * STEPS):
            ids = torch.randint(
                0, 100, (BATCH, tokens), generator=torch.Generator().manual_seed(tokens)
            )
            with FlopCounterMode(display=False) as counter:
                cache = getattr(model(ids, use_cache=True, logits_to_keep=1, **{word: cache}), word)
            counts.append(counter.get_total_flops())
    assert 2 * macs(found, "prefill") == counts[0]
    assert 2 * macs(found, "decode, first step") == counts[1]
    assert 2 * macs(found, "decode, last step") == counts[-1]
    assert 2 * macs(found, "decode") == sum(counts[1:])
    assert found.cache is not None
    assert found.cache.bytes_at_end == sum(
        tensor.numel() * tensor.element_size() for _, tensor in iterate_cache_tensors(cache)
    )


def test_latent_attention_names_both_caches():
    found = estimated(f"hf:deepseek_v3:{LATENT}", kv_cache="bf16")
    assert found.cache is not None
    assert found.cache.latent == (16 + 8, 4 * (16 + 8 + 12))
    assert found.cache.bytes_per_token in (2 * 24 * 2, 2 * 4 * 36 * 2), (
        "compressed or not, by the version of transformers"
    )


def test_an_encoder_runs_once_and_its_keys_are_kept():
    name = (
        "hf:t5:d_model=32,d_kv=8,d_ff=64,num_layers=1,num_decoder_layers=1,num_heads=4,"
        "vocab_size=50"
    )
    found = estimated(name)
    projections, network = 4 * 32 * 32, 2 * 32 * 64
    encoder = PROMPT * (projections + network) + PROMPT * PROMPT * 2 * 32
    own, cross = projections + network, 2 * 32 * 32
    head = 32 * 50
    keys = PROMPT * 2 * 32 * 32
    assert macs(found, "prefill") == BATCH * (
        encoder + own + 2 * 32 + cross + keys + PROMPT * 2 * 32 + head
    )
    assert macs(found, "decode, first step") == BATCH * (
        own + 2 * 2 * 32 + cross + PROMPT * 2 * 32 + head
    )
    assert found.cache is not None
    assert (found.cache.bytes_per_token, found.cache.fixed_bytes) == (
        2 * 32 * 4,
        2 * PROMPT * 32 * 4,
    )
    assert found.cache.bytes_at_end == BATCH * 2 * 32 * 4 * (1 + STEPS + PROMPT)


def test_a_plain_pass_of_experts_counts_tokens_times_top_k():
    found = estimate_model_for_batches(
        Request(f"hf:mixtral:{SMALL},num_local_experts=4", mode="infer", seq=16)
    ).batches[1]
    layer = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 64 * 4 + 2 * 3 * 64 * 96
    assert found.problem is None
    assert found.forward.macs == 2 * (16 * layer + 4 * 16 * 16 * 32)
    assert not found.forward.is_lower_bound
    assert found.data_dependent == ()
    assert found.active_parameters == found.parameters - 2 * 2 * 3 * 64 * 96


LLAMA3 = (
    "hf:llama:hidden_size=4096,num_hidden_layers=32,num_attention_heads=32,num_key_value_heads=8,"
    "intermediate_size=14336,vocab_size=128256"
)


@pytest.mark.parametrize(
    ("name", "token", "billions", "active"),
    [
        ("hf:llama", 524_288, 6.74, None),
        (LLAMA3, 131_072, 8.03, None),
        ("hf:mixtral", 131_072, 46.7, 12.9),
    ],
)
def test_published_figures_of_whole_models(name, token, billions, active):
    """Llama 2 7B, Llama 3 8B, Mixtral 8x7B: 2 B a value; sizes from their model cards."""
    found = estimated(name, 1, prompt=2, generate=0, kv_cache="fp16")
    assert found.cache is not None
    assert found.cache.bytes_per_token == token
    assert found.parameters / 1e9 == pytest.approx(billions, abs=0.05)
    if active is not None:
        assert found.active_parameters is not None
        assert found.active_parameters / 1e9 == pytest.approx(active, abs=0.05)
