"""What is kept of texts, command lines and environments: no secret with a telling beginning
or name."""

import time

import pytest

from perfctl.redact import (
    FACTS,
    mask_arguments,
    mask_command_line,
    mask_secrets,
    neutralize_text,
    select_storable_environment,
)

TOKENS = [
    "ghp_" + "a1B2" * 9,
    "github_pat_" + "a1B2" * 9,
    "glpat-" + "a1B2-" * 4,
    "hf_" + "abcdefghijklmnopqrstuvwx",
    "sk-proj-" + "a1B2" * 9,
    "AKIA" + "ABCDEFGH23456789",
    "AIza" + "a1B2c" * 7,
    "xoxb-" + "1234567890-abcdef",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow/+=\n-----END RSA PRIVATE KEY-----",
    r"-----BEGIN PRIVATE KEY-----\nMIIEow/+=\n-----END PRIVATE KEY-----",
]


@pytest.mark.parametrize("token", TOKENS)
def test_a_token_with_a_well_known_beginning_goes_from_any_text(token):
    assert mask_secrets(token) == "(removed)"
    assert mask_secrets(f"step with {token}, then more") == "step with (removed), then more"
    assert mask_secrets(f'{{"name": "{token}"}}') == '{"name": "(removed)"}'
    assert mask_secrets(rf"\n{token}") == r"\n(removed)"
    assert mask_secrets(mask_secrets(token)) == mask_secrets(token)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("GET https://bob:hunter22@host/x", "GET https://bob:(removed)@host/x"),
        ("Authorization: Bearer abcdefgh.ijklmnop/q", "Authorization: Bearer (removed)"),
        ("authorization: Basic YWxhZGRpbjpvcGVuc2VzYW1l", "authorization: Basic (removed)"),
        ("export WANDB_API_KEY=0123456789abcdef", "export WANDB_API_KEY=(removed)"),
        ('{"DB_PASSWORD": "correct horse", "n": 1}', '{"DB_PASSWORD": "(removed) horse", "n": 1}'),
        ("psql password=hunter2 dbname=x", "psql password=(removed) dbname=x"),
        ("half a pair \ud800", "half a pair ?"),
    ],
)
def test_a_setting_or_login_keeps_its_name_and_loses_its_value(text, kept):
    assert mask_secrets(text) == kept
    assert mask_secrets(kept) == kept


@pytest.mark.parametrize(
    "text",
    [
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm>(Params)",
        "embed_tokens.weight",
        "MAX_TOKENS=512",
        '{"SORT_KEY": 3}',
        "aten::scaled_dot_product_attention(query, key, value)",
        "task-0, disk-cache, mask-token",
        "http://localhost:8080/x",
        "a basic implementation_of_attention_x16",
        "train.py {batch} --key-dim 64 --key {batch} --max-tokens 51200 -key -v token abc",
        "Größe \u202e",
        "",
    ],
)
def test_names_of_kernels_layers_and_settings_stay_as_they_are(text):
    assert mask_secrets(text) == text


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("--hf-token abc --lr 0.1", "--hf-token (removed) --lr 0.1"),
        ("--password=hunter2 train.py", "--password=(removed) train.py"),
        ("docker run -e API_KEY=abc image", "docker run -e API_KEY=(removed) image"),
        (
            "singularity exec --env=HF_TOKEN=abc x.sif",
            "singularity exec --env=HF_TOKEN=(removed) x.sif",
        ),
        ("db.password=x1 model.lr=0.1", "db.password=(removed) model.lr=0.1"),
        ("--max-tokens 512 --token --verbose", "--max-tokens 512 --token --verbose"),
        ("--tokenizer gpt2 CUDA_VISIBLE_DEVICES=1", "--tokenizer gpt2 CUDA_VISIBLE_DEVICES=1"),
    ],
)
def test_an_argument_list_loses_the_values_of_what_is_named_like_a_secret(words, kept):
    assert mask_arguments(words.split()) == tuple(kept.split())


def test_a_command_line_inside_a_text_loses_them_too():
    text = "--variant={batch} --password abc --api_key sesame"
    masked = "--variant={batch} --password (removed) --api_key (removed)"
    assert mask_secrets(text) == masked
    assert mask_arguments([text]) == (masked,)
    slow = "--" + "key-" * (1 << 14)
    assert mask_secrets(slow) == slow


def test_a_command_line_stays_ready_to_paste():
    assert mask_command_line("perfctl torch -- 'my script.py' --token abc") == (
        "perfctl torch -- 'my script.py' --token '(removed)'"
    )
    assert mask_command_line('perfctl torch -- "a  b" $HOME') == 'perfctl torch -- "a  b" $HOME'
    assert mask_command_line(f"an open ' quote {TOKENS[0]}") == "an open ' quote (removed)"


def test_of_an_environment_only_known_facts_and_options_are_kept():
    given = {
        "torch": "2.15.0",
        "ncu:layers": "conv2",
        "option:batch": "16",
        "option:wandb_api_key": "0123456789",
        "option:note": f"see {TOKENS[0]}",
        "HOME": "/home/me",
        "hostname": "node17",
        "LD_LIBRARY_PATH": "/opt/lib",
    }
    assert select_storable_environment(given) == {
        "torch": "2.15.0",
        "ncu:layers": "conv2",
        "option:batch": "16",
        "option:wandb_api_key": "(removed)",
        "option:note": "see (removed)",
    }


def test_each_fact_that_a_workload_writes_is_kept():
    pytest.importorskip("torch")
    from perfctl.workloads.run.setup import collect_software_and_cpu_facts

    assert collect_software_and_cpu_facts().keys() <= FACTS


@pytest.mark.parametrize(
    "part", ["A_TOKEN_", "eyJ-", "://a:", "-----BEGIN ", "sk-", "password", "_", "PASSWORD: "]
)
def test_a_long_text_of_almost_secrets_takes_time_in_proportion(part):
    before = time.process_time()
    mask_secrets(part * (200_000 // len(part)))
    assert time.process_time() - before < 5


@pytest.mark.parametrize(
    ("target", "text", "expected"),
    [
        *(("csv", text, "'" + text) for text in ("=1", "+a", "-a", "@a", "\ta", "\ra", "\uff1d1")),
        *(("csv", text, "'" + text) for text in ("\n=1", " =1", "\x0b@a")),
        *(("csv", text, text) for text in ("-1.5", "+2e3", "a, -b", "a = b", "", "a\n=b")),
        ("csv", "a;=cmd|x", "a;'=cmd|x"),
        ("csv", "-a; @b", "'-a;' @b"),
        (
            "xml",
            "a\t\n\0\x0b\ufffe\uffff\ud800\U0001f600",
            "a\t\n\ufffd\ufffd\ufffd\ufffd\ufffd\U0001f600",
        ),
        ("github", "a##[error]b", "a##\\[error]b"),
        ("github", "a\u2028\x85\x0bb\n", "a\\u2028\\x85\\x0bb\n"),
    ],
)
def test_the_reader_of_a_format_neither_runs_nor_refuses_a_text(target, text, expected):
    assert neutralize_text(text, target) == expected
