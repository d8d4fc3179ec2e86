"""MFU of a recorded training step: its model against the one of the same dimensions."""

from dataclasses import replace

import pytest

from perfctl.orchestrator.estimate.decoder import build_decoder_from_recorded_step
from perfctl.orchestrator.estimate.mfu import build_dense_decoder_from_dimensions
from perfctl.orchestrator.ledger.analysis import analyse_study
from perfctl.orchestrator.report.mfu import audit_fastest_training_step_mfu, build_mfu_view
from perfctl.records.paper import LayerCall, OpShape
from tests.make.synthetic import gpu_pair, study_of, with_report

BATCH, SEQ, LAYERS, HIDDEN, HEADS, FFN, VOCAB = 2, 32, 3, 48, 4, 100, 210
TOKENS = BATCH * SEQ
LOOKUP = OpShape(
    "wte", "Embedding", "aten.embedding", "forward", ((VOCAB, HIDDEN), (BATCH, SEQ)), ()
)


def product(layer, width, depth, *, owns=True):
    macs, parameters = TOKENS * width * depth, width * depth if owns else 0
    return [
        LayerCall(layer, "Linear", way, macs, 2 * macs, parameters, None, None, TOKENS * depth, "")
        for way in ("forward", "grad_input", "grad_weight")
    ]


def step(*, tied=False, recomputed=False):
    """All layers of a decoder whose feed-forward has two matrices."""
    calls = [LayerCall("wte", "Embedding", "forward", 0, 0, VOCAB * HIDDEN, None, None, 0, "")]
    macs = TOKENS * SEQ * 2 * HIDDEN
    for number in range(LAYERS):
        for name, width, depth in (("qkv", 1, 3), ("out", 1, 1)):
            calls += product(f"h.{number}.{name}", width * HIDDEN, depth * HIDDEN)
        calls += product(f"h.{number}.up", HIDDEN, FFN) + product(f"h.{number}.down", FFN, HIDDEN)
        attention = (f"h.{number}", "scaled_dot_product_attention")
        calls += [
            LayerCall(*attention, way, factor * macs, 0, 0, None, None, None, "")
            for way, factor in (("forward", 1), ("grad_input", 2))
        ]
    repeated = [
        call._replace(direction="recompute")
        for call in calls
        if recomputed and call.direction == "forward" and call.macs
    ]
    return (*calls, *repeated, *product("head", HIDDEN, VOCAB, owns=not tied))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("recomputed", "mode"), [(False, "none"), (True, "full")])
def test_a_recorded_step_has_the_terms_of_its_dimensions(tied, recomputed, mode):
    read = build_decoder_from_recorded_step(
        "model", step(tied=tied, recomputed=recomputed), [LOOKUP]
    )
    assert read is not None
    decoder, tokens, recompute = read
    model = build_dense_decoder_from_dimensions(
        layers=LAYERS, hidden=HIDDEN, heads=HEADS, ffn=FFN, vocab=VOCAB, seq=SEQ, tied=tied
    )
    assert (decoder.compute_exact_token_flops(), decoder.parameters) == (
        model.compute_exact_token_flops(),
        model.parameters,
    )
    assert (tokens, recompute) == (TOKENS, mode)


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param((), id="no layers"),
        pytest.param(
            [call for call in step() if call.direction != "grad_weight"], id="frozen weights"
        ),
        pytest.param(
            (*step(), *product("expert", HIDDEN, 9 * FFN)[1:]),
            id="a weight that not all tokens use",
        ),
    ],
)
def test_a_step_that_is_not_of_a_dense_decoder_gives_no_model(calls):
    assert build_decoder_from_recorded_step("model", calls, [LOOKUP]) is None


def test_the_chapter_has_the_tokens_of_a_step_over_its_time():
    runs = [
        replace(with_report(run, ops=[LOOKUP]), layer_calls=step()) for run in gpu_pair(1, BATCH)
    ]
    audit = audit_fastest_training_step_mfu(analyse_study(study_of(*runs)))
    assert audit is not None
    (point,) = analyse_study(study_of(*runs)).roofline.select_points_by_work_level("run")
    assert audit.tokens_per_second == TOKENS / (point.traffic.seconds or 0)
    title = build_mfu_view(audit).title
    assert title.startswith("MFU ") and " 0.0% " not in title, title
