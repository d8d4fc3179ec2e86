"""Output of nsys stats that is damaged, large or generated: it gives right rows or a ReportError, in
bounded memory."""

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from perfctl.parsers.common.lines import SurroundingLines
from perfctl.parsers.nsys import stats
from perfctl.parsers.nsys.stats_tables import LineSource, read_json_rows
from tests.make.memory import measure_peak
from tests.make.texts import SUMS


def test_a_line_of_many_megabytes_costs_little_memory(tmp_path):
    path = tmp_path / "stats.csv"
    with path.open("w") as file:
        for _ in range(4):
            file.write(f"[1/7] [{'=' * 250}52%   ] x.nsys-rep\r" * 4_000)
        file.write("\n" + SUMS)
    found, peak = measure_peak(lambda: list(stats.parse(path).operations))
    assert [one.name for one in found] == ["gemm"]
    assert peak < path.stat().st_size / 2


TRACE = Path(__file__).resolve().parents[2] / "data" / "nsys" / "stats_traces" / "old.txt"


def test_a_large_trace_is_read_in_little_memory_and_as_often_as_asked(tmp_path):
    path = tmp_path / "trace.csv"
    _, header, launch = TRACE.read_text().splitlines(keepends=True)[:3]
    path.write_text(header + launch * 4_000)

    def count_twice():
        found = stats.parse(path)
        return [sum(1 for _ in found.kernels) for _ in range(2)]

    counts, peak = measure_peak(count_twice)
    assert counts == [4_000] * 2
    assert peak < 3 * 2**19  # as records in a list they take twice as much


def read_array(lines):
    """The objects of an array, and whether it is broken."""
    source = LineSource(iter(lines), SurroundingLines())
    source.read_line()
    return list(read_json_rows(source)), source.log.broken_rows


def test_an_object_that_never_ends_is_given_up_with_bounded_memory():
    read = []

    def lines():
        yield '[{"b": 1},\n'
        for line in range(40):
            read.append(line)
            yield '{"a": "' + "x" * (1 << 16) + "\n"

    source = LineSource(lines(), SurroundingLines())
    source.read_line()
    assert list(read_json_rows(source)) == [{"b": "1"}]
    assert (len(read), source.log.broken_rows) == (16, 1)


@given(
    st.lists(
        st.dictionaries(st.text(max_size=8), st.text() | st.integers() | st.none(), min_size=1),
        max_size=5,
    ),
    st.sampled_from([None, 1, 2]),
)
def test_any_array_of_objects_comes_back_whole(objects, indent):
    text = json.dumps(objects, indent=indent) + "\n"
    wanted = [
        {key: "" if value is None else str(value) for key, value in one.items()} for one in objects
    ]
    assert read_array(text.splitlines(keepends=True)) == (wanted, 0)
