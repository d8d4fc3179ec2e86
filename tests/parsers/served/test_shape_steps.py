"""Steps that no annotation names: phase and tokens from the shapes of operators, and nothing where
they do not tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.orchestrator.ledger.usage.served import placed
from perfctl.orchestrator.ledger.usage.training import passes
from perfctl.parsers.kineto import trace as kineto_trace
from perfctl.records.report import Report
from tests.make import synthetic
from tests.parsers.kineto_trace import Event, annotation, kernel, launch, module, operation
from tests.parsers.served.served_traces import written

VOCABULARY, WIDTH, HEADS, SEQUENCES, PROMPT = 50, 16, 2, 3, 7


def shaped(name: str, at: int, *dims: list[int], number: int = 1) -> Event:
    one = operation(name, at, 5, number)
    one["args"] |= {"Input Dims": list(dims), "Input type": ["c10::BFloat16"] * len(dims)}
    return one


def forward(at: int, tokens: int, keys: int) -> list[Event]:
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


def read(path: Path, *events: Event) -> Report:
    return kineto_trace.parse(written(path / "trace.json", *events))


def test_generation_of_transformers_is_a_prefill_and_decodes(tmp_path: Path) -> None:
    report = read(
        tmp_path,
        *forward(100, PROMPT, PROMPT),
        *forward(200, 1, PROMPT + 1),
        *forward(300, 1, PROMPT + 2),
    )
    prefill, *decodes = report.served_steps
    assert (prefill.phase, prefill.prompts, prefill.prompt_tokens) == (
        "prefill",
        SEQUENCES,
        SEQUENCES * PROMPT,
    )
    assert prefill.prompt_pairs == SEQUENCES * PROMPT * PROMPT
    assert [(step.phase, step.decodes, step.decode_tokens) for step in decodes] == [
        ("decode", SEQUENCES, SEQUENCES)
    ] * 2
    assert [step.decode_keys for step in decodes] == [
        SEQUENCES * (PROMPT + 1),
        SEQUENCES * (PROMPT + 2),
    ]
    assert all(step.from_shapes for step in report.served_steps)
    assert [one.step for one in report.kernels] == [0, 1, 2], (
        "a kernel is of the step that launched it"
    )


def test_an_encoder_is_no_prefill(tmp_path: Path) -> None:
    assert not read(
        tmp_path, *forward(100, PROMPT, PROMPT), *forward(200, PROMPT, PROMPT)
    ).served_steps


def test_a_named_step_is_not_inferred_again(tmp_path: Path) -> None:
    named = annotation("ProfilerStep#4", 50, 900)
    assert not read(
        tmp_path, named, *forward(100, PROMPT, PROMPT), *forward(200, 1, PROMPT + 1)
    ).served_steps


def packed(rows: int, attention: str, grid_x: int) -> list[Event]:
    """One pass of nano-vLLM: all tokens in one dimension."""
    return [
        shaped("aten::embedding", 100, [VOCABULARY, WIDTH], [rows]),
        shaped("aten::mm", 120, [rows, WIDTH], [WIDTH, WIDTH], number=2),
        launch(121, 1),
        kernel("gemm", 400, 5, 2, 1),
        launch(130, 2),
        kernel(attention, 500, 5, None, 2, grid=[grid_x, 1, 4]),
    ]


def test_packed_rows_are_told_by_the_kernels_of_attention(tmp_path: Path) -> None:
    split = "flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128>>"
    (decode,) = read(tmp_path, *packed(5, split, 1)).served_steps
    assert (decode.phase, decode.decodes, decode.decode_keys) == ("decode", 5, None)
    (prefill,) = read(
        tmp_path, *packed(90, split, 2), operation("store_kvcache", 10, 1)
    ).served_steps
    assert (prefill.phase, prefill.prompts, prefill.prompt_tokens) == ("prefill", None, 90)


def test_where_shapes_do_not_tell_a_gap_says_why(tmp_path: Path) -> None:
    report = read(tmp_path, *packed(5, "my_attention", 1), operation("store_kvcache", 10, 1))
    assert not report.served_steps
    (gap,) = [gap for gap in report.gaps if gap.quantity == "served_step"]
    assert "5 rows" in gap.reason


QUERY_HEADS, KEY_HEADS, DEPTH = 16, 8, 128
SPLIT = (
    f"void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<{DEPTH}, 64, 128, 4, false>, "
    "false>"
)


def attention_alone(rows: int, elsewhere: int = 0, *more: Event) -> list[Event]:
    """A decode in which operators show attention only; ``elsewhere``: sequences that its kernel
    does not attend to."""
    kept = rows - elsewhere
    return [
        shaped("aten::to", 100, [rows, KEY_HEADS, DEPTH], number=1),
        shaped("aten::index", 110, [rows, QUERY_HEADS, DEPTH], number=2),
        shaped("aten::unsqueeze", 120, [kept, QUERY_HEADS, DEPTH], number=3),
        *more,
        module("Attention_0", 90, 100),
        launch(130, 1),
        kernel(SPLIT, 500, 5, None, 1, grid=[1, 2, kept * KEY_HEADS]),
        shaped("aten::transpose", 150, [38, KEY_HEADS, DEPTH], number=4),
    ]


def test_without_products_the_tensors_of_queries_and_keys_before_attention_tell_the_tokens(
    tmp_path: Path,
) -> None:
    for rows, elsewhere in ((8, 0), (8, 2)):
        (decode,) = read(tmp_path, *attention_alone(rows, elsewhere)).served_steps
        assert (decode.phase, decode.decodes, decode.decode_tokens, decode.decode_keys) == (
            "decode",
            rows,
            rows,
            None,
        )
        assert decode.from_shapes and decode.partial


@pytest.mark.parametrize(
    "more",
    [
        [
            shaped("aten::to", 105, [9, KEY_HEADS, DEPTH], number=5),
            shaped("aten::to", 106, [9, QUERY_HEADS, DEPTH], number=6),
        ],
        [shaped("aten::to", 105, [8, 3, DEPTH], number=5)],
        [kernel(SPLIT, 600, 5, None, 7, grid=[1, 2, 7]), launch(140, 7)],
    ],
    ids=["two numbers of rows", "three numbers of heads", "a grid that fits no heads"],
)
def test_tensors_that_do_not_agree_tell_no_tokens(more: list[Event], tmp_path: Path) -> None:
    report = read(tmp_path, *attention_alone(8, 0, *more))
    assert not report.served_steps
    assert "tensors around attention" in next(
        gap.reason for gap in report.gaps if gap.quantity == "served_step"
    )


def test_a_step_whose_look_up_is_there_is_whole_and_one_without_may_be_a_part(
    tmp_path: Path,
) -> None:
    split = "flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128>>"
    (whole,) = read(tmp_path, *packed(5, split, 1)).served_steps
    (part,) = read(tmp_path, module("Block_0", 90, 100), *packed(5, split, 1)[1:]).served_steps
    assert (whole.partial, part.partial) == (False, True)
    assert whole.from_shapes and part.from_shapes
    assert part.decodes == whole.decodes == 5


def test_modules_of_attention_without_kernels_and_operators_are_named_as_the_reason(
    tmp_path: Path,
) -> None:
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
def test_every_public_trace_of_a_language_model_has_a_phase_and_tokens_or_a_reason(
    name: str, reports: Path
) -> None:
    phases, tokens, why, least = LLM[name]
    report = kineto_trace.parse(reports / "kineto" / "llm" / f"{name}.json.gz")
    assert [step.phase for step in report.served_steps] == phases
    found = [(step.prompt_tokens or 0) + (step.decode_tokens or 0) for step in report.served_steps]
    assert found == ([] if tokens is None else [tokens])
    reasons = [gap.reason for gap in report.gaps if gap.quantity == "served_step"]
    assert [why in reason for reason in reasons] == ([True] if why else [])
    share = placed(report)
    assert share is None if least is None else share is not None and share >= least


def test_a_public_trace_of_training_has_its_passes_and_their_tokens(reports: Path) -> None:
    """DeepSeek-V3: the trace's own name says seqlen4096; 4 layers, whose heads are 128."""
    report = kineto_trace.parse(
        reports / "kineto" / "llm" / "deepseek_v3_train_ep64_rank0.json.gz", single_operators=False
    )
    forward, inputs, weights = passes(
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
    assert inputs.queries is not None and inputs.queries.least <= 4096 == inputs.queries.most
    assert (
        weights.queries is None
        and not weights.collective_ns
        and min(forward.collective_ns, inputs.collective_ns) > 50e6
    )
