"""Steps that no annotation names: phase and tokens from the shapes of operators, and nothing where
they do not tell."""

import pytest

from perfctl.orchestrator.ledger.usage.served import compute_kernel_time_share_with_layer
from perfctl.orchestrator.ledger.usage.training import list_ingested_training_pass_times
from perfctl.parsers.kineto import trace as kineto_trace
from perfctl.records.served_names import parse_graph_capture_name, parse_served_step_name
from perfctl.records.serving import ServedStep
from tests.make import synthetic
from tests.make.kineto import kernel, launch, module, operation, written

VOCABULARY, WIDTH, HEADS, SEQUENCES, PROMPT = 50, 16, 2, 3, 7


def shaped(name, at, *dims, number=1):
    one = operation(name, at, 5, number)
    one["args"] |= {"Input Dims": list(dims), "Input type": ["c10::BFloat16"] * len(dims)}
    return one


def forward(at, tokens, keys):
    """One pass of transformers over SEQUENCES: look-up, attention, a product; its kernel runs
    long after."""
    rows = SEQUENCES * tokens
    return [
        shaped("aten::embedding", at, [VOCABULARY, WIDTH], [SEQUENCES, tokens], number=at),
        shaped(
            "aten::scaled_dot_product_attention",
            at + 10,
            [SEQUENCES, HEADS, tokens, 8],
            [SEQUENCES, HEADS, keys, 8],
        ),
        shaped("aten::mm", at + 20, [rows, WIDTH], [WIDTH, WIDTH], number=at + 2),
        launch(at + 21, at),
        kernel("gemm", at + 5000, 5, at + 2, at),
    ]


def read(path, *events):
    return kineto_trace.parse(written(path / "trace.json", *events))


def test_modules_of_attention_without_kernels_and_operators_are_named_as_the_reason(tmp_path):
    report = read(tmp_path, module("Model_0", 90, 100), module("Attention_0", 100, 50))
    (gap,) = [gap for gap in report.gaps if gap.quantity == "served_step"]
    assert "neither kernels nor operators" in gap.reason and "Attention_0" in gap.reason
    assert not [
        gap
        for gap in read(tmp_path, module("Conv2d_0", 90, 100)).gaps
        if gap.quantity == "served_step"
    ]


LLM = {
    # trace: phases, tokens of its steps, words of the reason where there is none, least share of
    # the kernel time with a module
    "sglang_qwen3_decode/execution": (["decode"], 32, None, 0.99),
    "sglang_qwen3_prefilldecode": (["prefill"], 15_360, None, 0.99),
    "vllm_prefilldecode_piecewise/execution": (["mixed"], 8192, None, 0.99),
    "nanovllm_decode_gpu_10": (["decode"], 3, None, 1.0),
    "nanovllm_decode_gpu_130": (["decode"], 1, None, 1.0),
    "nanovllm_forward_10": (["decode"], 8, None, 1.0),
    "nanovllm_prefill": ([], None, "neither kernels nor operators", None),
    "deepseek_v3_train_ep64_rank0": ([], None, None, 1.0),
}


@pytest.mark.parametrize("name", LLM)
def test_every_public_trace_of_a_language_model_has_a_phase_and_tokens_or_a_reason(name, reports):
    phases, tokens, why, least = LLM[name]
    report = kineto_trace.parse(reports / "kineto" / "llm" / f"{name}.json.gz")
    assert [step.phase for step in report.served_steps] == phases
    found = [(step.prompt_tokens or 0) + (step.decode_tokens or 0) for step in report.served_steps]
    assert found == ([] if tokens is None else [tokens])
    reasons = [gap.reason for gap in report.gaps if gap.quantity == "served_step"]
    assert [why in reason for reason in reasons] == ([True] if why else [])
    share = compute_kernel_time_share_with_layer(report)
    assert share is None if least is None else share is not None and share >= least


def test_a_public_trace_of_training_has_its_passes_and_their_tokens(reports):
    """DeepSeek-V3: the trace's own name says seqlen4096; 4 layers, whose heads are 128."""
    report = kineto_trace.parse(
        reports / "kineto" / "llm" / "deepseek_v3_train_ep64_rank0.json.gz", single_operators=False
    )
    forward, inputs, weights = list_ingested_training_pass_times(
        synthetic.foreign_run(1, kernels=report.kernels, ranges=report.ranges, profiler="torch")
    )
    assert [one.direction for one in (forward, inputs, weights)] == [
        "forward",
        "grad_input",
        "grad_weight",
    ]
    assert forward.kernel_ns + inputs.kernel_ns + weights.kernel_ns == pytest.approx(244_041_000)
    assert forward.queries is not None and (
        forward.queries.calls,
        forward.queries.rows,
        forward.queries.heads,
    ) == (
        4,
        4096,
        128,
    )
    assert (
        inputs.queries is not None
        and inputs.queries.min_tokens <= 4096 == inputs.queries.max_tokens
    )
    assert (
        weights.queries is None
        and not weights.collective_ns
        and min(forward.collective_ns, inputs.collective_ns) > 50e6
    )


# Names of a server's steps: each form that a server writes, and names that only look like one


NO_SEQUENCES = (0, 0, None, None)


@pytest.mark.parametrize(
    ("name", "phase", "prompts", "decodes"),
    [
        # (sequences, tokens, keys, pairs)
        (
            "execute_context_2(2048)_generation_0(0)",
            "prefill",
            (2, 2048, None, None),
            NO_SEQUENCES,
        ),
        (
            "execute_context_1(888_788544)_generation_0(0)",
            "prefill",
            (1, 888, None, None),
            NO_SEQUENCES,
        ),
        ("execute_context_0(0)_generation_5(5)", "decode", NO_SEQUENCES, (5, 5, None, None)),
        (
            "execute_context_1(512)_generation_7(7)",
            "mixed",
            (1, 512, None, None),
            (7, 7, None, None),
        ),
        (
            (
                "execute_110_context_2(sq100sk140sqsq5000sqsk7000)"
                "_generation_10(sq10sk900sqsq10sqsk901)"
            ),
            "mixed",
            (2, 100, 140, 7000),
            (10, 10, 900, 901),
        ),
        ("step[DECODE bs=32]", "decode", NO_SEQUENCES, (32, 32, None, None)),
        ("step[EXTEND bs=15 toks=15360]", "prefill", (15, 15360, None, None), NO_SEQUENCES),
        ("step[TARGET_VERIFY bs=4 toks=20]", "decode", NO_SEQUENCES, (4, 20, None, None)),
        ("step[MIXED bs=9]", "mixed", (None,) * 4, (None,) * 4),
        # a sequence of TensorRT-LLM may have drafts, of which the name says nothing
        (
            "[Executor] _forward_step 7: 3 ctx reqs, 45 gen reqs",
            "mixed",
            (3, None, None, None),
            (45, None, None, None),
        ),
        (
            "[Executor] _forward_step 8: 0 ctx reqs, 0 ctx tokens, 4 gen reqs",
            "decode",
            NO_SEQUENCES,
            (4, None, None, None),
        ),
        (
            "_forward_step: 2 ctx reqs, 64 ctx tokens, 0 gen reqs",
            "prefill",
            (2, 64, None, None),
            NO_SEQUENCES,
        ),
    ],
)
def test_each_server_s_name_says_its_phase_sequences_and_tokens(name, phase, prompts, decodes):
    assert parse_served_step_name(name) == ServedStep(0, name, phase, *prompts, *decodes)


@pytest.mark.parametrize(
    "name",
    [
        "ProfilerStep#3",
        "step[IDLE bs=0]",
        "step[DECODE]",
        "execute_context_0(0)_generation_0(0)",
        "execute_query",
        "execute_context_1(2)_generation_3",
        "execute_context_1(2_)_generation_3(3)",
        "[Executor] _forward_step",
        "step[DECODE bs=32] again",
        "",
    ],
)
def test_idle_steps_and_other_names_are_no_steps(name):
    assert parse_served_step_name(name) is None


def test_the_range_of_a_capture_says_its_size_and_mode():
    assert parse_graph_capture_name("capture_8192_PIECEWISE") == (8192, "PIECEWISE")
    assert parse_graph_capture_name("capture_screen") is None
