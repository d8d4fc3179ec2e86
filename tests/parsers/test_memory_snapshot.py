"""Memory snapshots of PyTorch: read without running anything, the curve worked out backwards from
the end."""

import io
import json
import os
import pickle
from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.parsers.allocator import AllocatorReading, downsample_keeping_peaks
from perfctl.parsers.common.plain_pickle import read_plain_pickle_and_step_count
from perfctl.records.errors import ReportError
from tests.make.files import read, write
from tests.make.memory import measure_peak

JSON = Path(__file__).resolve().parents[1] / "data" / "memory_snapshot" / "snapshot.json"
SNAPSHOT = json.loads(JSON.read_text())


def parse(folder, content, protocol=4):
    return read(folder, pickle.dumps(content, protocol))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_gives_what_the_same_as_json_gives(tmp_path, protocol):
    other, found = parse(tmp_path, SNAPSHOT, protocol), parsers.parse(JSON)
    assert (found.memory, list(found.samples), found.summaries) == (
        other.memory,
        list(other.samples),
        other.summaries,
    )


def test_a_pickle_may_be_a_list_of_segments_alone(tmp_path):
    alone = parsers.parse(JSON.with_name("without_events.json"))
    assert parse(tmp_path, SNAPSHOT["segments"]).memory == alone.memory != ()


class Harm:
    """Makes a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("harm",)


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("harm", [Harm(), {1, 2}, 1j, bytearray(b"x"), Path("x")])
def test_what_could_run_something_is_refused_and_runs_nothing(
    tmp_path, monkeypatch, protocol, harm
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ReportError, match="more than plain data") as refused:
        parse(tmp_path, {**SNAPSHOT, "user_metadata": harm}, protocol)
    assert "json.dump" in refused.value.remedy
    assert not (tmp_path / "harm").exists()


def test_plain_data_of_every_kind_comes_out_as_pickle_gives_it(tmp_path):
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
        path = write(tmp_path / f"{protocol}.pickle", pickle.dumps(content, protocol))
        found, steps = read_plain_pickle_and_step_count(path, "torch", "")
        assert found == content == pickle.load(io.BytesIO(path.read_bytes()))
        assert steps > 100
        assert found["all"] is found["again"]


def test_a_file_cut_anywhere_is_an_error_in_one_line(tmp_path):
    whole = pickle.dumps(SNAPSHOT, 4)
    path = tmp_path / "cut.pickle"
    for end in range(1, len(whole), 7):
        path.write_bytes(whole[:end])
        with pytest.raises(ReportError, match="damaged or truncated"):
            read_plain_pickle_and_step_count(path, "torch", "")


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
def test_a_nonsensical_program_never_ends_in_a_traceback(tmp_path, program):
    try:
        read_plain_pickle_and_step_count(write(tmp_path / "odd.pickle", program), "torch", "")
    except ReportError as error:
        assert "plain data" in str(error) or "damaged" in str(error)


def test_one_list_named_a_thousand_times_does_not_multiply(tmp_path):
    many = SNAPSHOT["device_traces"][0][:1] * 1000
    with pytest.raises(ReportError, match="more events than it contains"):
        parse(tmp_path, {**SNAPSHOT, "device_traces": [many] * 1000})


def test_a_long_curve_is_thinned_and_keeps_its_peaks():
    readings = [AllocatorReading(at, at * 7919 % 1000, at * 104_729 % 997) for at in range(50_000)]
    readings[31_111] = AllocatorReading(31_111, 5000, 1)
    kept = downsample_keeping_peaks(list(readings), 100)
    assert len(kept) <= 100
    assert kept == sorted(kept)
    assert set(kept) <= set(readings)
    assert max(size for _, size, _ in kept if size is not None) == 5000
    assert max(size for _, _, size in kept if size is not None) == max(
        size for _, _, size in readings if size is not None
    )


def test_a_pickle_that_states_a_text_of_two_gigabytes_takes_no_memory_for_it(tmp_path):
    path = write(
        tmp_path / "s.pickle",
        b"\x80\x04}\x8d" + (2 << 30).to_bytes(8, "little") + b"segments total_size",
    )

    def refuse():
        with pytest.raises(ReportError, match="damaged or truncated"):
            parsers.parse(path)

    assert measure_peak(refuse)[1] < 64 << 20
