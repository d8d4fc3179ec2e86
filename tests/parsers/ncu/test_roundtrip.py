"""What a small writer puts into ncu's CSV, in any dialect, is what the parser reads out of it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from perfctl.parsers.ncu import csv as ncu_csv
from tests.make.ncu_csv import METRIC, NVTX, UNITS, exact, number

IDENTITY = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name"]
OLD = [*IDENTITY, "Kernel Time", "Context", "Stream", "Section Name"]
NEW = [*IDENTITY, "Context", "Stream", "Block Size", "Grid Size", "Device", "CC", "Section Name"]
RULE = ["Rule Name", "Rule Type", "Rule Description"]
SPEEDUP = ["Estimated Speedup Type", "Estimated Speedup"]
HEADERS = {
    "12": [*OLD, *METRIC],
    "15 rules": [*OLD, *METRIC, *RULE],
    "15 device": [*NEW, *METRIC],
    "20": [*NEW, *METRIC, *RULE, *SPEEDUP],
    "21": [*NEW, "Body Item Label", *METRIC, *RULE, *SPEEDUP],
}
LOG = [
    "epoch 1, loss 0.42",
    '"quoted" words, 1,234',
    "==PROF== Connected to process 42 (/opt/app)",
    "",
    "100%",
]


@dataclass(frozen=True)
class Cell:
    launch: int
    metric: str
    unit: str
    hundredths: int


@dataclass(frozen=True)
class Dialect:
    header: str
    nvtx: bool
    locale: str
    encoding: str
    line_end: str
    before: list[str]
    between: list[str]
    after: list[str]


def write(path: Path, kernels: list[str], cells: list[Cell], dialect: Dialect) -> None:
    header = HEADERS[dialect.header]
    header = [*header[:4], *NVTX, *header[4:]] if dialect.nvtx else header
    rows = []
    for cell in cells:
        row = dict.fromkeys(header, "")
        row |= {
            "ID": str(cell.launch),
            "Process ID": "42",
            "Process Name": "app",
            "Kernel Name": kernels[cell.launch],
        }
        row |= {"Context": "1", "Stream": "7", "Section Name": "Command line profiler metrics"}
        row |= {"Metric Name": cell.metric, "Metric Unit": cell.unit}
        row |= {"Metric Value": number(cell.hundredths, dialect.locale)}
        if "Block Size" in header:
            row |= {
                "Block Size": "(128, 2, 1)",
                "Grid Size": f"({cell.launch + 1}, 1, 1)",
                "Device": "0",
                "CC": "8.0",
            }
        if dialect.nvtx:
            row[NVTX[0]] = f'42  "<default domain>:layer{cell.launch}:forward' + ":none" * 6 + '" '
        ragged = "Rule Name" in header
        row = {name: row[name] for name in header if not ragged or name not in (*RULE, *SPEEDUP)}
        rows.append(
            ",".join('"' + text.replace('"', '""') + '"' for text in row.values())
            + ("," if ragged else "")
        )
    table = [",".join(f'"{name}"' for name in header), *rows[:1], *dialect.between, *rows[1:]]
    text = dialect.line_end.join([*dialect.before, *table, *dialect.after, ""])
    with path.open("w", encoding=dialect.encoding, newline="") as file:
        file.write(text)


dialects = st.builds(
    Dialect,
    header=st.sampled_from(sorted(HEADERS)),
    nvtx=st.booleans(),
    locale=st.sampled_from(["C", "en_US", "de_DE"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    line_end=st.sampled_from(["\n", "\r\n"]),
    before=st.lists(st.sampled_from(LOG), max_size=3),
    between=st.lists(st.sampled_from(LOG), max_size=2),
    after=st.lists(st.sampled_from(LOG), max_size=2),
)
names = st.text(st.sampled_from("abc<>():, \"&;\n'é"), min_size=1, max_size=30).map(
    lambda text: "void k" + text
)
figures = st.one_of(st.integers(0, 10**14), st.integers(0, 10**12).map(lambda whole: whole * 100))
ANCHOR = Cell(0, "anchor", "inst", 123456789)


@st.composite
def reports(draw: st.DrawFn) -> tuple[list[str], list[Cell]]:
    kernels = draw(st.lists(names, min_size=1, max_size=4))
    cells = [ANCHOR]
    for launch in range(len(kernels)):
        metrics = draw(
            st.lists(st.sampled_from(["a__x.sum", "b__y.avg", "Duration"]), min_size=1, max_size=4)
        )
        cells += [
            Cell(launch, name, draw(st.sampled_from(sorted(UNITS.keys() - {"Ghz"}))), draw(figures))
            for name in metrics
        ]
    return kernels, cells


@settings(max_examples=150)
@given(reports(), dialects)
def test_what_is_written_in_a_dialect_is_read_back(report, dialect):
    kernels, cells = report
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.csv"
        write(path, kernels, cells, dialect)
        assert ncu_csv.sniff(path, path.read_bytes()[:65536])
        found = ncu_csv.parse(path)
        counters = list(found.counters)
    assert [kernel.name for kernel in found.kernels] == kernels
    assert [
        (counter.launch, counter.name, (counter.value, counter.unit)) for counter in counters
    ] == [(cell.launch, cell.metric, exact(cell.hundredths, cell.unit)) for cell in cells]
    for kernel in found.kernels:
        assert kernel.layer == (f"layer{kernel.launch}" if dialect.nvtx else None)
        assert kernel.grid_x == (
            kernel.launch + 1 if "Block Size" in HEADERS[dialect.header] else None
        )
        assert kernel.stream == 7
