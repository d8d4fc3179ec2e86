"""Check that perfctl's attribution finds the ranges that ``nsys stats nvtxkernsum`` finds, row
by row.

    python scripts/proof/compare_nvtxkernsum.py EXPORT.sqlite ...

For each export: all ranges around each kernel's launch call by ``perfctl.parsers.attribution``,
summed as nvtxkernsum of nsys 2022.4 defines it, and compared with the output of the installed nsys.
Exits 1 when a row differs.

That definition: push/pop and start/end ranges count where they begin and end on the thread of the
call; a range that never ended ends with the last NVTX event; a name is "domain:text"; a kernel in
two ranges of one name counts in the total twice and in the instances once; kernels in no range have
rows of their own, without name and style.
"""

from __future__ import annotations

import csv
import io
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median, stdev

import numpy as np
import numpy.typing as npt

from perfctl.parsers.attribution import NOBODY, IntervalNest, LaunchCallIndex, SpanArrays
from perfctl.parsers.common.sqlite import Database
from perfctl.parsers.nsys import ranges as nsys_ranges
from perfctl.parsers.nsys.columns import read_integer_columns
from perfctl.parsers.nsys.tables import KERNEL, NVTX, RUNTIME, STRINGS, open_export

Row = tuple[str, ...]
"""The 13 columns of nvtxkernsum as nsys prints them."""
_STYLES = {nsys_ranges.PUSH_POP: "PushPop", nsys_ranges.START_END: "StartEnd"}


def from_sweep(path: Path) -> list[Row]:
    """Rows by perfctl's sweep, sorted. Kernels without a launch call are left out, as there is no
    thread to name."""
    with open_export(path) as database:
        ranges = nsys_ranges.load_range_table(database)
        thread, start, end, correlation = read_integer_columns(
            database, RUNTIME, "globalTid", "start", "end", "correlationId"
        )
        process, launched_by, name, began, ended = read_integer_columns(
            database, KERNEL, "globalPid", "correlationId", "demangledName", "start", "end"
        )
        duration = ended - began
        names = dict(database.read_rows(STRINGS, "id", "value"))
        nest, numbers = _nest_ranges(database, ranges)
    calls = SpanArrays(thread & nsys_ranges.PROCESS_BITS, thread, start, end)
    call = LaunchCallIndex(calls.process, correlation).find_call_index(process, launched_by)
    launches = calls.select_spans(call)
    groups: defaultdict[tuple[str, str, int, str], list[tuple[int, int, int]]] = defaultdict(list)
    texts = _names(ranges)
    kinds = ranges.kind.tolist()
    for depth, level in enumerate(_around(nest, launches)):
        found = numbers[level]
        chosen = (call >= 0) & ((found >= 0) | (depth == 0))
        columns = (
            np.flatnonzero(chosen),
            found[chosen],
            launches.thread[chosen],
            name[chosen],
            duration[chosen],
        )
        for kernel, number, where, called, took in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            label = (texts[number], _STYLES[kinds[number]]) if number >= 0 else ("None", "None")
            groups[(*label, where, str(names[called]))].append((number, kernel, took))
    return _summed(groups)


def from_nsys(path: Path) -> list[Row]:
    """Rows as the installed nsys prints them, sorted. Raises FileNotFoundError without nsys."""
    command = [
        "nsys",
        "stats",
        "-r",
        "nvtxkernsum",
        "--format",
        "csv",
        "--output",
        "-",
        str(path.resolve()),
    ]
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    table = made.stdout[made.stdout.index("NVTX Range,") :]
    return sorted(tuple(row) for row in list(csv.reader(io.StringIO(table)))[1:] if row)


def _nest_ranges(
    database: Database, ranges: nsys_ranges.RangeTable
) -> tuple[IntervalNest, npt.NDArray[np.int64]]:
    """nvtxkernsum's idea of what encloses: start/end ranges too, and an end for every range. The
    numbers are those of the nested ranges, and NOBODY."""
    last = database.connection.execute(
        f"SELECT max(max(start), max(coalesce(end, start))) FROM {NVTX}"
    ).fetchone()[0]
    spans = ranges.spans
    elsewhere = (
        f"SELECT start FROM {NVTX} WHERE eventType = {nsys_ranges.START_END} AND endGlobalTid IS "
        "NOT NULL"
    )
    moved = np.array([start for (start,) in database.connection.execute(elsewhere)], np.int64)
    start_end = (ranges.kind == nsys_ranges.START_END) & ~np.isin(spans.start, moved)
    numbers = np.flatnonzero((ranges.kind == nsys_ranges.PUSH_POP) | start_end)
    ends = np.minimum(spans.end, last)
    nest = IntervalNest(spans.thread[numbers], spans.start[numbers], ends[numbers])
    return nest, np.append(numbers, NOBODY)


def _around(nest: IntervalNest, launches: SpanArrays) -> Iterator[np.ndarray]:
    """Never empty: the first says where there is no range at all."""
    places = nest.find_last_started_positions(launches.thread, launches.start)
    found = list(nest.iterate_outwards(places, launches.end))
    yield from found or [np.full(len(launches.start), NOBODY)]


def _names(ranges: nsys_ranges.RangeTable) -> list[str]:
    columns = (ranges.spans.process.tolist(), ranges.domain.tolist(), ranges.name.tolist())
    found = []
    for process, domain, name in zip(*columns, strict=True):
        label = ranges.domains.get((process, domain))
        found.append(f"{label}:{ranges.names[name]}" if label else ranges.names[name])
    return found


def _summed(
    groups: defaultdict[tuple[str, str, int, str], list[tuple[int, int, int]]],
) -> list[Row]:
    """Rounded by SQLite, as nsys does it."""
    rounding = sqlite3.connect(":memory:")
    rows = []
    for (label, style, thread, kernel), members in groups.items():
        took = [item[2] for item in members]
        instances = len({item[0] for item in members if item[0] >= 0})
        spread = stdev(took) if len(took) > 1 else 0.0
        values = (sum(took) / len(took), median(took), spread)
        mean, middle, deviation = rounding.execute(
            "SELECT round(?, 1), round(?, 1), round(?, 1)", values
        ).fetchone()
        pid, tid = (thread >> 24) & 0xFFFFFF, thread & 0xFFFFFF
        counts = (pid, tid, instances, len({item[1] for item in members}), sum(took))
        cells = (label, style, *counts, mean, middle, min(took), max(took), deviation, kernel)
        rows.append(tuple(str(cell) for cell in cells))
    rounding.close()
    return sorted(rows)


def main(paths: list[str]) -> int:
    """Print one line per export; return 1 when any differs."""
    if not paths or shutil.which("nsys") is None:
        print(
            "usage: compare_nvtxkernsum.py EXPORT.sqlite ... (nsys must be installed)",
            file=sys.stderr,
        )
        return 2
    differs = False
    for path in map(Path, paths):
        began = time.process_time()
        mine = from_sweep(path)
        took = time.process_time() - began
        theirs = from_nsys(path)
        differs |= mine != theirs
        said = "equal" if mine == theirs else f"{len(set(mine) ^ set(theirs))} rows differ"
        print(
            f"{path}: {len(mine)} rows here in {took:.1f} s of CPU, {len(theirs)} in nvtxkernsum: "
            f"{said}"
        )
        for row in sorted(set(mine) ^ set(theirs))[:4]:
            print("   ", "here" if row in mine else "nsys", row)
    return int(differs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
