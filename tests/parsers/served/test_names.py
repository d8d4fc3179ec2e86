"""Names of a server's steps: each form that a server writes, and names that only look like one."""

from __future__ import annotations

import pytest

from perfctl.records.served_names import read_capture, read_served
from perfctl.records.serving import ServedStep


@pytest.mark.parametrize(
    ("name", "phase", "prompts", "decodes"),
    [
        # (sequences, tokens, keys, pairs)
        (
            "execute_context_2(2048)_generation_0(0)",
            "prefill",
            (2, 2048, None, None),
            (0, 0, None, None),
        ),
        (
            "execute_context_1(888_788544)_generation_0(0)",
            "prefill",
            (1, 888, None, None),
            (0, 0, None, None),
        ),
        ("execute_context_0(0)_generation_5(5)", "decode", (0, 0, None, None), (5, 5, None, None)),
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
        ("step[DECODE bs=32]", "decode", (0, 0, None, None), (32, 32, None, None)),
        ("step[EXTEND bs=15 toks=15360]", "prefill", (15, 15360, None, None), (0, 0, None, None)),
        ("step[TARGET_VERIFY bs=4 toks=20]", "decode", (0, 0, None, None), (4, 20, None, None)),
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
            (0, 0, None, None),
            (4, None, None, None),
        ),
        (
            "_forward_step: 2 ctx reqs, 64 ctx tokens, 0 gen reqs",
            "prefill",
            (2, 64, None, None),
            (0, 0, None, None),
        ),
    ],
)
def test_each_server_s_name_says_its_phase_sequences_and_tokens(
    name: str, phase: str, prompts: tuple[int | None, ...], decodes: tuple[int | None, ...]
) -> None:
    assert read_served(name) == ServedStep(0, name, phase, *prompts, *decodes)


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
def test_idle_steps_and_other_names_are_no_steps(name: str) -> None:
    assert read_served(name) is None


def test_the_range_of_a_capture_says_its_size_and_mode() -> None:
    assert read_capture("capture_8192_PIECEWISE") == (8192, "PIECEWISE")
    assert read_capture("capture_screen") is None
