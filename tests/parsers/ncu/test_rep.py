"""Nsight Compute report files: read through NVIDIA's package, in a process that may die
without harm."""

import math

import pytest

from perfctl.parsers.ncu import csv as ncu_csv
from perfctl.parsers.ncu import rep as ncu_rep
from perfctl.parsers.ncu.rep import read_outline
from perfctl.records.errors import ReportError
from tests.make.files import write
from tests.make.ncu_rep import (
    FILE_HEADER,
    MAGIC,
    block,
    number,
    report_bytes,
    session,
    sized,
    varint,
)


def test_a_report_is_recognised_by_its_first_bytes(tmp_path):
    assert ncu_rep.sniff(tmp_path, b"NVR\0\x02\0\0\0")
    assert not ncu_rep.sniff(tmp_path, b"SQLite format 3\0")


def test_without_the_package_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(ncu_rep, "find_spec", lambda name: None)
    with pytest.raises(ReportError, match=r"perfctl\[ncu\]"):
        ncu_rep.parse(write(tmp_path / "a.ncu-rep", report_bytes(block(b"", 1))))


@pytest.mark.parametrize("kept", [4, 6, 9, 12, 18, 30])
def test_a_report_that_is_cut_off_is_refused_before_the_package_sees_it(tmp_path, kept):
    with pytest.raises(ReportError, match="truncated"):
        ncu_rep.parse(write(tmp_path / "cut.ncu-rep", report_bytes(block(b"x" * 20, 1))[:kept]))


def test_bytes_without_structure_behind_the_magic_are_an_error(tmp_path):
    pytest.importorskip("ncu_report")
    for filling in (bytes(1000), b"\xff" * 1000, bytes(range(256)) * 4):
        path = write(tmp_path / "noise.ncu-rep", b"NVR\0" + filling)
        with pytest.raises(ReportError):
            ncu_rep.parse(path)


REAL = {
    "armleth_mlp_report.ncu-rep": (1, "2024.2.1.0", "7.5", 40),
    "cs599k_h100_silu_2025-04-21.ncu-rep": (3, "2025.1.0.0", "8.0", 108),
    "lashi_profile.ncu-rep": (3, "2023.1.0.0", "8.9", 128),
    "matrixMul_profile.nsight-cuprof-report": (8, None, "7.5", 36),
    "montecarlo_profile.ncu-rep": (2, "2020.2.1.0", "8.6", 68),
}


@pytest.mark.parametrize("name", REAL)
def test_real_reports_of_2019_to_2025_open(reports, name):
    pytest.importorskip("ncu_report")
    path = reports / "ncu/rep" / name
    report = ncu_rep.parse(path)
    kernels, version, capability, processors = REAL[name]
    assert len(list(report.kernels)) == kernels == read_outline(path).results
    assert report.tool_version == version
    assert [(device.compute_capability, device.sm_count) for device in report.devices] == [
        (capability, processors)
    ]
    assert {counter.launch for counter in report.counters} == set(range(kernels))


@pytest.mark.parametrize("locale", ["C", "en_US.UTF-8", "de_DE.UTF-8", "C.units_base"])
def test_the_raw_export_of_a_report_agrees_with_the_report_in_every_locale(reports, locale):
    pytest.importorskip("ncu_report")
    truth = {
        (counter.launch, counter.name): counter.value
        for counter in ncu_rep.parse(reports / "ncu/rep/lashi_profile.ncu-rep").counters
        if isinstance(counter.value, int | float) and "[" not in counter.name
    }
    report = ncu_csv.parse(reports / f"ncu/locale_generated/lashi_profile.raw.{locale}.csv")
    compared = 0
    for counter in report.counters:
        expected = truth.get((counter.launch, counter.name))
        if expected is None or counter.value is None:
            continue
        compared += 1
        assert math.isclose(counter.value, expected, rel_tol=1e-3, abs_tol=0.0051), counter
    assert compared > 0.9 * len(truth)


# The blocks of an ncu report file are walked as NVIDIA's .proto files describe them, and a cut


def read(path, content):
    path.write_bytes(MAGIC + content)
    return read_outline(path)


def test_results_are_counted_over_all_blocks_and_payloads_are_not_read(tmp_path):
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


def test_fields_of_every_wire_type_are_stepped_over(tmp_path):
    eight, four = varint(9 << 3 | 1) + b"\xff" * 8, varint(10 << 3 | 5) + b"\xff" * 4
    found = read(
        tmp_path / "r",
        sized(eight + FILE_HEADER) + block(b"abc", 2, extra=four + eight + number(99, 2**63)),
    )
    assert (found.known, found.cut_at, found.results) == (True, None, 2)


def test_every_cut_is_told_with_the_byte_where_its_block_begins(tmp_path):
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
def test_another_layout_is_not_known_and_a_file_of_a_few_bytes_is_cut_off(content, known, tmp_path):
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
def test_a_block_header_that_is_no_message_breaks_the_structure_there(header, tmp_path):
    found = read(tmp_path / "r", sized(FILE_HEADER) + sized(header) + bytes(40))
    assert (found.known, found.cut_at, found.results) == (True, 10, 0)


@pytest.mark.parametrize(
    ("versions", "created", "expected"),
    [
        ({}, None, (None, None)),
        ({}, 0, (None, None)),
        ({}, 1, (None, "1970-01-01T00:00:01+00:00")),
        ({}, 2**32 - 1, (None, "2106-02-07T06:28:15+00:00")),
        ({}, 2**32, (None, None)),
        ({"CUDA Version": "12.2"}, None, (None, None)),
        ({"x": "1", "Nsight Compute": "2024.2.1.0"}, None, ("2024.2.1.0", None)),
    ],
)
def test_the_version_is_that_of_nsight_compute_and_a_date_is_given_where_it_is_one(
    versions, created, expected, tmp_path
):
    found = read(tmp_path / "r", sized(FILE_HEADER) + block(b"", 1, session(versions, created)))
    assert (found.tool_version, found.created_at) == expected
