"""Names of secrets are found wherever profilers leave them; measurements are never taken
for one."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import pytest

from perfctl import redact
from perfctl.parsers import secret_scan
from tests.parsers.nsys_secrets import GITHUB, with_environment


def names(text: str) -> list[str]:
    return redact.names_of([text.encode()])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("HF_TOKEN=abcdefgh", "HF_TOKEN"),
        ("export DB_PASSWORD='two words'", "DB_PASSWORD"),
        ('{"WANDB_API_KEY": "0123456789abcdef"}', "WANDB_API_KEY"),
        (r'"cmd": "env AWS_SECRET_ACCESS_KEY=ab\"', "AWS_SECRET_ACCESS_KEY"),
        (r"{\"MY_SECRET\": \"abc\"}", "MY_SECRET"),
        ("train.py --api-key=abcdef0123", "api-key"),
        ("password: correcthorse", "password"),
        ("see " + "ghp_" + "a" * 36, "a GitHub token"),
        ("github_pat_" + "A1_" * 10, "a GitHub token"),
        ("hf_" + "Ab1" * 11, "a Hugging Face token"),
        ("sk-" + "proj-" + "x1" * 12, "an API key (sk-...)"),
        ("AKIA" + "ABCDEFGH12345678", "an AWS access key"),
        ("xoxb-" + "1234567890-abc", "a Slack token"),
        ("eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "a JSON web token"),
        ("https://user:hunter2@example.org/simple", "a password in a URL"),
        (
            "-----BEGIN " + "RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----",
            "a private key",
        ),
    ],
)
def test_what_looks_like_a_secret_is_named(text: str, name: str) -> None:
    assert names(text) == [name]


@pytest.mark.parametrize(
    "text",
    [
        "TOKENIZERS_PARALLELISM=false",
        "MAX_TOKENS=4096",
        "--max-new-tokens=12345678",
        '"num_tokens": 128000000',
        "void kernel<token_type>(int)",
        "token: int64_tensor",
        "API_KEY=",
        "HF_TOKEN=$HF_TOKEN",
        "HF_TOKEN=(removed)",
        "task-scheduler-with-a-long-name-0123456789",
        "user@host:/path, 3 @ 4",
        "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum = 1,234,567",
        "cudaStreamIsCapturing access_policy_window=0x7fff0000",
        # Numbers of tokens, however they are written; windows of a desktop; switches; a tokenizer's
        # special tokens.
        "CONTEXT_WINDOW_TOKENS=128k",
        "SLIDING_WINDOW_TOKENS=4096,1024",
        "MAX_TOKENS=1e6",
        "TOKENS_PER_STEP=8192*4",
        "XDG_ACTIVATION_TOKEN=gnome-shell/Terminal/2231-1-host_TIME5512",
        '"window_token": "a1b2c3d4e5f6"',
        "window_token=0x55aa11bb22cc",
        "ADD_BOS_TOKEN=enabled",
        '"USE_AUTH_TOKEN": "disabled",',
        "HAS_TOKEN=t",
        "PAD_TOKEN=<pad>",
        "EOS_TOKEN=</s>",
        "BOS_TOKEN=<|begin_of_text|>",
        "MASK_TOKEN=[MASK]",
    ],
)
def test_settings_and_measurements_are_no_secrets(text: str) -> None:
    assert names(text) == []


@pytest.mark.parametrize(
    "text",
    ["X_TOKENS=abcdef", "X_TOKEN=enabled1", "CI_TOKEN=4096xy", "X_TOKEN=<pad>a", "X_TOKEN=0xfg"],
)
def test_a_value_that_only_begins_like_a_setting_is_a_secret(text: str) -> None:
    assert names(text) == [text.partition("=")[0]]


def test_a_name_is_said_and_never_a_value() -> None:
    found = names(f"HF_TOKEN={GITHUB}\nhttps://me:hunter2@host/")
    assert found == ["HF_TOKEN", "a password in a URL"]
    assert not any(GITHUB in name or "hunter2" in name for name in found)


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_secret_that_lies_across_two_pieces_is_found(cut: int) -> None:
    text = b"....." + f"HF_TOKEN={GITHUB}".encode() + b"....."
    assert redact.names_of([text[:cut], text[cut:]]) == ["HF_TOKEN"]
    assert redact.names_of([b"x_TOKEN=fal"[:cut], b"x_TOKEN=false"[min(cut, 11) :]]) == []


@pytest.mark.parametrize("generation", ["2020.3", "2022.1", "2024.2", "2026.1"])
def test_an_nsys_export_names_the_variables_of_its_environments(
    generation: str, tmp_path: Path
) -> None:
    assert secret_scan.names_in(with_environment(tmp_path / "r.sqlite", generation)) == [
        "DB_PASSWORD",
        "FAKE_TOKEN",
    ]


def test_a_gzipped_and_a_utf_16_report_are_looked_into(tmp_path: Path) -> None:
    zipped, wide = tmp_path / "trace.json.gz", tmp_path / "report.csv"
    zipped.write_bytes(gzip.compress(b'{"HF_TOKEN": "abcdefgh"}'))
    wide.write_bytes("DB_PASSWORD=abcdefgh\r\n".encode("utf-16"))
    assert secret_scan.names_in(zipped) == ["HF_TOKEN"]
    assert secret_scan.names_in(wide) == ["DB_PASSWORD"]


def test_files_that_cannot_be_read_have_no_names(tmp_path: Path) -> None:
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(b"SQLite format 3\0" + b"\xff" * 500)
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(gzip.compress(b"HF_TOKEN=abc" * 999)[:40])
    for path in (tmp_path, tmp_path / "missing", broken, cut):
        assert secret_scan.names_in(path) == []


def test_long_runs_of_almost_secrets_take_no_time() -> None:
    started = time.process_time()
    for text in (
        "TOKEN" * 50_000,
        "a@" * 100_000,
        'SECRET="' * 30_000,
        "-----BEGIN " * 20_000,
        "://:" * 50_000 + "@",
    ):
        names(text)
    assert time.process_time() - started < 5


def test_the_real_trace_with_a_token_in_it_is_found_out(reports: Path) -> None:
    assert secret_scan.names_in(reports / "kineto" / "tracelens_h100_Falconsai_vit.json.gz") == [
        "HF_TOKEN"
    ]


@pytest.mark.parametrize("zipped", [False, True])
def test_a_secret_at_the_end_of_a_long_file_is_found(tmp_path: Path, zipped: bool) -> None:
    text = b"0,1,2,3,4,5,6,7,8,9\n" * 700_000 + b"the program ends with HF_TOKEN=abcdefgh\n"
    path = tmp_path / "long.csv"
    path.write_bytes(gzip.compress(text, 1) if zipped else text)
    assert len(text) > secret_scan.LOOKED_AT
    assert secret_scan.names_in(path) == ["HF_TOKEN"]


def test_samples_of_a_long_file_are_small_and_begin_with_whole_words(tmp_path: Path) -> None:
    word = b"desk-" + b"abcdefghijklmnopqrstuvwxyz0123456789" * 8 + b" "
    path = tmp_path / "long.csv"
    path.write_bytes(word * (40_000_000 // len(word)))
    pieces = list(secret_scan.texts_of(path))
    assert sum(map(len, pieces)) < secret_scan.LOOKED_AT + 4_000_000
    assert redact.names_of(pieces) == [], "no sample begins at 'sk-'"
