"""Streaming of large JSON objects: what comes out, and how broken files read."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfctl.parsers import ReportError, json_stream
from perfctl.parsers.json_stream import JsonStream


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
@settings(max_examples=60, deadline=None)
def test_every_element_and_member_comes_out_wherever_the_chunks_are_cut(
    tmp_path_factory: pytest.TempPathFactory, items: list[Any], others: dict[str, Any], chunk: int
) -> None:
    others.pop("items", None)
    path = put(tmp_path_factory.mktemp("json") / "x.json", json.dumps({"items": items, **others}, indent=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "CHUNK_BYTES", chunk)
        assert members(path) == [("items", item) for item in items] + list(others.items())


def test_fractions_come_out_as_text_so_that_nothing_is_lost(tmp_path: Path) -> None:
    path = put(tmp_path / "x.json", '{"items": [4348661288164.763, 10159970886766084423]}')
    assert members(path) == [("items", "4348661288164.763"), ("items", 10159970886766084423)]


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


def test_the_number_of_whole_events_is_told(tmp_path: Path) -> None:
    whole = json.dumps({"items": [{"n": 1}, {"n": 2}, {"n": 3}]})
    with pytest.raises(ReportError, match="after 2 whole events"):
        members(put(tmp_path / "x.json", whole[: whole.index('{"n": 3') + 4]))


def test_a_cut_gzip_is_reported_as_cut(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps({"items": [event(number) for number in range(500)]}).encode())
    for size in (len(packed) // 2, len(packed) - 5, 30):
        with pytest.raises(ReportError, match="the gzip data are cut off"):
            members(put(tmp_path / "x.json.gz", packed[:size]))


def test_damaged_gzip_is_told_from_cut_gzip(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(json.dumps({"items": list(range(5000))}).encode()))
    packed[len(packed) // 2] ^= 0xFF
    with pytest.raises(ReportError, match=r"damaged|broken JSON"):
        members(put(tmp_path / "x.json.gz", bytes(packed)))


def test_gzip_members_one_after_another_are_one_file(tmp_path: Path) -> None:
    packed = gzip.compress(b'{"items": [1, ') + gzip.compress(b"2]}") + b"\0" * 64
    assert members(put(tmp_path / "x.json.gz", packed)) == [("items", 1), ("items", 2)]


def test_a_gzip_bomb_is_refused_with_its_expansion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "MIN_BOMB_BYTES", 4 << 20)
    bomb = gzip.compress(b'{"items": [' + b'{"a": 1},' * 2_000_000 + b"1]}")
    with pytest.raises(ReportError, match="more than 200 times their size"):
        members(put(tmp_path / "x.json.gz", bomb))


def test_broken_json_names_event_and_byte_and_reads_no_further(tmp_path: Path) -> None:
    text = '{"items": [{"n": 1}, {"n": 2 "m": 3},' + '{"n": 4},' * 500_000
    with pytest.raises(ReportError, match=r"broken JSON after 1 whole events, at byte 21,") as error:
        members(put(tmp_path / "x.json", text))
    assert "lost a bracket" in error.value.remedy


@pytest.mark.parametrize(
    "text", ["[1]", '{"items": [1]} x', "{items: 1}", '{"items" [1]}', '{"items": [' + "[" * 99_999]
)
def test_what_is_no_json_object_is_broken(tmp_path: Path, text: str) -> None:
    with pytest.raises(ReportError, match="broken JSON"):
        members(put(tmp_path / "x.json", text))


def test_a_value_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "MAX_VALUE_CHARS", 1 << 20)
    with pytest.raises(ReportError, match="broken JSON"):
        members(put(tmp_path / "x.json", '{"items": ["' + "x" * (5 << 20) + '"]}'))


def test_bare_inf_and_nan_and_windows_paths_of_old_traces_are_read(tmp_path: Path) -> None:
    text = r'{"items": [{"bw": inf, "o": [-nan, 1], "name": "a, inf, nan", "file": "C:\Users\x"}]}'
    stream = JsonStream(put(tmp_path / "x.json", text), "torch", "items")
    assert list(stream.members()) == [
        ("items", {"bw": None, "o": [None, 1], "name": "a, inf, nan", "file": r"C:\Users\x"})
    ]
    assert stream.repaired


def test_bytes_that_are_no_utf8_become_replacement_marks(tmp_path: Path) -> None:
    assert members(put(tmp_path / "x.json", b'{"items": ["k\xff"]}')) == [("items", "k\ufffd")]
