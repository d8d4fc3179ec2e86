"""A text is scrubbed piece by piece: wherever it is cut, the copy is the same text without
its secrets."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from perfctl.parsers.scrub import CHUNK, LONGEST, scrub
from tests.parsers.nsys_secrets import GITHUB, PASSWORD

CUT = 4 + CHUNK - LONGEST
"""Where the first piece would end: four bytes and a chunk were read by then."""
FILLER = b"0,1,2,3,4,5,6,7,8,9,a,b,c,d,e,f\n"


def filled(size: int) -> bytes:
    return (FILLER * (size // len(FILLER) + 1))[: size - 1] + b"\n"


@pytest.mark.parametrize(
    ("before", "secret", "name"),
    [
        ("DB_PASSWORD=", PASSWORD, "DB_PASSWORD"),
        ("password:    ", PASSWORD, "password"),
        ("see https://me:", "hunter2", "a password in a URL"),
        # the longest name that one is looked for under
        ("A" * 275 + "_TOKEN=", "short", "A" * 275 + "_TOKEN"),
        ("", GITHUB, "a GitHub token"),
    ],
)
@pytest.mark.parametrize("place", ["inside of the name", "start", "last", "end"])
def test_neither_a_secret_nor_its_name_is_cut_in_two(
    before: str, secret: str, name: str, place: str, tmp_path: Path
) -> None:
    start, end = len(before), len(before) + len(secret)
    at = {"inside of the name": start // 2, "start": start, "last": end - 1, "end": end}[place]
    rest = b"@host/x\n" if "://" in before else b"\n"
    head, tail = filled(CUT - at) + before.encode(), rest + filled(2 * LONGEST)
    path = tmp_path / "r.log"
    path.write_bytes(head + secret.encode() + tail)
    done = scrub(path, tmp_path / "copy.log")
    assert done.path.read_bytes() == head + b"(removed)" + tail
    assert done.names == (name,)


def test_secrets_that_stand_close_together_around_every_cut_are_all_replaced(
    tmp_path: Path,
) -> None:
    line = (
        "{} an ordinary line that says HF_TOKEN={} and nothing more of any interest to anybody at "
        "all, ever\n"
    )
    path = tmp_path / "r.log.gz"
    path.write_bytes(
        gzip.compress(
            "".join(line.format(number, "abcdefgh") for number in range(12_000)).encode(), 1
        )
    )
    done = scrub(path, tmp_path / "copy.log.gz")
    copy = gzip.decompress(done.path.read_bytes()).decode()
    assert copy == "".join(line.format(number, "(removed)") for number in range(12_000))
    assert (done.names, done.rows) == (("HF_TOKEN",), {})


@pytest.mark.parametrize(
    ("coding", "shift"), [("utf-16-le", 0), ("utf-16-le", 1), ("utf-16-le", 2), ("utf-16-be", 0)]
)
def test_no_character_of_utf_16_is_cut_in_two(coding: str, shift: int, tmp_path: Path) -> None:
    """Inside it is UTF-8, where these have 2, 3 and 4 bytes: the cut lies in the third byte of one
    of 3 bytes, at its first, and in the third of one of 4."""
    mark = b"\xff\xfe" if coding == "utf-16-le" else b"\xfe\xff"
    text = "a" * shift + "é€😀" * 120_000
    path = tmp_path / "r.csv"
    path.write_bytes(mark + f"{text}DB_PASSWORD={PASSWORD}\r\n{text}".encode(coding))
    copy = scrub(path, tmp_path / "copy.csv").path.read_bytes()
    assert copy == mark + f"{text}DB_PASSWORD=(removed)\r\n{text}".encode(coding)
