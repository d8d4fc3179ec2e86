"""Records written in the dialects of nvidia-smi, DCGM and nvprof come back the same; damaged files
never break a parser."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfctl.parsers import ReportError, parse
from perfctl.records.report import Copy, Kernel, Sample

MIB = 2**20
DATA = Path(__file__).resolve().parent.parent / "data"
FEW = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
EPOCH = datetime(2001, 1, 1, tzinfo=UTC)

UNITS: tuple[Any, ...] = ("%", MIB, MIB, 1, 1, 10**6)
"""Of the columns of a sample, in base units."""
FIELDS = ("gpu_utilization", "fb_used", "fb_total", "power_usage", "gpu_temp", "sm_clock")

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
def test_query_csv_comes_back(
    tmp_path: Path, taken: list[object], nounits: bool, repeat: bool, nothing: str, encoding: str
) -> None:
    samples = samples_of(taken)  # type: ignore[arg-type]
    path = tmp_path / "q.csv"
    path.write_bytes(
        query_csv(samples, nounits=nounits, repeat=repeat, nothing=nothing).encode(encoding)
    )
    assert list(parse(path).samples) == samples


@FEW
@given(rounds, st.permutations(["pwr", "gtemp", "sm", "pclk", "fb", "mem"]), st.booleans())
def test_dmon_comes_back_whatever_the_order_of_its_columns(
    tmp_path: Path, taken: list[object], order: list[str], by_comma: bool
) -> None:
    samples = [
        s._replace(memory_total_bytes=None, power_w=None if s.power_w is None else round(s.power_w))
        for s in samples_of(taken)
    ]  # type: ignore[arg-type]
    # dmon prints whole seconds
    samples = [s._replace(at_ns=s.at_ns // 10**9 * 10**9) for s in samples[:2]]
    part = ", " if by_comma else "   "
    lines = [
        part.join(["#Date", "Time", "gpu", *order]),
        part.join(["#YYYYMMDD", "HH:MM:SS", "Idx", *("-" for _ in order)]),
    ]
    for s in samples:
        share, used, _, power, heat, clock = cells_of(s)
        cells = {"pwr": power, "gtemp": heat, "sm": share, "pclk": clock, "fb": used, "mem": 3}
        moment = datetime.fromtimestamp(s.at_ns / 10**9, UTC)
        shown = ["-" if cells[name] is None else str(cells[name]) for name in order]
        lines.append(
            part.join([f"{moment:%Y%m%d}", f"{moment:%H:%M:%S}", str(s.device_index), *shown])
        )
    path = tmp_path / "d.txt"
    path.write_text("\n".join(lines) + "\n")
    assert list(parse(path).samples) == samples


@FEW
@given(rounds)
def test_dcgm_csv_comes_back_in_the_order_of_time(tmp_path: Path, taken: list[object]) -> None:
    samples = samples_of(taken)  # type: ignore[arg-type]
    lines = ["GPUId,TimeStampUs,Field,Values"]
    for device in (1, 0):
        for s in (s for s in samples if s.device_index == device):
            cells = zip(FIELDS, cells_of(s), strict=True)
            lines += [
                f"{device},{s.at_ns // 1000},{name},{'N/A' if value is None else value}"
                for name, value in cells
            ]
    path = tmp_path / "d.csv"
    path.write_text("\n".join(lines) + "\n")
    found = list(parse(path).samples)
    assert sorted(found, key=lambda s: (s.at_ns, s.device_index)) == samples
    assert [s.at_ns for s in found] == sorted(s.at_ns for s in samples)


names = st.text("abcXYZ_<>(),:*&0123456789~\u202e\"'[]", min_size=1, max_size=40).filter(
    lambda name: not name.startswith("[")
)
launches = st.lists(
    st.tuples(
        names,
        whole(0, 10**12),
        whole(0, 10**9),
        whole(1, 2**31 - 1),
        whole(1, 1024),
        whole(0, 255),
        whole(0, 999),
    ),
    min_size=1,
    max_size=6,
)


def records_of(made: list[tuple[str, int, int, int, int, int, int]]) -> list[Kernel]:
    return [
        Kernel(
            launch=launch,
            name=name,
            device_index=0,
            stream=7,
            grid_x=grid,
            grid_y=2,
            grid_z=1,
            block_x=block,
            block_y=1,
            block_z=1,
            registers=registers,
            static_shared_bytes=shared,
            dynamic_shared_bytes=0,
            start_ns=start,
            duration_ns=duration,
        )
        for launch, (name, start, duration, grid, block, registers, shared) in enumerate(made)
    ]


@FEW
@given(launches, whole(1, 10**6))
def test_an_nvprof_csv_trace_comes_back(
    tmp_path: Path, made: list[tuple[str, int, int, int, int, int, int]], size: int
) -> None:
    kernels = records_of(made)
    text = io.StringIO()
    text.write("==1== NVPROF is profiling process 1, command: x\n==1== Profiling result:\n")
    text.write(
        '"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z","Registers '
        'Per Thread","Static SMem","Dynamic SMem","Size","Device","Context","Stream","Name"\n'
    )
    text.write("ns,us,,,,,,,,B,KB,B,,,,\n")
    rows = csv.writer(text, lineterminator="\n")
    for k in kernels:
        rows.writerow(
            [
                k.start_ns,
                f"{(k.duration_ns or 0) / 1000:.6f}",
                k.grid_x,
                2,
                1,
                k.block_x,
                1,
                1,
                k.registers,
                k.static_shared_bytes,
                "0.000000",
                "",
                "GPU (0)",
                1,
                7,
                k.name + " [12]",
            ]
        )
    rows.writerow([5, "0.010000", *[""] * 9, size, "GPU (0)", 1, 7, "[CUDA memcpy DtoH]"])
    path = tmp_path / "t.csv"
    path.write_text(text.getvalue())
    report = parse(path)
    assert list(report.kernels) == kernels
    assert list(report.copies) == [Copy("DtoH", size, 5, 10, None, 0, 7)]


@FEW
@given(launches)
def test_an_nvprof_text_trace_comes_back(
    tmp_path: Path, made: list[tuple[str, int, int, int, int, int, int]]
) -> None:
    kernels = records_of(made)
    head = (
        "   Start  Duration            Grid Size      Block Size     Regs*    SSMem*    "
        "DSMem*           Device   Context    Stream  Name\n"
    )
    lines = [
        (
            f"{f'{k.start_ns}ns':>8}  {f'{k.duration_ns}ns':>8}  {f'({k.grid_x} 2 1)':>19}  "
            f"{f'({k.block_x} 1 1)':>14}  {k.registers:>8}  {f'{k.static_shared_bytes}B':>8}  "
            f"{'0B':>8}  {'GPU (0)':>15}  {1:>8}  {7:>8}  {k.name} [12]\n"
        )
        for k in kernels
    ]
    path = tmp_path / "t.txt"
    path.write_text(
        "==1== Profiling result:\n" + head + "".join(lines) + "\nRegs: Number of registers\n"
    )
    assert list(parse(path).kernels) == kernels


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
def test_a_damaged_file_is_read_or_refused(
    tmp_path: Path, source: Path, edits: list[tuple[float, bytes, int]]
) -> None:
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
