"""``nsys stats --format tsv`` and ``json`` say what ``csv`` says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfctl.parsers.common.lines import Log
from perfctl.parsers.nsys.stats_tables import Source, Trouble, read_objects
from perfctl.records.report import Report
from tests.parsers.nsys_stats_read import KERNELS, SUM, read
from tests.parsers.nsys_stats_writer import csv_table, processing

_TRACE = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem "
    "(MB),Bytes (MB),Throughput (MBps),SrcMemKd,DstMemKd,Device,Ctx,Strm,Name"
)
TRACE = _TRACE.split(",")
LAUNCHES = [
    [
        "10",
        "5",
        "1",
        "2",
        "3",
        "4",
        "32",
        "2",
        "1",
        "40",
        "0.001",
        "0.0",
        "",
        "",
        "",
        "",
        "A100 (0)",
        "1",
        "7",
        "gemm",
    ],
    [
        "20",
        "5",
        "2",
        *["None"] * 9,
        "4.096",
        "1.5",
        "Pageable",
        "Device",
        "A100 (0)",
        "1",
        "7",
        "[CUDA memcpy HtoD]",
    ],
]


def tsv_table(columns: list[str], rows: list[list[str]]) -> str:
    return "\n".join("\t".join(row) for row in (columns, *rows)) + "\n\n"


def json_table(columns: list[str], rows: list[list[str]], indent: int | None = 2) -> str:
    """Numbers as numbers, the others as texts, as nsys 2022.4 writes them."""

    def cell(text: str) -> object:
        return (
            float(text)
            if "." in text and text[0].isdigit()
            else int(text)
            if text.isdigit()
            else text
        )

    objects = [{name: cell(text) for name, text in zip(columns, row, strict=True)} for row in rows]
    return json.dumps(objects, indent=indent) + "\n\n"


def facts(report: Report) -> list[object]:
    return [
        list(report.kernels),
        list(report.copies),
        list(report.operations),
        report.summaries,
        report.gaps,
    ]


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize(("columns", "rows"), [(SUM, KERNELS), (TRACE, LAUNCHES)])
@pytest.mark.parametrize("form", ["TSV", "JSON", "JSON in one line"])
def test_the_same_table_reads_the_same_in_every_format(
    tmp_path: Path, form: str, columns: list[str], rows: list[list[str]], announced: bool
) -> None:
    report = "cuda_gpu_kern_sum" if columns == SUM else "cuda_gpu_trace"
    before = processing(report) if announced else ""
    written = {
        "TSV": tsv_table(columns, rows),
        "JSON": json_table(columns, rows),
        "JSON in one line": json_table(columns, rows, None),
    }[form]
    expected = read(tmp_path, before + csv_table(columns, rows), "stats.csv")
    found = read(tmp_path, before + written, "stats.out")
    assert found.form == f"nsys stats, {form.partition(' ')[0]}"
    assert facts(found) == facts(expected)


def test_reports_of_one_call_follow_each_other(tmp_path: Path) -> None:
    parts = [
        processing("cuda_gpu_kern_sum"),
        json_table(SUM, KERNELS),
        processing("nvtx_sum"),
        "SKIPPED: a.sqlite does not contain NV Tools Extension (NVTX) data.\n\n",
        processing("cuda_gpu_trace"),
        json_table(TRACE, LAUNCHES),
    ]
    report = read(tmp_path, "".join(parts), "all.json")
    assert (len(report.operations), len(list(report.kernels)), len(list(report.copies))) == (
        2,
        1,
        1,
    )  # type: ignore[arg-type]
    assert any(gap.quantity == "range" for gap in report.gaps)


def test_an_array_that_breaks_off_keeps_its_whole_objects_and_says_so(tmp_path: Path) -> None:
    whole = json_table(SUM, KERNELS)
    report = read(tmp_path, whole[: whole.rindex("}") - 20], "cut.json")
    assert [row.name for row in report.operations] == [KERNELS[0][-1]]
    assert any(gap.state == "unreadable" for gap in report.gaps)


def read_array(lines: list[str]) -> tuple[list[dict[str, str]], int]:
    """The objects of an array, and whether it is broken."""
    source, trouble = Source(iter(lines), Log()), Trouble()
    source.read()
    return list(read_objects(source, trouble)), trouble.rows


def test_an_object_that_never_ends_is_given_up_with_bounded_memory() -> None:
    read = []

    def lines() -> Iterator[str]:
        yield '[{"b": 1},\n'
        for number in range(40):
            read.append(number)
            yield '{"a": "' + "x" * (1 << 16) + "\n"

    trouble = Trouble()
    source = Source(lines(), Log())
    source.read()
    assert list(read_objects(source, trouble)) == [{"b": "1"}]
    assert (len(read), trouble.rows) == (16, 1)


@given(
    st.lists(
        st.dictionaries(st.text(max_size=8), st.text() | st.integers() | st.none(), min_size=1),
        max_size=5,
    ),
    st.sampled_from([None, 1, 2]),
)
def test_any_array_of_objects_comes_back_whole(
    objects: list[dict[str, object]], indent: int | None
) -> None:
    text = json.dumps(objects, indent=indent) + "\n"
    wanted = [
        {key: "" if value is None else str(value) for key, value in one.items()} for one in objects
    ]
    assert read_array(text.splitlines(keepends=True)) == (wanted, 0)
