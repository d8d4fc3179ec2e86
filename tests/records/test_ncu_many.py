"""Files of ncu that are too long to keep: parts of their cells go to a temporary file, and nothing
changes by that."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from perfctl.parsers.ncu import builder
from perfctl.parsers.ncu import csv as ncu_csv
from perfctl.records.errors import ReportError

LAUNCHES, METRICS = 60, 9
HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Section Name",'
)
LAST = '"Metric Name","Metric Unit","Metric Value"\n'


def value(launch: int, metric: int) -> str:
    """Grouped by commas from the fortieth launch on only: the style of the first parts is known at
    the end."""
    if metric == 8 and launch % 7 == 0:
        return "n/a"
    return f"{launch * 100 + metric:,}" if metric else f"{launch}.5"


def long_page(path: Path) -> Path:
    with path.open("w") as file:
        file.write(HEADER + LAST)
        for launch in range(LAUNCHES):
            for metric in range(METRICS):
                unit = "Kbyte" if metric == 0 else "inst"
                file.write(f'"{launch}","7","app","host","kernel_{launch % 3}","1","7","Section",')
                file.write(f'"metric_{metric}","{unit}","{value(launch, metric)}"\n')
            file.write(f'"{launch}","7","app","host","kernel_{launch % 3}","1","7","Section",')
            file.write(f'"gpu__time_duration.sum","usecond","{launch + 1}.25"\n')
    return path


def wide_page(path: Path) -> Path:
    with path.open("w") as file:
        names = [*(f"metric_{metric}" for metric in range(METRICS)), "gpu__time_duration.sum"]
        units = ["Kbyte", *["inst"] * (METRICS - 1), "usecond"]
        identity = ["ID", "Process ID", "Kernel Name"]
        file.write(",".join(f'"{name}"' for name in (*identity, *names)) + "\n")
        file.write(",".join(f'"{unit}"' for unit in ("", "", "", *units)) + "\n")
        for launch in range(LAUNCHES):
            cells = [
                str(launch),
                "7",
                f"kernel_{launch % 3}",
                *(value(launch, metric) for metric in range(METRICS)),
            ]
            file.write(",".join(f'"{cell}"' for cell in (*cells, f"{launch + 1}.25")) + "\n")
    return path


@pytest.mark.parametrize("page", [long_page, wide_page])
@pytest.mark.parametrize(("texts", "cells"), [(20, 10**9), (10**9, 25)])
def test_a_file_whose_cells_were_put_away_gives_what_it_gives_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: object, texts: int, cells: int
) -> None:
    assert callable(page)
    path = page(tmp_path / "report.csv")
    whole = ncu_csv.parse(path)
    monkeypatch.setattr(builder, "PART_TEXTS", texts)
    monkeypatch.setattr(builder, "PART_CELLS", cells)
    parts = ncu_csv.parse(path)
    assert list(parts.counters) == list(whole.counters)
    assert list(parts.counters) == list(parts.counters), "they can be read twice"
    assert (parts.kernels, parts.devices, parts.gaps) == (whole.kernels, whole.devices, whole.gaps)
    found = list(parts.counters)
    assert len(found) == LAUNCHES * (METRICS + 1)
    assert {row.name: row.value for row in found if row.launch == 41} == {
        "metric_0": 41500,
        **{f"metric_{metric}": 4100 + metric for metric in range(1, METRICS)},
        "gpu__time_duration.sum": 42250,
    }
    assert [row.launch for row in found if row.value is None] == list(range(0, LAUNCHES, 7))
    assert [kernel.duration_ns for kernel in parts.kernels] == [
        1000 * launch + 1250 for launch in range(LAUNCHES)
    ]


def test_a_temporary_folder_without_room_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "PART_CELLS", 25)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))
    with pytest.raises(ReportError, match=r"not there.*TMPDIR"):
        ncu_csv.parse(long_page(tmp_path / "report.csv"))


def test_what_fits_into_memory_needs_no_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))
    assert len(list(ncu_csv.parse(long_page(tmp_path / "report.csv")).counters)) == LAUNCHES * (
        METRICS + 1
    )


def test_more_launches_than_fit_into_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "MAX_LAUNCHES", 20)
    with pytest.raises(ReportError, match=r"more than 20 launches.*[Ss]plit"):
        ncu_csv.parse(long_page(tmp_path / "report.csv"))
