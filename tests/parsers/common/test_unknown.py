"""A format newer than known is read as far as its columns allow, and one warning names what was
not understood."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.parsers import ReportError, parse
from perfctl.parsers.common.doubts import SOURCE, newer, not_understood, others
from perfctl.records.report import Report
from tests.make.nsys_sqlite import GENERATIONS, NsysBuilder, read, training_step
from tests.make.texts import LONG, SUMS, WIDE
from tests.sample import sample

DATA = Path(__file__).resolve().parents[2] / "data"
STRANGE_REPORT = (
    "Processing [a.sqlite] with [/x/reports/tensor_sum.py]... \nTensor,Heads,Blocks\nq,8,2\n\n"
    "Processing [a.sqlite] with [/x/reports/cuda_gpu_kern_sum.py]... \n"
    + SUMS.replace(",Warp Stalls", "").replace(",4,", ",")
)


def warning(report: Report) -> str:
    """The one warning about what was not understood; "" without one."""
    found = [
        said.text
        for said in report.diagnostics
        if said.source == SOURCE and said.severity == "warning"
    ]
    assert len(found) < 2
    return found[0] if found else ""


def written(folder: Path, name: str, text: str) -> Report:
    path = folder / name
    path.write_text(text)
    return parse(path)


def test_eight_names_are_shown_and_long_ones_end_in_dots() -> None:
    names = [f"c{n}" for n in range(9)]
    eight = "c0, c1, c2, c3, c4, c5, c6, c7"
    assert (
        not_understood({"columns": names[:8]})[0].text
        == f"not understood and left out: columns {eight}"
    )
    (said,) = not_understood({"columns": names, "tables": ["x" * 80, "y" * 81]}, "kept")
    assert (
        said.text
        == f"not understood and kept: columns {eight} and 1 more; tables {'x' * 80}, {'y' * 77}..."
    )
    assert (said.severity, said.source) == ("warning", SOURCE)
    (said,) = not_understood({"columns": [], "tables": ["a\x1b[31m\nb", "a\x1b[31m\nb"]})
    assert said.text == "not understood and left out: tables a [31m b"
    assert not_understood({"columns": [], "tables": ()}) == ()


def test_names_in_none_of_the_lists_are_unknown_and_blank_ones_are_no_names() -> None:
    assert others(["a", " ", "b", "", "c", "a"], {"b"}, ["c"]) == ["a", "a"]


@pytest.mark.parametrize(
    ("version", "is_newer"),
    [
        ("3.24.14", False),
        ("3.25.0", True),
        ("3.9", False),
        ("4.0", True),
        (None, False),
        ("", False),
    ],
)
def test_a_newer_version_alone_is_a_note_and_no_warning(
    version: str | None, is_newer: bool
) -> None:
    found = newer("schema", version, "3.24")
    assert [said.severity for said in found] == ["info"] * is_newer


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("long.csv", LONG, "Cluster Size"),
        ("wide.csv", WIDE, "Cluster Size"),
        ("sums.csv", SUMS, "cuda_gpu_kern_sum.Warp Stalls"),
        ("stats.txt", STRANGE_REPORT, "tensor_sum (Tensor,Heads,Blocks)"),
    ],
)
def test_an_unknown_column_or_table_is_named_and_the_rest_is_read(
    tmp_path: Path, name: str, text: str, named: str
) -> None:
    report = written(tmp_path, name, text)
    assert named in warning(report)
    assert [row.name for row in (*report.kernels, *report.operations)] == ["gemm"]


def test_the_same_columns_without_the_new_one_bring_no_warning(tmp_path: Path) -> None:
    assert (
        warning(
            written(
                tmp_path,
                "long.csv",
                LONG.replace('"Cluster Size",', "").replace('"(2, 1, 1)",', ""),
            )
        )
        == ""
    )
    assert (
        warning(written(tmp_path, "sums.csv", SUMS.replace(",Warp Stalls", "").replace(",4,", ",")))
        == ""
    )


@pytest.mark.parametrize("generation", GENERATIONS)
def test_nsys_exports_of_all_generations_hold_nothing_unknown(
    tmp_path: Path, generation: str
) -> None:
    assert warning(read(training_step(NsysBuilder(generation)), tmp_path)) == ""


def test_unknown_tables_and_columns_of_nsys_count_only_with_data_in_them(tmp_path: Path) -> None:
    builder = training_step(NsysBuilder())
    builder.row("CUPTI_ACTIVITY_KIND_TENSOR_MAP", "start tile", start=1, tile=2)
    path = builder.write(tmp_path / "report.sqlite")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("""CREATE TABLE "odd ""name\'" (a)""")
    assert "CUPTI_ACTIVITY_KIND_TENSOR_MAP" in warning(parse(path))
    assert "odd" not in warning(parse(path))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("""INSERT INTO "odd ""name\'" VALUES (1)""")
    assert "odd" in warning(parse(path))


def test_unknown_columns_of_dlprof_are_named_in_csv_and_json(tmp_path: Path) -> None:
    source = (DATA / "dlprof-synthetic" / "dlprof_op_type.csv").read_text()
    title, names, *rows = source.splitlines()
    text = "\n".join([title, f"{names},Sparsity", *(f"{row},1" for row in rows)]) + "\n"
    assert "op_type.sparsity" in warning(written(tmp_path, "dlprof_op_type.csv", text))
    objects = [
        dict(zip([*names.split(","), "Sparsity"], f"{row},1".split(","), strict=False))
        for row in rows
    ]
    assert "op_type.sparsity" in warning(written(tmp_path, "op_type.json", json.dumps(objects)))


def test_unknown_categories_and_kinds_of_kineto_are_counted(tmp_path: Path) -> None:
    trace = json.loads((DATA / "kineto-synthetic" / "trace.json").read_text())
    kernels = sum(event.get("cat") == "kernel" for event in trace["traceEvents"])
    trace["traceEvents"] += [{"ph": "X", "cat": "gpu_dma", "name": "x", "ts": 1, "dur": 1}] * 3
    trace["traceEvents"] += [
        {"ph": "Z", "cat": "kernel", "name": "x", "ts": 1},
        {"ph": "X", "cat": "ac2g"},
    ]
    report = written(tmp_path, "trace.json", json.dumps(trace))
    assert warning(report).endswith("categories gpu_dma (3 events), ph Z (1 events)")
    assert len(list(report.kernels)) == kernels


def test_unknown_columns_of_monitors_are_named(tmp_path: Path) -> None:
    dmon = (DATA / "nvidia-smi-synthetic" / "dmon.txt").read_text()
    lines = [line + ("  hbmx" if "gpu" in line else "     5") for line in dmon.splitlines()]
    assert "hbmx" in warning(written(tmp_path, "dmon.txt", "\n".join(lines) + "\n"))
    fields = (
        "GPUId,TimeStampUs,Field,Values\n0,1709632800000000,power_usage,70.5\n"
        "0,1709632800000000,qubit_count,5\n"
    )
    assert warning(written(tmp_path, "dcgm.csv", fields)).endswith("fields qubit_count")
    query = (
        "timestamp, utilization.gpu [%], coolant.flow [l/min]\n2024/01/01 00:00:00.000, 5 %, 3 "
        "l/min\n"
    )
    assert "coolant.flow [l/min]" in warning(written(tmp_path, "query.csv", query))


def test_unknown_tables_of_nvprof_are_named(tmp_path: Path) -> None:
    trace = (DATA / "nvprof-synthetic" / "trace.csv").read_text()
    lines = [*trace.splitlines(), "==77== Quantum result:", '"Qubit","Count","Share"', "1,2,3"]
    said = warning(written(tmp_path, "trace.csv", "\n".join(lines) + "\n"))
    assert '"Qubit","Count","Share"' in said


WARNED = {
    "twice.csv",
    "nsysai_h100_2gpu_1s.sqlite",
    "nsysai_mfu_2gpu_after.sqlite",
    "nsysai_mfu_2gpu_before.sqlite",
    "akshay_gpu_usage1.csv",
    "counter_collection.csv",
    "further_processes.txt",
    "lost_counter.csv",
    "lost_launch.csv",
    "lost_op.csv",
    "lost_samples.txt",
    "odd.json",
    "unknown_report.txt",
}
"""Reports whose warning is correct: NVTX payload schemas and tensor sizes are not read, a log that
pauses; and cases with something strange in them."""


@pytest.mark.parametrize("folder", ["own", "real"])
def test_nothing_in_reports_that_are_understood_is_called_unknown(
    folder: str, request: pytest.FixtureRequest
) -> None:
    root = DATA if folder == "own" else request.getfixturevalue("reports")
    wrong = {}
    for path in sample(parsers.find(root), 4):
        try:
            for part in parsers.reports(path):
                if part.report and (said := warning(part.report)) and path.name not in WARNED:
                    wrong[path.name, part.number] = said
        except ReportError:
            continue
    assert wrong == {}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            gzip.compress(b"ID,Process ID\n", mtime=0),
            "it is a gzip-compressed report",
        ),
        ("one,two\n1,2\n".encode("utf-16"), "it is UTF-16 text"),
        (b"one,two\n1,2\n", r"it is not a profiler report\. 'perfctl ingest --help' lists"),
        (gzip.compress(b'{"ids": [1]}', mtime=0), "it is not a profiler report"),
        (
            gzip.compress(b"SQLite format 3\0", mtime=0),
            "it is not a profiler report",
        ),
        (gzip.compress(b"{}", mtime=0)[:12], r"truncated in its first bytes .*\. Copy"),
        (
            gzip.compress(b"{}", mtime=0)[:10] + b"\xff" * 40,
            r"damaged or .* in its first bytes \(Error",
        ),
        (b"\x28\xb5\x2f\xfd" + bytes(range(200)), "compressed with zstd, .*zstd -d"),
        (b"<!DOCTYPE html><html>", "a web page"),
        (bytes(5000), "it begins with zeros"),
    ],
)
def test_what_is_no_report_is_refused_with_what_stands_in_the_way(
    tmp_path: Path, data: bytes, said: str
) -> None:
    path = tmp_path / "file.csv"
    path.write_bytes(data)
    with pytest.raises(ReportError, match=said):
        parse(path)


def test_unknown_words_and_lines_of_nvidia_smi_s_table_are_named(tmp_path: Path) -> None:
    table = (DATA / "nvidia-smi-synthetic" / "table.txt").read_text()
    plain = written(tmp_path, "table.txt", table)
    assert warning(plain) == ""
    third = (
        "|                                         |                      |                  N/A "
        "|\n"
    )
    named = table.replace("GPU-Util  Compute", "GPU-Util Coolant", 1).replace(
        third, third.replace("N/A", "9 l"), 1
    )
    report = written(tmp_path, "table.txt", named)
    assert warning(report).endswith("parts Coolant, 9, l")
    assert report.samples == plain.samples


def test_unknown_columns_of_samples_are_named_whatever_stands_in_them(tmp_path: Path) -> None:
    text = (
        "# perfctl samples 1\nat_ns,device_index,power_w,coolant\n1000,0,70.5,warm\n# readings: 1\n"
    )
    report = written(tmp_path, "samples.csv", text)
    assert warning(report).endswith("columns coolant")
    assert [sample.power_w for sample in report.samples] == [70.5]


def test_unknown_fields_of_a_workload_s_record_are_named_and_the_rest_is_read(
    tmp_path: Path,
) -> None:
    source = DATA / "recorded-cpu" / "nsys" / "b16" / "workload.json"
    plain = parse(source)
    record = json.loads(source.read_text())
    record["weather"] = {"sky": "blue"}
    record["steps"][-1]["mood"] = "good"
    report = written(tmp_path, "workload.json", json.dumps(record))
    assert warning(report).endswith("fields weather, steps.mood")
    assert (report.steps, report.ops, report.memory) == (plain.steps, plain.ops, plain.memory)
    assert warning(plain) == ""
