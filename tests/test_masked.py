from __future__ import annotations

import pytest

from perfctl.redact import is_clean, masked, masked_line, masked_words

TOKEN = "hf_" + "abcdefghijklmnopqrstuvwx"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"step with {TOKEN}", "step with (removed)"),
        ("GET https://bob:hunter22@host/x", "GET https://bob:(removed)@host/x"),
        ("WANDB_API_KEY=0123456789abcdef", "WANDB_API_KEY=(removed)"),
        ("half a pair \ud800", "half a pair ?"),
    ],
)
def test_a_text_is_kept_without_what_looks_like_a_secret(text: str, kept: str) -> None:
    assert masked(text) == kept
    assert not is_clean(["conv1:forward", text])


@pytest.mark.parametrize(
    "text",
    [
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm>(Params)",
        "embed_tokens.weight",
        "max_tokens=512",
        "cls_token",
        "aten::conv2d, seq = 12345678, op_id = 9",
        "Größe \u202e",
        "tokenizer: bert-base-uncased",
        "",
    ],
)
def test_names_of_kernels_and_layers_stay_as_they_are(text: str) -> None:
    assert masked(text) == text
    assert is_clean([text])


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (("--hf-token", TOKEN), ("--hf-token", "(removed)")),
        (("--password", "hunter2", "--lr", "0.1"), ("--password", "(removed)", "--lr", "0.1")),
        (("--api-key=abcdefgh",), ("--api-key=(removed)",)),
        (
            ("--max-tokens", "51200000", "--token", "--verbose"),
            ("--max-tokens", "51200000", "--token", "--verbose"),
        ),
        (("DB_PASSWORD=x1", "train.py"), ("DB_PASSWORD=(removed)", "train.py")),
        (("--mask-token", "<mask>"), ("--mask-token", "<mask>")),
    ],
)
def test_an_argument_list_loses_the_values_of_options_that_are_secrets(
    words: tuple[str, ...], kept: tuple[str, ...]
) -> None:
    assert masked_words(words) == kept


def test_a_command_line_stays_ready_to_paste() -> None:
    assert masked_line(f"perfctl torch -- 'my script.py' --token {TOKEN}") == (
        "perfctl torch -- 'my script.py' --token '(removed)'"
    )
    assert masked_line('perfctl torch -- "a  b" $HOME') == 'perfctl torch -- "a  b" $HOME'
    assert masked_line(f"an open ' quote {TOKEN}") == "an open ' quote (removed)"
