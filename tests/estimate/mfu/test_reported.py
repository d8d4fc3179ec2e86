"""Published figures, and the convention or mistake that explains them: known issues of torchtitan,
OLMo-core and MaxText."""

import pytest

from perfctl.orchestrator.estimate.mfu import (
    CONVENTIONS,
    VARIANTS,
    DevicePeak,
    audit_mfu,
)
from tests.make.decoders import GPT_OSS, LLAMA3_8B, QWEN3_MOE, gated

A100, H100 = (
    DevicePeak(312e12, "A100"),
    DevicePeak(989.4e12, "H100", (("the sparse peak, twice the dense one", 2 * 989.4e12),)),
)


def explained(model, tokens_per_second, percent, peak, devices=1):
    """``percent``: within 0.1%, as published with one digit more than that."""
    found = audit_mfu(
        model, tokens_per_second, devices, peak, reported=(percent / 100, percent / 1e5)
    ).reported
    assert found is not None
    return found.matches


@pytest.mark.parametrize(
    ("one", "tokens_per_second", "percent"),
    [
        (LLAMA3_8B, 2904, 56.8),
        (LLAMA3_8B, 2973, 58.2),
        (gated(80, 8192, 28672, 64, 8, 128_256, 8192), 331, 51.7),
        (gated(40, 5120, 13824, 40, 40, 32_000, 4096), 2162, 61.1),
        (gated(80, 8192, 28672, 64, 8, 32_000, 4096), 355, 50.8),
    ],
    ids=["8B", "8B selective op", "70B", "Llama 2 13B", "Llama 2 70B"],
)
def test_torchtitans_page_of_2024_counted_the_token_embedding(one, tokens_per_second, percent):
    first, *others = explained(one, tokens_per_second, percent, A100)
    assert first.said == "palm" and "torchtitan before pull request 280" in first.source
    assert "torchtitan" not in {match.said for match in others}


def mfu_with(one, attention, tokens_per_second=6000, idle=False):
    """Percent by torchtitan's convention on the H100 with another attention term (multiply-adds of
    one token, forward)."""
    weights = (
        one.products
        + one.router
        + one.head
        + one.others
        + (one.idle + one.embedding if idle else 0)
    )
    return 100 * 6 * (weights + attention) * tokens_per_second / H100.flops


def test_one_of_two_attention_products_as_in_torchtitan_4366():
    half = (LLAMA3_8B.compute_attention_flops_per_token("sequence") or 0) / 12
    said = [one.said for one in explained(LLAMA3_8B, 6000, mfu_with(LLAMA3_8B, half), H100)]
    assert "torchtitan, one of two attention products" in said
    assert {"megatron", "maxtext"} <= set(said), (
        "the causal half is the same number, and that is said"
    )


def test_the_formula_that_torchtitan_4366_replaced_has_half_of_both_products_for_flux_dev():
    """Inline in its flux models: 6 x hidden x tokens for each of 19 double and 38 single blocks of
    3,072 in 24 heads."""
    hidden, double, single, tokens = 3072, 19, 38, 4096 + 512
    flux = gated(double + single, hidden, 4 * hidden, 24, 24, 1, tokens)
    inline = 6 * hidden * tokens * single + 6 * hidden * tokens * double
    half = next(
        one for one in VARIANTS if one.key == "torchtitan, one of two attention products"
    ).compute_token_flops_by_term(flux)
    whole = next(one for one in CONVENTIONS if one.key == "torchtitan").compute_token_flops_by_term(
        flux
    )
    assert half is not None and half["attention"] == inline == 4_841_275_392
    assert whole is not None and whole["attention"] == 2 * inline


def test_a_head_depth_of_hidden_by_heads_as_in_torchtitan_1920():
    qwen3_4b = gated(36, 2560, 9728, 32, 8, 151_936, 8192, head_dim=128)
    wrong = mfu_with(qwen3_4b, 36 * 2 * 2560 * 8192)
    first, *_ = explained(qwen3_4b, 6000, wrong, H100)
    assert first.said == "torchtitan, heads hidden / heads deep"


def test_all_experts_counted_as_in_torchtitans_transformers_backend():
    """Pull request 4300 prints 192,856,412,160 FLOPs for a token in place of 37,578,559,488."""
    tokens_per_second = 2000
    wrong = 100 * 192_856_412_160 * tokens_per_second / H100.flops
    assert wrong == pytest.approx(
        mfu_with(QWEN3_MOE, 48 * 2 * 2048 * 8192, tokens_per_second, idle=True), rel=1e-12
    )
    said = [one.said for one in explained(QWEN3_MOE, tokens_per_second, wrong, H100)]
    assert said[0] == "nanogpt", "the same number: it counts all parameters, too"


def test_ignored_windows_as_in_torchtitan_4300_and_olmo_core_475():
    """4300 prints 26,481,681,792 FLOPs for a token in place of 24,141,260,160."""
    wrong = 100 * 26_481_681_792 * 9000 / H100.flops
    said = [one.said for one in explained(GPT_OSS, 9000, wrong, H100)]
    assert {"torchtitan, window ignored", "olmo, window ignored"} <= set(said)
    assert not {"torchtitan", "olmo"} & set(said)


def test_heads_of_keys_in_place_of_queries_as_olmo_core_478_proposed():
    keys = (
        sum(layer.per_pair * min(4096, layer.window or 4096) for layer in GPT_OSS.attention)
        * 8
        / 64
    )
    first, *_ = explained(GPT_OSS, 9000, mfu_with(GPT_OSS, keys, 9000), H100)
    assert first.said == "olmo, heads of keys in place of queries" and "not merged" in first.source


def test_a_tied_head_that_was_subtracted_as_before_torchtitan_3225():
    tied = gated(28, 1024, 3072, 16, 8, 151_936, 8192, head_dim=128, tied=True)
    wrong = (
        mfu_with(tied, (tied.compute_attention_flops_per_token("sequence") or 0) / 6)
        - 100 * 6 * tied.head * 6000 / H100.flops
    )
    said = [one.said for one in explained(tied, 6000, wrong, H100)]
    assert "olmo" in said, (
        "OLMo-core subtracts the table of tokens always; its own models do not tie it"
    )


def test_half_the_mfu_is_the_sparse_peak_and_many_times_it_the_number_of_devices():
    right = mfu_with(LLAMA3_8B, (LLAMA3_8B.compute_attention_flops_per_token("sequence") or 0) / 6)
    assert "torchtitan" in [one.said for one in explained(LLAMA3_8B, 6000, right, H100)]
    assert "torchtitan over the sparse peak, twice the dense one" in [
        one.said for one in explained(LLAMA3_8B, 6000, right / 2, H100)
    ]
    said = [one.said for one in explained(LLAMA3_8B, 8 * 6000, 8 * right, H100, devices=8)]
    assert "torchtitan, tokens/s of 8 devices over the peak of one" in said


def test_an_hfu_that_is_called_mfu_is_found():
    exact = LLAMA3_8B.compute_exact_token_flops()
    hfu = (
        100
        * (sum(exact.values()) + exact["weights"] / 3 + exact["attention"] / 3)
        * 6000
        / H100.flops
    )
    assert "exact with full recomputing: HFU, not MFU" in [
        one.said for one in explained(LLAMA3_8B, 6000, hfu, H100)
    ]


def test_what_nothing_explains_is_said_with_the_nearest():
    found = audit_mfu(LLAMA3_8B, 6000, 1, H100, reported=(0.011, 0.00001)).reported
    assert found is not None
    assert found.matches == ()
    assert found.nearest.value > 0
