"""Records written in the dialects of nvidia-smi, DCGM and nvprof come back the same; damaged files
never break a parser."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfctl.parsers import ReportError, parse
from perfctl.records.report import Sample

MIB = 2**20
DATA = Path(__file__).resolve().parent.parent / "data"
FEW = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
EPOCH = datetime(2001, 1, 1, tzinfo=UTC)

UNITS: tuple[Any, ...] = ("%", MIB, MIB, 1, 1, 10**6)
"""Of the columns of a sample, in base units."""

whole = st.integers
readings = st.tuples(
    st.none() | whole(0, 100),  # percent
    st.none() | whole(0, 200_000),  # MiB used
    st.none() | whole(0, 200_000),  # MiB in all
    st.none() | whole(0, 100_000).map(lambda n: n / 100),  # W
    st.none() | whole(-20, 120),  # C
    st.none() | whole(0, 5000),  # MHz
)
rounds = st.lists(st.tuples(whole(0, 3000), readings, readings), min_size=1, max_size=6)


def to_base(number: float | None, unit: Any) -> float | None:
    if number is None or unit == 1:
        return number
    return number / 100 if unit == "%" else number * unit


def from_base(value: float | None, unit: Any) -> float | None:
    if value is None or unit == 1:
        return value
    return round(value * 100) if unit == "%" else value // unit


def samples_of(
    taken: list[tuple[int, tuple[float | None, ...], tuple[float | None, ...]]],
) -> list[Sample]:
    """Two GPUs, read at once; the numbers of each round are milliseconds since the round before."""
    samples, now = [], EPOCH
    for after, *both in taken:
        now += timedelta(milliseconds=after + 1)
        ns = int((now - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1)) * 10**6
        for device, reading in enumerate(both):
            samples.append(Sample(ns, *map(to_base, reading, UNITS), device))  # type: ignore[arg-type]
    return samples


def cells_of(sample: Sample) -> list[float | None]:
    """Return the values in the units that monitors print."""
    return list(map(from_base, sample[1:-1], UNITS))


def query_csv(samples: list[Sample], *, nounits: bool, repeat: bool, nothing: str) -> str:
    head = (
        "timestamp, index, utilization.gpu [%], memory.used [MiB], memory.total [MiB], power.draw "
        "[W], temperature.gpu, clocks.current.sm [MHz]"
    )
    formats = ["{} %", "{} MiB", "{} MiB", "{:.2f} W", "{}", "{} MHz"]
    if nounits:
        formats = [text.partition(" ")[0] for text in formats]
    lines = [] if repeat else [head]
    for s in samples:
        moment = datetime.fromtimestamp(s.at_ns // 10**9, UTC).strftime("%Y/%m/%d %H:%M:%S")
        cells = zip(formats, cells_of(s), strict=True)
        shown = [nothing if value is None else text.format(value) for text, value in cells]
        lines += [head] if repeat else []
        lines.append(
            ", ".join([f"{moment}.{s.at_ns // 10**6 % 1000:03d}", str(s.device_index), *shown])
        )
    return "\n".join(lines) + "\n"


@FEW
@given(
    rounds,
    st.booleans(),
    st.booleans(),
    st.sampled_from(["[N/A]", "[Not Supported]", "N/A"]),
    st.sampled_from(["utf-8", "utf-16"]),
)
def test_query_csv_comes_back(tmp_path, taken, nounits, repeat, nothing, encoding):
    samples = samples_of(taken)  # type: ignore[arg-type]
    path = tmp_path / "q.csv"
    path.write_bytes(
        query_csv(samples, nounits=nounits, repeat=repeat, nothing=nothing).encode(encoding)
    )
    assert list(parse(path).samples) == samples


FILES = sorted(
    path
    for tool in ("nvidia-smi", "dcgm", "nvprof", "dlprof-json")
    for path in DATA.glob(f"{tool}-synthetic/*")
)


@pytest.mark.parametrize("source", FILES, ids=lambda path: path.name)
@FEW
@given(
    edits=st.lists(
        st.tuples(st.floats(0, 1), st.binary(max_size=6), whole(0, 40)), min_size=1, max_size=4
    )
)
def test_a_damaged_file_is_read_or_refused(tmp_path, source, edits):
    data = source.read_bytes()
    for place, new, removed in edits:
        at = int(place * len(data))
        data = data[:at] + new + data[at + removed :]
    path = tmp_path / source.name
    path.write_bytes(data or b" ")
    try:
        report = parse(path)
        bulk = [*report.samples, *report.kernels, *report.copies, *report.operations]
    except ReportError as error:
        assert "\n" not in str(error)
        return
    numbers = [value for record in bulk for value in record if isinstance(value, int)]
    assert all(abs(number) < 2**63 for number in numbers)
