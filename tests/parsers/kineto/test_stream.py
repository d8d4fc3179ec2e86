"""Streaming of traces: what comes out however they are laid out and cut, and how broken files
read."""

import gzip
import json
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfctl.parsers import ReportError
from perfctl.parsers.common.json import decode_head
from perfctl.parsers.kineto import stream as kineto_stream
from perfctl.parsers.kineto.stream import TraceStream
from tests.make.files import write
from tests.make.memory import measure_peak

LAYOUTS = {
    "one line": {},
    "no blanks": {"separators": (",", ":")},
    "pretty-printed": {"indent": 2},
    "other blanks": {"separators": (" ,\r\n\t", " : ")},
}


def read(path):
    """The names and arguments of the events, and the other members."""
    stream = TraceStream(path)
    events = [
        (event.name, msgspec.json.decode(event.args))
        for block in stream.iterate_event_blocks()
        for event in block
    ]
    others = {key: value for key, value in stream.metadata.items() if key != "traceEvents"}
    return events, others


def event(number, **args):
    name = 'naïve \\" kernel\n}, {"ph": "X"' * 5
    return {"ph": "X", "name": name, "args": {"number": number, "list": [{"x": None}, {}], **args}}


def wanted(events):
    return [(item.get("name"), item.get("args", {})) for item in events]


def cut_small(monkeypatch, chunk):
    monkeypatch.setattr(kineto_stream, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(kineto_stream, "BLOCK_BYTES", 2 * chunk)


TEXT = st.text() | st.sampled_from(["},{", '"}, {"', "]}", "{", "[", "\\", '\\"}, {'])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=4)


@given(
    st.lists(st.fixed_dictionaries({"name": TEXT, "args": OBJECTS}), max_size=8),
    st.dictionaries(st.text(), JSON, max_size=4),
    st.integers(1, 40),
    st.sampled_from(list(LAYOUTS)),
    st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_every_event_and_member_comes_out_wherever_the_blocks_are_cut(
    tmp_path_factory, events, others, chunk, layout, events_last
):
    others.pop("traceEvents", None)
    whole = {**others, "traceEvents": events} if events_last else {"traceEvents": events, **others}
    text = json.dumps(whole, ensure_ascii=False, **LAYOUTS[layout])  # type: ignore[arg-type]
    path = tmp_path_factory.mktemp("json") / "x.json"
    write(path, text.encode("utf-8", "surrogatepass"))
    with pytest.MonkeyPatch.context() as patch:
        cut_small(patch, chunk)
        assert read(path) == (wanted(events), others)


def test_times_keep_their_nanoseconds_where_floats_do_not(tmp_path):
    times = ("4348661288164.763", "1623143089861123.457", "5", "-0.5", "1e3", "1e999")
    events = ", ".join(f'{{"ts": {time}}}' for time in times)
    (block,) = TraceStream(
        write(tmp_path / "x.json", f'{{"traceEvents": [{events}]}}')
    ).iterate_event_blocks()
    assert [kineto_stream.parse_microseconds_as_ns(event.ts) for event in block] == [
        4348661288164763,
        1623143089861123457,
        5000,
        -500,
        1_000_000,
        None,
    ]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_a_trace_in_another_encoding_is_read(encoding, tmp_path):
    events = [event(number) for number in range(3)]
    text = json.dumps({"traceEvents": events}, ensure_ascii=False)
    assert read(write(tmp_path / "x.json", text.encode(encoding)))[0] == wanted(events)


def test_a_large_file_needs_little_memory(tmp_path, monkeypatch):
    cut_small(monkeypatch, 1 << 16)
    text = json.dumps({"traceEvents": [event(number) for number in range(15_000)]})
    path = write(tmp_path / "x.json", text)

    def count_events():
        count = 0
        for block in TraceStream(path).iterate_event_blocks():
            count += len(block)
            block.clear()
        return count

    count, peak = measure_peak(count_events)
    assert count == 15_000
    assert peak < len(text) / 2


def test_a_file_cut_anywhere_is_reported_as_cut_with_its_byte(tmp_path):
    whole = json.dumps(
        {"head": {"a": 1}, "traceEvents": [event(0), event(1), event(2)], "tail": "end"}
    )
    for size in range(1, len(whole)):
        with pytest.raises(ReportError, match="truncated") as error:
            read(write(tmp_path / "x.json", whole[:size]))
        assert f"at byte {size} " in error.value.reason
        assert "stopped while it wrote" in error.value.remedy


PACKED = gzip.compress(b'{"traceEvents": [{}, {}]}')


@pytest.mark.parametrize(
    ("packed", "reason"),
    [
        pytest.param(PACKED[:20], "the gzip data is truncated", id="cut inside of the text"),
        pytest.param(PACKED[:-5], "the gzip data is truncated", id="cut inside of its sum"),
        pytest.param(
            PACKED[:-8] + bytes([PACKED[-8] ^ 1]) + PACKED[-7:],
            "the gzip data is damaged at byte 0 .*check",
            id="another sum over the text",
        ),
    ],
)
def test_a_cut_or_damaged_gzip_is_refused_as_that(packed, reason, tmp_path):
    with pytest.raises(ReportError, match=reason):
        read(write(tmp_path / "x.json.gz", packed))


def test_gzip_members_and_the_zeros_between_and_behind_them_may_be_cut_anywhere(
    tmp_path, monkeypatch
):
    """The first read is a chunk long, the next one takes the rest."""
    events = [event(number) for number in range(8)]
    text = json.dumps({"traceEvents": events}).encode()
    first, second = gzip.compress(text[:300]), gzip.compress(text[300:])
    path = write(tmp_path / "x.json.gz", first + b"\0" * 10 + second + b"\0" * 40)
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
        monkeypatch.setattr(kineto_stream, "CHUNK_BYTES", chunk)
        assert read(path)[0] == wanted(events), chunk


def test_a_peek_unpacks_256_kib_and_takes_whatever_the_first_bytes_are():
    assert decode_head(gzip.compress(b"x" * 300_000)) == "x" * 262_144
    assert decode_head(b"\xef\xbb\xbf{a\xff") == "{a\ufffd"
    assert decode_head(b"\x1f\x8b broken") == decode_head(b"") == ""


def test_a_gzip_bomb_is_refused_with_its_expansion(tmp_path, monkeypatch):
    monkeypatch.setattr(kineto_stream, "MIN_BOMB_BYTES", 1 << 20)
    bomb = gzip.compress(b'{"traceEvents": [' + b'{"a": 1},' * 400_000 + b"{}]}")
    chunk = kineto_stream.CHUNK_BYTES
    first_over = (200 * len(bomb) // chunk + 1) * chunk >> 20
    told = rf"more than 200 times its size \({first_over} MiB from {len(bomb) >> 10} KiB so far\)"
    with pytest.raises(ReportError, match=told):
        read(write(tmp_path / "x.json.gz", bomb))


def test_what_is_large_or_shrinks_much_but_not_both_is_no_bomb(tmp_path, monkeypatch):
    text = json.dumps({"traceEvents": [{"name": "x" * 400_000}]})
    even = write(tmp_path / "even.json.gz", gzip.compress(text.encode()))
    assert even.stat().st_size < 400_000 / 200
    assert read(even)[0] == [("x" * 400_000, {})]
    monkeypatch.setattr(kineto_stream, "MIN_BOMB_BYTES", 10)
    block = random.Random(0).randbytes(2000).hex()
    text = json.dumps({"traceEvents": [{"name": block}]})
    uneven = write(tmp_path / "uneven.json.gz", gzip.compress(text.encode()))
    assert read(uneven)[0] == [(block, {})]


@pytest.mark.parametrize("chunk", [7, 60, 100, 1000, 1 << 20])
def test_the_byte_of_a_fault_is_told_wherever_the_blocks_are_cut(chunk, tmp_path, monkeypatch):
    cut_small(monkeypatch, chunk)
    text = '{"traceEvents": [{"\u00e9": 1}, {"n": 2 "\u00e9": 3},' + '{"n": 4},' * 300
    byte = text.encode().index(b' "', text.encode().index(b"2 ")) + 1
    with pytest.raises(
        ReportError, match=f"broken JSON at byte {byte}: expected ',' or '}}'"
    ) as error:
        read(write(tmp_path / "x.json", text))
    assert "lose a bracket" in error.value.remedy


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        *(
            f'{{"traceEvents": [{{"name": "a"}}, {element}, {{}}]}}'
            for element in ("1", "null", '"},{"', '[{"name": "b"}]')
        ),
        '{"traceEvents": [{}]} x',
        '{"traceEvents": [{}], "a": 1 2}',
        '{"traceEvents": [{}], "traceEvents": [{}]}',
        '{"traceEvents": 5}',
        "{traceEvents: 1}",
        '{"traceEvents" [1]}',
        '{"traceEvents": [' + "[" * 99_999,
    ],
)
def test_what_is_no_json_object_with_one_array_of_events_is_broken(tmp_path, text):
    with pytest.raises(ReportError, match="broken JSON"):
        read(write(tmp_path / "x.json", text))


def test_an_event_without_end_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(kineto_stream, "MAX_VALUE_BYTES", 1 << 20)
    with pytest.raises(ReportError, match="broken JSON"):
        read(write(tmp_path / "x.json", '{"traceEvents": ["' + "x" * (20 << 20) + '"]}'))


def test_what_old_traces_need_is_put_right_wherever_the_blocks_are_cut(tmp_path, monkeypatch):
    """One event with faults far apart: the later ones are read after the first ones were
    put right."""
    far = "x" * 100
    args = (
        rf'{{"a": inf, "far": "{far}", "file": "C:\Users\x", "b": -nan, "text": "\u00e9\\ \"inf\" '
        rf'{far}", "c": [inf, 1]}}'
    )
    path = write(
        tmp_path / "x.json",
        f'{{"traceEvents": [{{"args": {args}}}, {{"name": "a\x01b\\c"}}], "end": nan}}',
    )
    right = {
        "a": None,
        "far": far,
        "file": r"C:\Users\x",
        "b": None,
        "text": f'\u00e9\\ "inf" {far}',
        "c": [None, 1],
    }
    for chunk in range(1, len(args) + 40, 3):
        cut_small(monkeypatch, chunk)
        stream = TraceStream(path)
        events = [item for block in stream.iterate_event_blocks() for item in block]
        assert msgspec.json.decode(events[0].args) == right, chunk
        assert (events[1].name, stream.metadata["end"]) == ("a\x01b\\c", None)
        assert stream.repaired


def test_a_file_that_needs_nothing_is_not_called_repaired(tmp_path):
    text = r'{"traceEvents": [{"name": "inf, nan \\ \u00e9"}]}'
    stream = TraceStream(write(tmp_path / "x.json", text))
    assert [event.name for block in stream.iterate_event_blocks() for event in block] == [
        "inf, nan \\ \u00e9"
    ]
    assert not stream.repaired


def test_bytes_that_are_no_utf8_become_replacement_marks(tmp_path):
    path = write(tmp_path / "x.json", b'{"traceEvents": [{"name": "k\xff"}, {}]}')
    assert read(path)[0] == [("k\ufffd", {}), (None, {})]
