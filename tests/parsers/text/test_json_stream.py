"""Streaming of large JSON objects: what comes out, and how broken files read."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfctl.parsers import ReportError
from perfctl.parsers.text import json as text_json
from perfctl.parsers.text.json import JsonStream, peek


def members(path: Path) -> list[tuple[str, Any]]:
    return list(JsonStream(path, "torch", "items").members())


def put(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def event(number: int) -> dict[str, Any]:
    return {"number": number, "name": 'naïve \\" kernel\n' * 5, "list": [1, [2, {"x": None}]]}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=8), st.dictionaries(st.text(), JSON, max_size=4), st.integers(1, 40))
@settings(max_examples=60)
def test_every_element_and_member_comes_out_wherever_the_chunks_are_cut(
    tmp_path_factory: pytest.TempPathFactory, items: list[Any], others: dict[str, Any], chunk: int
) -> None:
    others.pop("items", None)
    path = put(
        tmp_path_factory.mktemp("json") / "x.json", json.dumps({"items": items, **others}, indent=1)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_json, "CHUNK_BYTES", chunk)
        assert members(path) == [("items", item) for item in items] + list(others.items())


def test_numbers_words_and_blanks_are_read_right_wherever_the_chunks_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        ' \n{"n": -1.5e-7, "items" : [12, 3.25, -4E+10, 1e5, 4348661288164.763, '
        "10159970886766084423, "
    )
    text += 'true, null, "\u00e9\\n", [6]] , "m": 123456789}\r\n '
    path = put(tmp_path / "x.json", text.encode("utf-8-sig"))
    items = [
        12,
        "3.25",
        "-4E+10",
        "1e5",
        "4348661288164.763",
        10159970886766084423,
        True,
        None,
        "\u00e9\n",
        [6],
    ]
    for chunk in range(1, 32):
        monkeypatch.setattr(text_json, "CHUNK_BYTES", chunk)
        assert members(path) == [
            ("n", "-1.5e-7"),
            *(("items", item) for item in items),
            ("m", 123456789),
        ], chunk


def test_only_an_array_under_the_array_s_name_is_handed_out_singly(tmp_path: Path) -> None:
    path = put(
        tmp_path / "x.json", '{"items": {"a": [1]}, "items": [2, 3], "others": [4], "items": 5}'
    )
    assert members(path) == [
        ("items", {"a": [1]}),
        ("items", 2),
        ("items", 3),
        ("others", [4]),
        ("items", 5),
    ]


def test_a_large_file_needs_little_memory(tmp_path: Path) -> None:
    text = json.dumps({"items": [event(number) for number in range(60_000)]})
    path = put(tmp_path / "x.json", text)
    tracemalloc.start()
    count = sum(1 for _ in JsonStream(path, "torch", "items").members())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 60_000
    assert peak < len(text) / 2


def test_a_file_cut_anywhere_is_reported_as_cut_with_event_and_byte(tmp_path: Path) -> None:
    whole = json.dumps({"head": {"a": 1}, "items": [event(0), event(1), event(2)], "tail": "end"})
    for size in range(1, len(whole)):
        with pytest.raises(ReportError, match="cut off") as error:
            members(put(tmp_path / "x.json", whole[:size]))
        assert f"at byte {size} " in error.value.reason
        assert "stopped while it wrote" in error.value.remedy


@pytest.mark.parametrize("chunk", [1, 2, 5, 13, 1 << 20])
def test_the_number_of_whole_events_is_told(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_json, "CHUNK_BYTES", chunk)
    whole = json.dumps({"items": [{"n": 1}, {"n": 2}, {"n": 3}]})
    size = whole.index('{"n": 3') + 4
    with pytest.raises(
        ReportError,
        match=f"the JSON is cut off after 2 complete events, at byte {size} of the JSON",
    ):
        members(put(tmp_path / "x.json", whole[:size]))


def test_a_cut_gzip_is_reported_as_cut(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps({"items": [event(number) for number in range(500)]}).encode())
    for size in (len(packed) // 2, len(packed) - 5, 30):
        with pytest.raises(ReportError, match="the gzip data is cut off"):
            members(put(tmp_path / "x.json.gz", packed[:size]))


def test_gzip_data_whose_check_fails_are_damaged(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b'{"items": [1, 2]}'))
    packed[-8] ^= 1  # the first byte of the sum over the text
    with pytest.raises(ReportError, match=r"the gzip data is damaged \(.*check") as error:
        members(put(tmp_path / "x.json.gz", bytes(packed)))
    assert error.value.remedy == "Copy the file again"


def test_gzip_members_and_the_zeros_between_and_behind_them_may_be_cut_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first read is a chunk long, the next one takes the rest."""
    items = [event(number) for number in range(8)]
    text = json.dumps({"items": items}).encode()
    first, second = gzip.compress(text[:300]), gzip.compress(text[300:])
    path = put(tmp_path / "x.json.gz", first + b"\0" * 10 + second + b"\0" * 40)
    whole = len(first) + 10 + len(second)
    for chunk in (
        2,
        3,
        17,
        len(first) - 1,
        len(first),
        len(first) + 5,
        len(first) + 10,
        whole - 1,
        whole,
        whole + 20,
    ):
        monkeypatch.setattr(text_json, "CHUNK_BYTES", chunk)
        assert members(path) == [("items", item) for item in items], chunk


def test_gzip_may_refer_back_as_far_as_it_can(tmp_path: Path) -> None:
    """A text of 20,000 characters that stands twice: the second is packed as a look back of more
    than 16 KiB."""
    block = random.Random(0).randbytes(10_000).hex()
    text = json.dumps({"items": [block, block]})
    packed = gzip.compress(text.encode())
    assert len(packed) < 12_000
    assert members(put(tmp_path / "x.json.gz", packed)) == [("items", block), ("items", block)]
    assert peek(packed) == text
    assert text.startswith(peek(packed[:6000])) and len(peek(packed[:6000])) > 5000


def test_a_peek_unpacks_256_kib_and_takes_whatever_the_first_bytes_are() -> None:
    assert peek(gzip.compress(b"x" * 300_000)) == "x" * 262_144
    assert peek(b"\xef\xbb\xbf{a\xff") == "{a\ufffd"
    assert peek(b"\x1f\x8b broken") == peek(b"") == ""


def test_a_gzip_bomb_is_refused_with_its_expansion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_json, "MIN_BOMB_BYTES", 1 << 20)
    bomb = gzip.compress(b'{"items": [' + b'{"a": 1},' * 400_000 + b"1]}")
    first_over = 200 * len(bomb) // 2**20 + 1  # the text comes 1 MiB at a time
    told = rf"more than 200 times its size \({first_over} MiB from {len(bomb) >> 10} KiB so far\)"
    with pytest.raises(ReportError, match=told):
        members(put(tmp_path / "x.json.gz", bomb))


def test_what_is_large_or_shrinks_much_but_not_both_is_no_bomb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    even = put(tmp_path / "even.json.gz", gzip.compress(b'{"items": ["' + b"x" * 400_000 + b'"]}'))
    assert even.stat().st_size < 400_000 / 200
    assert members(even) == [("items", "x" * 400_000)]
    monkeypatch.setattr(text_json, "MIN_BOMB_BYTES", 10)
    block = random.Random(0).randbytes(2000).hex()
    uneven = put(
        tmp_path / "uneven.json.gz", gzip.compress(json.dumps({"items": [block]}).encode())
    )
    assert members(uneven) == [("items", block)]


def test_the_limits_are_64_mi_characters_a_value_and_200_fold_from_256_mib_on() -> None:
    limits = (text_json.MAX_VALUE_CHARS, text_json.MAX_EXPANSION, text_json.MIN_BOMB_BYTES)
    assert limits == (64 * 1024**2, 200, 256 * 1024**2)


@pytest.mark.parametrize("chunk", [7, 60, 100, 1000, 1 << 20])
def test_the_byte_of_a_fault_is_where_its_event_begins_wherever_the_chunks_are_cut(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_json, "CHUNK_BYTES", chunk)
    text = '{"items": [{"\u00e9": 1}, {"n": 2 "\u00e9": 3},' + '{"n": 4},' * 300
    with pytest.raises(
        ReportError, match=r"broken JSON after 1 complete events, at byte 22: expected a value \("
    ) as error:
        members(put(tmp_path / "x.json", text))
    assert "lose a bracket" in error.value.remedy


@pytest.mark.parametrize(
    "text", ["[1]", '{"items": [1]} x', "{items: 1}", '{"items" [1]}', '{"items": [' + "[" * 99_999]
)
def test_what_is_no_json_object_is_broken(tmp_path: Path, text: str) -> None:
    with pytest.raises(ReportError, match="broken JSON"):
        members(put(tmp_path / "x.json", text))


def test_a_value_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_json, "MAX_VALUE_CHARS", 1 << 20)
    with pytest.raises(ReportError, match="broken JSON"):
        members(put(tmp_path / "x.json", '{"items": ["' + "x" * (5 << 20) + '"]}'))


def test_what_old_traces_need_is_put_right_wherever_the_chunks_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One event with faults far apart: the later ones are read after the first ones were
    put right."""
    far = "x" * 100
    event = (
        rf'{{"a": inf, "far": "{far}", "file": "C:\Users\x", "b": -nan, "name": "\u00e9\\ \"inf\" '
        f'{far}", "c": [inf, 1]}}'
    )
    path = put(tmp_path / "x.json", f'{{"items": [{event}, 5], "end": nan}}')
    right = {
        "a": None,
        "far": far,
        "file": r"C:\Users\x",
        "b": None,
        "name": f'\u00e9\\ "inf" {far}',
        "c": [None, 1],
    }
    for chunk in range(1, len(event) + 40):
        monkeypatch.setattr(text_json, "CHUNK_BYTES", chunk)
        stream = JsonStream(path, "torch", "items")
        assert list(stream.members()) == [("items", right), ("items", 5), ("end", None)], chunk
        assert stream.repaired


def test_a_file_that_needs_nothing_is_not_called_repaired(tmp_path: Path) -> None:
    stream = JsonStream(
        put(tmp_path / "x.json", r'{"items": ["inf, nan \\ \u00e9"]}'), "torch", "items"
    )
    assert list(stream.members()) == [("items", "inf, nan \\ \u00e9")]
    assert not stream.repaired


def test_bytes_that_are_no_utf8_become_replacement_marks(tmp_path: Path) -> None:
    assert members(put(tmp_path / "x.json", b'{"items": ["k\xff"]}')) == [("items", "k\ufffd")]
