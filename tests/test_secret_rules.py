"""The rules of gitleaks in use, the time that a search takes, and what is no secret."""

from __future__ import annotations

import gzip
import json
import re
import time
from pathlib import Path

import pytest

from perfctl import redact
from perfctl.parsers.text.sqlite import connect
from perfctl.redact.people import People, is_environment

ROOT = Path(__file__).resolve().parent.parent
RULES = json.loads((ROOT / "perfctl" / "redact" / "gitleaks.json").read_text())
BAD = (
    *(
        "TOKEN",
        "a@",
        'SECRET="',
        "-----BEGIN ",
        "-----BEGIN RSA PRIVATE KEY-----",
        "://:",
        "key=",
        "my_key=",
        '"api_key": ',
        "KEY=KEY:",
    ),
    *(
        "password ",
        "--token ",
        "--password x",
        "eyJ",
        "eyJaaaaaaaaaaaaaaaa.",
        "xoxb-",
        "ghp_",
        "curl -u ",
        "mysql -p ",
        "login x password ",
    ),
    *(
        "datadog=aaaaaaaaaaaaaaa1",
        "wandb 0123456789abcdef0123456789abcdef01234567 ",
        "Authorization: ",
        "bearer aaaaaaaaaaaaaaaa1 ",
    ),
    *(
        "cookie: a=",
        "sig=",
        "\\n",
        r"\"key\":",
        "https://hooks.slack.com/",
        "/a1aaaaaaaaaaaaaaaaaaaa",
        "key\n\n\n",
        "my_key value: ",
        "<key>",
    ),
    *(
        "Private-Lines: 1 ",
        "https://aaaaaaaaaaaaaaaa",
        "pat12345678901234.",
        "glc_a1",
        "%3Dghp_a",
        "/home/",
        "PATH=",
        ":5432:a:b:",
        "ATATT3A7A7A7A7A7A7=",
        "xoxb-whsec_SG.",
        "api-keyprivatekeypwd.PATH=auth",
    ),
)


@pytest.mark.parametrize("bad", BAD)
def test_a_text_twice_as_long_takes_twice_as_long_whatever_it_repeats(bad: str) -> None:
    """And less than 3 us a byte; the ratio is that of the best of several tries, and 3 where 4
    would be quadratic."""

    def seconds(size: int) -> float:
        text = (bad * (size // len(bad) + 1))[:size].encode()
        tries = []
        for _ in range(3):
            started = time.process_time()
            redact.secrets_in(text, People().found_in(text))
            is_environment(text)
            tries.append(time.process_time() - started)
        return min(tries)

    size = 1 << 14
    short, long = seconds(size), seconds(4 * size)
    assert long < 4 * 2.5 * short + 0.002
    assert long / (4 * size) < 3e-6


def test_a_value_without_an_end_is_removed_whole() -> None:
    for value in ("a1B2" * 50_000, "a\\\\b1" * 30_000):
        assert redact.masked(f'X_TOKEN="{value}" rest') == 'X_TOKEN="(removed)" rest'
        assert redact.masked(f"X_TOKEN={value} rest") == "X_TOKEN=(removed) rest"


def test_each_rule_of_gitleaks_has_a_beginning_or_the_name_of_a_service() -> None:
    assert len(RULES["tokens"]) > 90
    assert len(RULES["services"]) > 70
    for start, pattern, kind, _ in RULES["tokens"]:
        assert re.compile(pattern)
        assert kind.split()[0] in ("a", "an") and len(start) > 2
    for words, name, value, _, _ in RULES["services"]:
        assert re.compile(value)
        endings = ("", "_token", "in", "_ai", "_bird")
        spellings = [
            spelled(word) + end
            for word in words
            for spelled in (str, str.upper, str.title)
            for end in endings
        ]
        assert any(re.search(name, spelled) for spelled in spellings), name


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("dop_v1_{}", "0123456789abcdef" * 4),
        ("shpat_{}", "0123456789abcdef" * 2),
        ("AGE-SECRET-KEY-1{}", "QPZRY9X8GF2TVDW0S3" * 3 + "QPZR"),
        ("netlify token is set, netlify={}", "a1b2c3d4e5" * 4),
        ("heroku: {}", "01234567-89ab-cdef-0123-456789abcdef"),
        ('"okta_org": "{}"', "00aB3dE6gH9jkLmN2pQr5TuVxZcW8yKi4oSe7nFb1M"),
        ("PMAK-{}", "0123456789abcdef01234567-" + "0123456789abcdef0123456789abcdef01"),
    ],
)
def test_forms_that_only_gitleaks_knows_are_found(text: str, value: str) -> None:
    assert value not in redact.masked(text.format(value))


@pytest.mark.parametrize(
    "text",
    [
        "commit 0123456789abcdef0123456789abcdef01234567",
        "wandb: run 0123456789abcdef0123456789abcdef01234567 at commit",
        "git clone https://github.com/pytorch/pytorch.git",
        "https://git@github.com/a/b.git",
        "ssh://git@host:22/a",
        "git@github.com:a/b.git",
        (
            "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor"
            "_addIfEESt5arrayIPcLm3EEEEviT0_T1_"
        ),
        "void cub::DeviceRadixSortKernel<Key=float, Value=int64_t>(Key*, int)",
        "sm80_xmma_gemm_f16f16_f32_tn_n_tilesize128x64x32_stage4",
        "triton_poi_fused_add_0 key: 'self_cuda_time_total'",
        "sort_key=ab12cd34ef56ab78",
        "cache_key: 'c3d4e5f6a7b8c3d4e5f6a7b8'",
        '{"kernel_hash": "cb4pxqhuf3qc7xpxxdrpkqmzjzvnbdrxlsgn3jqhjgkyqyb3o6pt"}',
        "PWD=/home/me/code/Lab 4",
        "OLDPWD=/tmp",
        "GIT_ASKPASS=/usr/bin/true",
        "SORT_KEY=name",
        "PRIMARY_KEY=id_of_rows",
        "a monkey=ab12cd34ef56ab78xy",
        "password is required",
        "use --token to log in",
        "usage: x [--token TOKEN] [--password PASSWORD]",
        "token = tokenizer(text)",
        "password = args.password",
        "GPU-01234567-89ab-cdef-0123-456789abcdef",
        "nccl:all_reduce key=3",
        "aten::key",
        '"keys": ["token", "loss"]',
        "pass 1: smsp__cycles_active.avg",
        "--passes 3",
        "--pass 2",
        "forward-pass=12.5ms",
        "forward_pass: 12345678 ns",
        "author = somebody",
        "linear: 0123456789abcdef0123456789abcdef",
        "smsp__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    ],
)
def test_what_measurements_are_made_of_is_no_secret(text: str) -> None:
    assert redact.masked(text) == text


def _texts(path: Path) -> bytes:
    head = path.read_bytes()
    if head.startswith(b"\x1f\x8b"):
        return gzip.decompress(head)
    if not head.startswith(b"SQLite format 3"):
        return head
    connection = connect(path)
    connection.text_factory = bytes
    held: dict[bytes, None] = {}
    tables = [
        name.decode()
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    ]
    for table in tables:
        for row in connection.execute(f'SELECT * FROM "{table}"'):
            held.update((cell, None) for cell in row if isinstance(cell, bytes))
    connection.close()
    return b"\n".join(held)


def test_of_the_smaller_real_reports_only_the_one_with_a_real_token_has_one(reports: Path) -> None:
    found = {}
    small = [
        path
        for path in sorted(reports.rglob("*"))
        if path.is_file() and path.stat().st_size < 200_000
    ]
    for path in small:
        if names := [secret.name for secret in redact.secrets_in(_texts(path))]:
            found[path.name] = names
    assert len(small) > 80
    assert found == {"tracelens_h100_Falconsai_vit.json.gz": ["HF_TOKEN"]}
