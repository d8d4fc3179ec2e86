"""What each convention counts, term by term, and what is refused."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfctl.orchestrator.estimate.mfu import (
    CAUSAL,
    CONVENTIONS,
    EXACT,
    VARIANTS,
    AttentionSizes,
    DecoderSizes,
    DevicePeak,
    audit_mfu,
    build_dense_decoder_from_dimensions,
    compute_recomputed_flops_per_token,
)

EVERY = (*CONVENTIONS, *VARIANTS, EXACT, CAUSAL)
FORMULAS = {one.key: one for one in EVERY}
MODEL = DecoderSizes(
    name="m",
    seq=10,
    products=1000,
    router=30,
    head=200,
    attention=(AttentionSizes(8, 4), AttentionSizes(8)),
    embedding=200,
    positions=50,
    tied=False,
    others=7,
    idle=600,
    hidden=3,
    kv_share=0.25,
)
PAIRS = 16


def terms(key, model=MODEL):
    found = FORMULAS[key].compute_token_flops_by_term(model)
    assert found is not None
    return {name: value for name, value in found.items() if value}


def test_the_conventions_count_what_their_sources_say():
    layers, head, table, others = 6 * (1000 + 30), 6 * 200, 6 * 200, 6 * 7
    whole, window = 6 * PAIRS * 10, 6 * (8 * 4 + 8 * 10)
    found = {one.key: sum(terms(one.key).values()) for one in CONVENTIONS}
    assert found == {
        "6N": layers + head + table + 6 * 50 + others,
        "palm": layers + head + table + 6 * 50 + others + whole,
        "megatron": 6 * 1000 + head + whole / 2,
        "nanogpt": layers + head + table + others + 6 * 600 + 12 * 2 * 3 * 10,
        "olmo": layers + head + 6 * 50 + others + window,
        "torchtitan": layers + head + others + window,
        "maxtext": layers + head + window / 2,
    }


def test_the_causal_count_is_what_the_mask_leaves_query_by_query():
    keys = sum(min(query, 4) for query in range(1, 11)), sum(range(1, 11))
    assert terms("exact, causal")["attention"] == pytest.approx(
        6 * (8 * keys[0] + 8 * keys[1]) / 10
    )
    assert terms("exact")["attention"] == 6 * PAIRS * 10


def test_a_tied_matrix_counts_once_as_the_head():
    tied = replace(MODEL, tied=True)
    assert "embedding" not in terms("6N", tied)
    assert terms("torchtitan", tied)["head"] == 6 * 200
    assert "head" not in terms("torchtitan, tied LM head left out", tied)
    assert tied.parameters == MODEL.parameters - 200


def sized():
    some = st.integers(0, 10**12)
    layers = st.lists(
        st.builds(AttentionSizes, st.integers(1, 10**5), st.none() | st.integers(1, 9000)),
        min_size=1,
        max_size=4,
    )
    return st.builds(
        DecoderSizes,
        name=st.just("m"),
        seq=st.integers(1, 10**5),
        products=st.integers(1, 10**12),
        router=some,
        head=some,
        attention=layers.map(tuple),
        embedding=some,
        positions=some,
        tied=st.booleans(),
        others=some,
        idle=some,
        hidden=st.integers(1, 10**5),
        kv_share=st.just(0.5),
    )


@settings(max_examples=60)
@given(model=sized())
def test_the_terms_of_a_difference_add_up_to_it(model):
    found = audit_mfu(model, 1e-30, 1, DevicePeak(1.0, ""))
    for row in (found.causal, *found.rows):
        difference = found.compute_excess_flops_over_exact(row)
        assert difference is not None
        total = row.total
        exact = found.exact.total
        assert total is not None
        assert exact is not None
        by, parts = difference
        assert by == pytest.approx(total - exact, abs=1e-9 * max(total, exact))
        assert sum(amount for _, amount in parts) == pytest.approx(by)


@pytest.mark.parametrize("one", EVERY, ids=lambda one: one.key)
def test_every_formula_names_its_source_and_no_term_that_has_no_name(one):
    assert one.source and one.formula and one.attention
    assert set(one.compute_token_flops_by_term(MODEL) or {}) <= {
        "weights",
        "router",
        "head",
        "attention",
        "unweighted",
        "embedding",
        "positions",
        "others",
        "idle",
    }


def test_recomputing_adds_a_forward_pass_of_what_runs_again():
    exact, palm = terms("exact"), terms("palm")
    attention = exact["attention"] / 3
    assert compute_recomputed_flops_per_token(EXACT, exact, "none") == 0
    assert compute_recomputed_flops_per_token(EXACT, exact, "selective") == attention
    assert (
        compute_recomputed_flops_per_token(EXACT, exact, "full") == 2 * (1000 + 30) + attention
    ), "not the LM head"
    parameters = sum(value for name, value in palm.items() if name != "attention")
    assert compute_recomputed_flops_per_token(FORMULAS["palm"], palm, 0.75) == pytest.approx(
        0.75 * parameters / 3 + attention
    ), "all parameters"


def throughput(mfu, devices=1, model=MODEL):
    """An audit whose exact count has this MFU."""
    peak = DevicePeak(1e6, "")
    return audit_mfu(
        model,
        mfu * peak.flops * devices / sum(model.compute_exact_token_flops().values()),
        devices,
        peak,
        recompute="full",
    )


def test_utilisations_over_100_percent_are_refused_with_a_cause():
    found = throughput(0.85)
    assert found.exact.mfu == pytest.approx(0.85)
    assert found.exact.hfu is None and "HFU" in (found.exact.reason or "")
    nanogpt = found.get_convention_row("nanogpt")
    assert nanogpt.mfu is None and "experts that a token does not use" in (nanogpt.reason or "")
    assert "5 or more" in (throughput(4.2).exact.reason or "")
    assert "FP8 doubles the peak" in (throughput(4.2, devices=8).exact.reason or "")


def test_scores_that_the_mask_leaves_out_are_named_as_the_cause():
    long = build_dense_decoder_from_dimensions(
        layers=2, hidden=64, heads=2, ffn=64, vocab=10, seq=100_000
    )
    assert "causal mask removes" in (throughput(1.5, model=long).exact.reason or "")
    windowed = replace(
        long, attention=tuple(replace(layer, window=128) for layer in long.attention)
    )
    assert "beyond the window" in (throughput(1.5, model=windowed).exact.reason or "")


def test_a_model_of_unknown_width_has_no_mfu_by_a_formula_that_asks_for_it():
    row = throughput(0.1, model=replace(MODEL, hidden=None)).get_convention_row("nanogpt")
    assert (row.terms, row.mfu) == (None, None)
    assert row.reason == "the hidden size of the model is unknown"
