"""Text reports that were cut off anywhere or damaged: nothing is read that the whole one does not
state, or they are refused in one line."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfctl.parsers import ReportError, nvprof, parse
from perfctl.parsers.monitors import dcgm, nvidia_smi
from perfctl.parsers.ncu import csv as ncu_csv
from perfctl.parsers.ncu import text as ncu_text
from perfctl.parsers.nsys import stats as nsys_stats
from tests.make import dlprof, rocpd
from tests.make.files import read, write
from tests.make.ncu_csv import HEADER
from tests.make.nsys_sqlite import NsysBuilder, training_step

DATA = Path(__file__).resolve().parents[1] / "data"
FILES = {
    str(path.relative_to(DATA)): path
    for pattern in (
        "ncu/long/identity.csv",
        "ncu/text-layouts/*.txt",
        "nsys/stats_formats/kernels.*",
        "nsys/stats_sums/kernels*.txt",
        *(f"{tool}-synthetic/*" for tool in ("nvidia-smi", "dcgm", "nvprof", "dlprof-json")),
    )
    for path in sorted(DATA.glob(pattern))
    if path.name not in ("expected.json", "SYNTHETIC.txt")
}
EVERY = 7
"""A text is cut after so many bytes, and around everything that separates cells."""


def cuts(content):
    """Yield lengths below that of the text, in order."""
    for length in range(1, len(content)):
        around = content[length - 1 : length + 1].decode("latin-1")
        if length % EVERY == 0 or (not around.isalnum() and around.strip(" -")):
            yield length


def read_rows(report):
    names = ("kernels", "copies", "counters", "operations", "samples")
    return {name: rows for name in names if (rows := list(getattr(report, name)))}


# pmon's figures of a device are sums over its processes
@pytest.mark.parametrize("name", [name for name in FILES if not name.endswith("pmon.txt")])
def test_a_cut_report_gives_the_first_rows_and_no_other_number_or_an_error(tmp_path, name):
    content = FILES[name].read_bytes()
    whole = read_rows(parse(FILES[name]))
    samples = {(row.at_ns, row.device_index): row for row in whole.get("samples", ())}
    path = tmp_path / FILES[name].name
    for length in cuts(content):
        path.write_bytes(content[:length])
        try:
            report = parse(path)
        except ReportError:
            continue
        for kind, found in read_rows(report).items():
            expected = whole[kind][: len(found)]
            if kind == "samples":
                expected = [samples[row.at_ns, row.device_index] for row in found]
            if ("operation.name", "ambiguous") in {gap[:2] for gap in report.gaps}:
                assert expected[-1].name.startswith(found[-1].name)
                found[-1] = found[-1]._replace(name=expected[-1].name)
            if kind in ("samples", "kernels"):  # of the last one not everything may be there
                expected = [
                    row._make(
                        None if cell is None else fact
                        for cell, fact in zip(row, facts, strict=True)
                    )
                    for row, facts in zip(found, expected, strict=True)
                ]
            assert found == expected, length


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(
        st.tuples(st.floats(0, 1), st.binary(max_size=6), st.integers(0, 40)),
        min_size=1,
        max_size=4,
    )
)
def test_a_damaged_report_is_read_or_refused(tmp_path, name, edits):
    data = FILES[name].read_bytes()
    for place, new, removed in edits:
        at = int(place * len(data))
        data = data[:at] + new + data[at + removed :]
    path = write(tmp_path / FILES[name].name, data or b" ")
    try:
        rows = [row for rows in read_rows(parse(path)).values() for row in rows]
    except ReportError as error:
        assert "\n" not in str(error)
        return
    numbers = [cell for row in rows for cell in row if isinstance(cell, int)]
    assert all(abs(number) < 2**63 for number in numbers)
    assert all(row.calls >= 0 for row in rows if hasattr(row, "calls"))


@pytest.mark.parametrize("module", [dcgm, ncu_csv, ncu_text, nsys_stats, nvidia_smi, nvprof])
@pytest.mark.parametrize(
    "text",
    [
        *("", "\n", "x", "-- --\n", "-" * 999, "NUL\0\0\n", '"\n' * 50),
        *(HEADER, HEADER[:60], HEADER[:-1] + "\n\n"),
        *("    Section: S\n", "==PROF== Connected\n    Section: S\n"),
        *("Processing [a] with [gpukernsum.py]... \n", "Time (%),Total Time (ns),Insta"),
    ],
)
def test_a_text_without_a_row_is_refused_by_every_reader(tmp_path, module, text):
    with pytest.raises(ReportError):
        module.parse(write(tmp_path / "report.txt", text))


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.999])
@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (training_step(NsysBuilder()).write, "nsys export --type sqlite"),
        (dlprof.made, "let dlprof make it again"),
        (rocpd.made, "let the profiler write it again"),
    ],
)
def test_a_cut_database_is_refused_with_what_to_do(tmp_path, make, remedy, kept):
    path = make(tmp_path / "report.sqlite")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(ReportError, match=f"truncated: only .* of .* bytes .*{remedy}") as refused:
        parse(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "whole", [DATA / "dlprof-json-synthetic/dlprof_all.json", DATA / "rocm/json/process.json"]
)
@pytest.mark.parametrize("kept", [200, 900, -3])
def test_cut_json_is_refused(tmp_path, whole, kept):
    with pytest.raises(ReportError, match="the JSON is incomplete"):
        read(tmp_path, whole.read_bytes().rstrip()[:kept])
