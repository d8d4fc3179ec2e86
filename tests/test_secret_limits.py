"""Where a secret begins and ends, at how many characters it is one, and which parts of a long file
are looked at."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from perfctl import redact
from perfctl.parsers import secret_scan
from perfctl.redact import masked, masked_fact, masked_line, masked_words

MIB = 1 << 20


@pytest.mark.parametrize(
    ("start", "letters", "needed"),
    [
        *((f"gh{kind}_", "aB3", 20) for kind in "pousr"),
        ("github_pat_", "a_3", 20),
        ("glpat-", "a-_", 20),
        ("hf_", "aB3", 20),
        ("sk-", "a-_", 20),
        ("xoxb-", "a-3", 10),
        ("xoxp-", "123", 10),
        ("eyJ" + "a" * 8 + ".", "a-_", 8),
    ],
)
def test_a_token_is_one_from_so_many_characters_on(start: str, letters: str, needed: int) -> None:
    rest = (letters * needed)[:needed]
    assert masked(f"see {start}{rest}, then") == "see (removed), then"
    assert masked(f"{start}{rest}") == "(removed)"
    assert masked(f"see {start}{rest[:-1]}, then") == f"see {start}{rest[:-1]}, then"
    for before in ("a", "Z", "0", "_", "-"):
        assert masked(f"{before}{start}{rest}") == f"{before}{start}{rest}", (
            "it stands within a longer word"
        )


def test_an_aws_key_has_exactly_sixteen_characters_after_its_beginning() -> None:
    for start in ("AKIA", "ASIA"):
        assert masked(start + "A1" * 8) == "(removed)"
        assert masked(start + "A1" * 8 + "B") == start + "A1" * 8 + "B"
        assert masked(start + "A1" * 7 + "B") == start + "A1" * 7 + "B"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        # Spoken of as a secret: at least 8 characters; unquoted and no password: three digits
        # among them.
        ('password: "12345678"', 'password: "(removed)"'),
        ('password: "1234567"', 'password: "1234567"'),
        ("api-key=abcde009", "api-key=(removed)"),
        ("api-key=abcde999", "api-key=(removed)"),
        ("api-key=abcdef09", "api-key=abcdef09"),
        ("api-key=abcd/:/:", "api-key=abcd/:/:"),
        ('api-key: "abcdefgh"', 'api-key: "(removed)"'),
        ("api_keys=abcdef123", "api_keys=(removed)"),
        ("password=call(12345)", "password=call(12345)"),
        ("n_tokens=abcdef123", "n_tokens=abcdef123"),
        # The name of a variable of the environment: however short its value.
        ("X_TOKEN=a", "X_TOKEN=(removed)"),
        ("MY_TOKENIZERS=a", "MY_TOKENIZERS=a"),
        ("MY_TOKENIZER_SECRET=a", "MY_TOKENIZER_SECRET=(removed)"),
        ("PRIVATE_KEY=a", "PRIVATE_KEY=(removed)"),
        ("X_CREDENTIALS=a", "X_CREDENTIALS=(removed)"),
        ("PASSPHRASE=a", "PASSPHRASE=(removed)"),
        # Numbers of up to seven digits, before and after the point, are settings.
        ("X_TOKEN=1234567", "X_TOKEN=1234567"),
        ("X_TOKEN=12345678", "X_TOKEN=(removed)"),
        ("X_TOKEN=1.5,", "X_TOKEN=1.5,"),
        ("X_TOKEN=off", "X_TOKEN=off"),
        ("X_TOKEN=***", "X_TOKEN=***"),
        ("--X_TOKEN=a b", "--X_TOKEN=(removed) b"),
    ],
)
def test_a_value_is_a_secret_by_its_length_its_digits_and_its_name(text: str, kept: str) -> None:
    assert masked(text) == kept


def test_secrets_that_overlap_are_removed_as_one() -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----"
    assert masked(f'a PRIVATE_KEY="{key}" b') == 'a PRIVATE_KEY="(removed)" b'
    assert masked(f"X_TOKEN=abc/{key} b") == "X_TOKEN=(removed) b", (
        "the second begins within the first and ends later"
    )
    assert masked(f"password: hf_{'a' * 30}") == "password: (removed)"
    two = f"A_TOKEN=abc\nhf_{'a' * 20} B_TOKEN=def"
    assert masked(two) == "A_TOKEN=(removed)\n(removed) B_TOKEN=(removed)"
    assert [(one.start, one.end, one.name) for one in redact.secrets_in(two.encode())] == [
        (8, 11, "A_TOKEN"),
        (12, 35, "a Hugging Face token"),
        (44, 47, "B_TOKEN"),
    ]


@pytest.mark.parametrize("password", ["p", "p" * 196])
def test_a_login_is_found_wherever_the_text_is_cut(password: str) -> None:
    """Up to 100 characters of user and 300 from "://" to "@"."""
    text = f"https://{'u' * 100}:{password}@host".encode()
    for cut in range(0, len(text), 7):
        assert redact.names_of([text[:cut], text[cut:]]) == ["a password in a URL"], cut
    assert redact.names_of([text[: text.index(b"@")], b"@host"]) == ["a password in a URL"]
    assert masked(text.decode()) == f"https://{'u' * 100}:(removed)@host"
    longer = f"https://{'u' * 101}:{password}@host"
    assert masked(longer) == longer


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("place", "found"),
    [
        (100, True),
        (4 * MIB + 100, True),
        (4 * MIB + MIB // 4 - 100, True),
        (4 * MIB + MIB // 4 + 100, False),
        (2 * MIB + 100, False),
        (3 * MIB, False),
        (8 * MIB + 1000, True),
        (MIB * 17 // 2 - 100, False),
        (MIB * 17 // 2 + 100, True),
        (MIB * 19 // 2 - 30, True),
    ],
)
def test_of_a_long_file_a_quarter_of_every_fourth_megabyte_and_the_last_one_are_looked_at(
    place: int, found: bool, zipped: bool, tmp_path: Path
) -> None:
    """9.5 MiB follow the thousand bytes that are looked at whole; ``place`` counts from there."""
    text = bytearray(b"0,1,2,3\n" * ((1000 + 19 * MIB // 2) // 8))
    secret = b"\nHF_TOKEN=abcdefgh\n"
    text[1000 + place : 1000 + place + len(secret)] = secret
    path = tmp_path / "long.csv"
    path.write_bytes(gzip.compress(bytes(text), 1) if zipped else bytes(text))
    assert secret_scan.names_in(path, limit=1000) == (["HF_TOKEN"] if found else [])


def test_utf_16_of_either_order_is_looked_into(tmp_path: Path) -> None:
    for mark, coding in ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")):
        path = tmp_path / coding
        path.write_bytes(mark + "DB_PASSWORD=abcdefgh\r\n".encode(coding))
        assert secret_scan.names_in(path) == ["DB_PASSWORD"]
        text = "0,1,2,3\n" * (MIB // 16) + "DB_PASSWORD=abcdefgh\r\n"
        path.write_bytes(mark + text.encode(coding))
        assert secret_scan.names_in(path, limit=1000) == ["DB_PASSWORD"], (
            "at the end of a long file"
        )


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("--api-key=abcdef0123 train0123.py", "--api-key=(removed) train0123.py"),
        ("--name=--password train.py", "--name=--password train.py"),
        ("--passphrase x -v", "--passphrase (removed) -v"),
        ("--password -v", "--password -v"),
        ("password hunter22", "password hunter22"),
        ("--pass secret12", "--pass (removed)"),
        ("--bypass-token abcdefgh", "--bypass-token (removed)"),
        ("--token 12345", "--token 12345"),
        ("-- abcdefgh", "-- abcdefgh"),
        ("--Password=x", "--Password=(removed)"),
    ],
)
def test_of_an_option_only_the_value_of_a_secret_goes(words: str, kept: str) -> None:
    assert masked_words(words.split()) == tuple(kept.split())


def test_a_line_without_secrets_is_not_quoted_anew() -> None:
    assert masked_line('a  "b c" $X') == 'a  "b c" $X'
    assert masked_line('a  "b c" --passphrase x') == "a 'b c' --passphrase '(removed)'"


def test_a_setting_is_judged_by_the_last_part_of_its_name() -> None:
    assert masked_fact("token:name", "abcdefgh") == "abcdefgh"
    assert masked_fact("a:b:hf_token", "abcdefgh") == "(removed)"
    assert masked_fact("a:b:hf_token", "") == ""
    assert masked_fact("note", "X_TOKEN=abc") == "X_TOKEN=(removed)"
    assert masked_fact("torch", "2.1.0+cu118") == "2.1.0+cu118"


def test_an_atlassian_token_goes_with_its_checksum() -> None:
    """Made up: a word, "=", and eight digits. What follows the checksum for long is no part
    of it."""
    token = "ATATT3" + "xY7_" * 30 + "=8A5F3C21"
    assert masked(f"user:{token} next") == "user:(removed) next"
    assert masked(f"{token}, {token}") == "(removed), (removed)"
    assert masked("ATATT3" + "x" * 39) == "ATATT3" + "x" * 39
