"""Steps that no annotation names: phase and tokens from the shapes of operators, and nothing where they do not tell."""

from __future__ import annotations

from pathlib import Path

from perfctl.parsers.kineto import trace as kineto_trace
from perfctl.records.report import Report
from tests.parsers.kineto_trace import Event, annotation, kernel, launch, operation
from tests.parsers.served.served_traces import written

VOCABULARY, WIDTH, HEADS, SEQUENCES, PROMPT = 50, 16, 2, 3, 7


def shaped(name: str, at: int, *dims: list[int], number: int = 1) -> Event:
    one = operation(name, at, 5, number)
    one["args"] |= {"Input Dims": list(dims), "Input type": ["c10::BFloat16"] * len(dims)}
    return one


def forward(at: int, tokens: int, keys: int) -> list[Event]:
    """One pass of transformers over SEQUENCES: look-up, attention, a product; its kernel runs long after."""
    rows = SEQUENCES * tokens
    return [
        shaped("aten::embedding", at, [VOCABULARY, WIDTH], [SEQUENCES, tokens], number=at),
        shaped("aten::scaled_dot_product_attention", at + 10, [SEQUENCES, HEADS, tokens, 8], [SEQUENCES, HEADS, keys, 8]),
        shaped("aten::mm", at + 20, [rows, WIDTH], [WIDTH, WIDTH], number=at + 2),
        launch(at + 21, at), kernel("gemm", at + 5000, 5, at + 2, at),
    ]  # fmt: skip


def read(path: Path, *events: Event) -> Report:
    return kineto_trace.parse(written(path / "trace.json", *events))


def test_generation_of_transformers_is_a_prefill_and_decodes(tmp_path: Path) -> None:
    report = read(tmp_path, *forward(100, PROMPT, PROMPT), *forward(200, 1, PROMPT + 1), *forward(300, 1, PROMPT + 2))
    prefill, *decodes = report.served_steps
    assert (prefill.phase, prefill.prompts, prefill.prompt_tokens) == ("prefill", SEQUENCES, SEQUENCES * PROMPT)
    assert prefill.prompt_pairs == SEQUENCES * PROMPT * PROMPT
    assert [(step.phase, step.decodes, step.decode_tokens) for step in decodes] == [
        ("decode", SEQUENCES, SEQUENCES)
    ] * 2
    assert [step.decode_keys for step in decodes] == [SEQUENCES * (PROMPT + 1), SEQUENCES * (PROMPT + 2)]
    assert all(step.from_shapes for step in report.served_steps)
    assert [one.step for one in report.kernels] == [0, 1, 2], "a kernel is of the step that launched it"


def test_an_encoder_is_no_prefill(tmp_path: Path) -> None:
    assert not read(tmp_path, *forward(100, PROMPT, PROMPT), *forward(200, PROMPT, PROMPT)).served_steps


def test_a_named_step_is_not_inferred_again(tmp_path: Path) -> None:
    named = annotation("ProfilerStep#4", 50, 900)
    assert not read(tmp_path, named, *forward(100, PROMPT, PROMPT), *forward(200, 1, PROMPT + 1)).served_steps


def packed(rows: int, attention: str, grid_x: int) -> list[Event]:
    """One pass of nano-vLLM: all tokens in one dimension."""
    return [
        shaped("aten::embedding", 100, [VOCABULARY, WIDTH], [rows]), shaped("aten::mm", 120, [rows, WIDTH], [WIDTH, WIDTH], number=2),
        launch(121, 1), kernel("gemm", 400, 5, 2, 1), launch(130, 2), kernel(attention, 500, 5, None, 2, grid=[grid_x, 1, 4]),
    ]  # fmt: skip


def test_packed_rows_are_told_by_the_kernels_of_attention(tmp_path: Path) -> None:
    split = "flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128>>"
    (decode,) = read(tmp_path, *packed(5, split, 1)).served_steps
    assert (decode.phase, decode.decodes, decode.decode_keys) == ("decode", 5, None)
    (prefill,) = read(tmp_path, *packed(90, split, 2), operation("store_kvcache", 10, 1)).served_steps
    assert (prefill.phase, prefill.prompts, prefill.prompt_tokens) == ("prefill", None, 90)


def test_where_shapes_do_not_tell_a_gap_says_why(tmp_path: Path) -> None:
    report = read(tmp_path, *packed(5, "my_attention", 1), operation("store_kvcache", 10, 1))
    assert not report.served_steps
    (gap,) = [gap for gap in report.gaps if gap.quantity == "served_step"]
    assert "5 rows" in gap.reason
