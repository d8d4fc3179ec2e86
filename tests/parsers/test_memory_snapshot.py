"""Memory snapshots of PyTorch: read without running anything, the curve worked out backwards from
the end."""

from __future__ import annotations

import io
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from perfctl import parsers
from perfctl.parsers.common.plain_pickle import read_plain
from perfctl.records.errors import ReportError
from perfctl.records.report import MemoryFigure, Report

MB = 1 << 20
SEGMENT = {
    "device": 0,
    "total_size": 20 * MB,
    "allocated_size": 3072,
    "active_size": 3072,
    "requested_size": 3000,
    "blocks": [
        {"size": 3072, "state": "active_allocated"},
        {"size": 20 * MB - 3072, "state": "inactive"},
    ],
}


def event(action: str, size: int, at: int) -> dict[str, Any]:
    return {"action": action, "addr": 7, "size": size, "stream": 0, "time_us": at, "frames": []}


EVENTS = [
    event("segment_alloc", 20 * MB, 10),
    event("alloc", 5000, 11),
    event("alloc", 1000, 12),
    event("free_requested", 5000, 13),
    event("free_completed", 5000, 14),
]
SNAPSHOT = {
    "segments": [SEGMENT],
    "device_traces": [EVENTS],
    "allocator_settings": {"max_split_size": -1, "x": 0.5},
}


def parse(folder: Path, content: object, protocol: int = 4) -> Report:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(content, protocol))
    return parsers.parse(path)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_the_curve_goes_backwards_from_what_the_segments_state(
    tmp_path: Path, protocol: int
) -> None:
    """Requested at the end 3,000 bytes, so before the free 8,000, and 2,000 before anything that
    was recorded."""
    found = parse(tmp_path, SNAPSHOT, protocol)
    assert [(one.at_ns, one.allocated_bytes, one.reserved_bytes) for one in found.samples] == [
        (10_000, 2000, 20 * MB),
        (11_000, 7000, 20 * MB),
        (12_000, 8000, 20 * MB),
        (14_000, 3000, 20 * MB),
    ]
    assert found.memory == (
        MemoryFigure("after", "allocated", 3072),
        MemoryFigure("after", "reserved", 20 * MB),
        MemoryFigure("after", "requested", 3000),
        MemoryFigure("peak", "requested", 8000),
        MemoryFigure("peak", "reserved", 20 * MB),
    )
    figures = {one.name: one.value for one in found.summaries}
    assert figures == {
        "segments": 1,
        "blocks active_allocated": 3072,
        "blocks inactive": 20 * MB - 3072,
        "events alloc": 2,
        "events free_completed": 1,
        "events free_requested": 1,
        "events segment_alloc": 1,
    }


def test_the_same_as_json_gives_the_same(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps(SNAPSHOT))
    other, found = parse(tmp_path, SNAPSHOT), parsers.parse(path)
    assert (found.memory, list(found.samples), found.summaries) == (
        other.memory,
        list(other.samples),
        other.summaries,
    )


def test_what_is_not_known_is_not_made_up(tmp_path: Path) -> None:
    """A size that is missing leaves what came before unknown; without events there is no curve;
    several GPUs have no one figure."""
    holed = parse(
        tmp_path,
        {**SNAPSHOT, "device_traces": [[*EVENTS[:2], {**EVENTS[2], "size": "many"}, *EVENTS[3:]]]},
    )
    assert [one.allocated_bytes for one in holed.samples] == [None, None, 8000, 3000]
    without = parse(tmp_path, [SEGMENT])
    assert not list(without.samples) and "sample" in {gap.quantity for gap in without.gaps}
    both = parse(tmp_path, {**SNAPSHOT, "segments": [SEGMENT, {**SEGMENT, "device": 1}]})
    assert both.memory == () and "memory" in {gap.quantity for gap in both.gaps}
    assert [device.index for device in both.devices] == [0, 1]


class Harm:
    """Makes a folder when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("harm",)


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("harm", [Harm(), {1, 2}, 1j, bytearray(b"x"), Path("x")])
def test_what_could_run_something_is_refused_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int, harm: object
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ReportError, match="more than plain data") as refused:
        parse(tmp_path, {**SNAPSHOT, "user_metadata": harm}, protocol)
    assert "json.dump" in refused.value.remedy
    assert not (tmp_path / "harm").exists()


def test_plain_data_of_every_kind_comes_out_as_pickle_gives_it(tmp_path: Path) -> None:
    same = [
        "text",
        -1,
        2**70,
        0.5,
        None,
        True,
        False,
        (),
        (1,),
        (1, 2),
        (1, 2, 3),
        (1, 2, 3, 4),
        {"a": {"b": []}},
        "\u1234" * 300,
    ]
    content = {
        "all": same,
        "again": same,
        7: list(range(3000)),
        "many": {str(number): number for number in range(2000)},
    }
    for protocol in range(6):
        path = tmp_path / f"{protocol}.pickle"
        path.write_bytes(pickle.dumps(content, protocol))
        found, steps = read_plain(path, "torch", "")
        assert found == content == pickle.load(io.BytesIO(path.read_bytes()))
        assert steps > 100
        assert found["all"] is found["again"]


def test_a_file_cut_anywhere_is_an_error_in_one_line(tmp_path: Path) -> None:
    whole = pickle.dumps(SNAPSHOT, 4)
    path = tmp_path / "cut.pickle"
    for end in range(1, len(whole), 7):
        path.write_bytes(whole[:end])
        with pytest.raises(ReportError, match="damaged or cut off"):
            read_plain(path, "torch", "")


@pytest.mark.parametrize(
    "program",
    [
        b"\x80\x04(l.",
        b"\x80\x040.",
        b"\x80\x04(d.",
        b"\x80\x04]N(s.",
        b"\x80\x04h\x05.",
        b"\x80\x04t.",
        b"\x80\x04}(]Nu.",
        b"\x80\x04Na.",
        b"\x80\x04.",
    ],
)
def test_a_nonsensical_program_never_ends_in_a_traceback(tmp_path: Path, program: bytes) -> None:
    path = tmp_path / "odd.pickle"
    path.write_bytes(program)
    try:
        read_plain(path, "torch", "")
    except ReportError as error:
        assert "plain data" in str(error) or "damaged" in str(error)


def test_one_list_named_a_thousand_times_does_not_multiply(tmp_path: Path) -> None:
    many = [event("alloc", 1, 1)] * 1000
    with pytest.raises(ReportError, match="more events than it holds"):
        parse(tmp_path, {**SNAPSHOT, "device_traces": [many] * 1000})


def test_a_real_snapshot_has_its_segments_and_its_curve(reports: Path) -> None:
    path = reports / "torch_memory/magma27_memory_snapshot.pickle"
    content = pickle.loads(path.read_bytes())
    found = parsers.parse(path)
    figures = {(one.moment, one.quantity): one.bytes for one in found.memory}
    assert (
        figures["after", "reserved"]
        == sum(one["total_size"] for one in content["segments"])
        == 14_180_941_824
    )
    assert (
        figures["after", "allocated"]
        == sum(one["allocated_size"] for one in content["segments"])
        == 1_377_753_600
    )
    held = most = sum(one["requested_size"] for one in content["segments"]) - sum(
        {"alloc": 1, "free_completed": -1}.get(one["action"], 0) * one["size"]
        for one in content["device_traces"][0]
    )
    for one in content["device_traces"][0]:
        held += {"alloc": 1, "free_completed": -1}.get(one["action"], 0) * one["size"]
        most = max(most, held)
    assert figures["peak", "requested"] == most < figures["after", "reserved"]
    assert len(list(found.samples)) == 2 * 1721
