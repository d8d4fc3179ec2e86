"""The blocks of an ncu report file are walked as NVIDIA's .proto files describe them, and a cut
is seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers.ncu.rep import Outline, outline
from tests.make.ncu_rep import FILE_HEADER, MAGIC, block, number, session, sized, varint


def read(path: Path, content: bytes) -> Outline:
    path.write_bytes(MAGIC + content)
    return outline(path)


def test_results_are_counted_over_all_blocks_and_payloads_are_not_read(tmp_path: Path) -> None:
    versions = {"CUDA Version": "12.2", "Nsight Compute Target": "2023.1.0.0 (build 1)"}
    details = session(versions, created=1_700_000_000)
    content = (
        sized(FILE_HEADER)
        + block(b"\xff" * 300, 3, details)
        + block(b"", 0)
        + block(b"\0" * 5, 200)
    )
    found = read(tmp_path / "r", content)
    assert (found.known, found.cut_at, found.results) == (True, None, 203)
    assert found.versions == versions
    assert (found.tool_version, found.created_at) == ("2023.1.0.0", "2023-11-14T22:13:20+00:00")


def test_fields_of_every_wire_type_are_stepped_over(tmp_path: Path) -> None:
    eight, four = varint(9 << 3 | 1) + b"\xff" * 8, varint(10 << 3 | 5) + b"\xff" * 4
    found = read(
        tmp_path / "r",
        sized(eight + FILE_HEADER) + block(b"abc", 2, extra=four + eight + number(99, 2**63)),
    )
    assert (found.known, found.cut_at, found.results) == (True, None, 2)


def test_every_cut_is_told_with_the_byte_where_its_block_begins(tmp_path: Path) -> None:
    first, second = block(b"x" * 20, 1), block(b"y" * 30, 1)
    whole = sized(FILE_HEADER) + first + second
    begins = [4 + 6, 4 + 6 + len(first)]
    for size in range(6, len(whole)):
        found = read(tmp_path / "r", whole[:size])
        cut = next((at for at in reversed(begins) if at < 4 + size), None)
        if 4 + size in begins:  # cut between two blocks: nothing is missing that could be seen
            cut = None
        assert (found.known, found.cut_at) == (True, cut), size
    assert read(tmp_path / "r", whole).cut_at is None


@pytest.mark.parametrize(
    ("content", "known"),
    [
        (b"", True),
        (b"\x02", True),
        (b"\xff" * 11, True),
        (b"\xff" * 12, False),
        (sized(b"\x08\x06"), False),
        (sized(b""), False),
        (sized(b"\x0b"), True),
        (sized(b"\x0b") + bytes(20), False),
        (sized(b"\x0a\x07"), True),
    ],
)
def test_another_layout_is_not_known_and_a_file_of_a_few_bytes_is_cut_off(
    content: bytes, known: bool, tmp_path: Path
) -> None:
    """A file of less than 16 bytes cannot hold a header: too short, whatever it is."""
    assert read(tmp_path / "r", content).known is known


@pytest.mark.parametrize(
    "header",
    [
        b"\x10\xff",  # a number that goes on
        b"\x10" + b"\xff" * 10 + b"\x01",  # a number of more than ten bytes
        b"\x1a\x05abcd",  # five bytes announced, four there
        b"\x11" + bytes(7),  # eight bytes announced, seven there
        b"\x15" + bytes(3),  # four announced, three there
        b"\x13",  # wire type 3
    ],
)
def test_a_block_header_that_is_no_message_breaks_the_structure_there(
    header: bytes, tmp_path: Path
) -> None:
    found = read(tmp_path / "r", sized(FILE_HEADER) + sized(header) + bytes(40))
    assert (found.known, found.cut_at, found.results) == (True, 10, 0)


@pytest.mark.parametrize(
    ("created", "expected"),
    [
        (None, None),
        (0, None),
        (1, "1970-01-01T00:00:01+00:00"),
        (2**32 - 1, "2106-02-07T06:28:15+00:00"),
        (2**32, None),
    ],
)
def test_a_date_is_given_where_it_is_one(
    created: int | None, expected: str | None, tmp_path: Path
) -> None:
    found = read(tmp_path / "r", sized(FILE_HEADER) + block(b"", 1, session({}, created)))
    assert found.created_at == expected


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({"CUDA Version": "12.2"}, None),
        ({"x": "1", "Nsight Compute": "2024.2.1.0"}, "2024.2.1.0"),
    ],
)
def test_the_version_is_that_of_nsight_compute_and_no_other(
    versions: dict[str, str], expected: str | None, tmp_path: Path
) -> None:
    found = read(tmp_path / "r", sized(FILE_HEADER) + block(b"", 1, session(versions)))
    assert found.tool_version == expected
