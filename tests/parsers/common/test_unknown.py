"""A format newer than known is read as far as its columns allow, and one warning names what was
not understood."""

import gzip
import json
from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.parsers import ReportError
from perfctl.parsers.common.doubts import (
    SOURCE,
    list_unknown_names,
    make_newer_version_note,
    make_unknown_names_warning,
)
from tests.make.files import read
from tests.make.texts import SUMS
from tests.sample import sample

DATA = Path(__file__).resolve().parents[2] / "data"
STRANGE_REPORT = (
    "Processing [a.sqlite] with [/x/reports/tensor_sum.py]... \nTensor,Heads,Blocks\nq,8,2\n\n"
    "Processing [a.sqlite] with [/x/reports/cuda_gpu_kern_sum.py]... \n"
    + SUMS.replace(",Warp Stalls", "").replace(",4,", ",")
)


def warning(report):
    """The one warning about what was not understood; "" without one."""
    found = [
        said.text
        for said in report.diagnostics
        if said.source == SOURCE and said.severity == "warning"
    ]
    assert len(found) < 2
    return found[0] if found else ""


def read_data(name):
    return (DATA / name).read_text()


def test_eight_names_are_shown_and_long_ones_end_in_dots():
    names = [f"c{n}" for n in range(9)]
    eight = "c0, c1, c2, c3, c4, c5, c6, c7"
    assert (
        make_unknown_names_warning({"columns": names[:8]})[0].text
        == f"not understood and left out: columns {eight}"
    )
    (said,) = make_unknown_names_warning({"columns": names, "tables": ["x" * 80, "y" * 81]}, "kept")
    assert (
        said.text
        == f"not understood and kept: columns {eight} and 1 more; tables {'x' * 80}, {'y' * 77}..."
    )
    assert (said.severity, said.source) == ("warning", SOURCE)
    (said,) = make_unknown_names_warning(
        {"columns": [], "tables": ["a\x1b[31m\nb", "a\x1b[31m\nb"]}
    )
    assert said.text == "not understood and left out: tables a [31m b"
    assert make_unknown_names_warning({"columns": [], "tables": ()}) == ()


def test_names_in_none_of_the_lists_are_unknown_and_blank_ones_are_no_names():
    assert list_unknown_names(["a", " ", "b", "", "c", "a"], {"b"}, ["c"]) == ["a", "a"]


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
def test_a_newer_version_alone_is_a_note_and_no_warning(version, is_newer):
    found = make_newer_version_note("schema", version, "3.24")
    assert [said.severity for said in found] == ["info"] * is_newer


def make_strange():
    """Yield name and text of a report of each format with something that no list has, and how the
    warning ends."""
    yield "sums.csv", SUMS, "columns cuda_gpu_kern_sum.Warp Stalls"
    yield "stats.txt", STRANGE_REPORT, "tables tensor_sum (Tensor,Heads,Blocks)"
    trace = json.loads(read_data("kineto-synthetic/trace.json"))
    trace["traceEvents"] += [{"ph": "X", "cat": "gpu_dma", "name": "x", "ts": 1, "dur": 1}] * 3
    trace["traceEvents"] += [
        {"ph": "Z", "cat": "kernel", "name": "x", "ts": 1},
        {"ph": "X", "cat": "ac2g"},
    ]
    yield "trace.json", json.dumps(trace), "categories gpu_dma (3 events), ph Z (1 events)"
    lines = read_data("nvidia-smi-synthetic/dmon.txt").splitlines()
    dmon = [line + ("  hbmx" if "gpu" in line else "     5") for line in lines]
    yield "dmon.txt", "\n".join([*dmon, ""]), "hbmx"
    fields = "GPUId,TimeStampUs,Field,Values\n0,1709632800000000,power_usage,70.5\n"
    yield "dcgm.csv", f"{fields}0,1709632800000000,qubit_count,5\n", "fields qubit_count"
    query = "timestamp, utilization.gpu [%], coolant.flow [l/min]\n"
    query += "2024/01/01 00:00:00.000, 5 %, 3 l/min\n"
    yield "query.csv", query, "coolant.flow [l/min]"
    quantum = '==77== Quantum result:\n"Qubit","Count","Share"\n1,2,3\n'
    trace_csv = read_data("nvprof-synthetic/trace.csv").rstrip("\n")
    yield "nvprof.csv", f"{trace_csv}\n{quantum}", '"Qubit","Count","Share"'
    samples = "# perfctl samples 1\nat_ns,device_index,power_w,coolant\n1000,0,70.5,warm\n"
    yield "samples.csv", f"{samples}# readings: 1\n", "columns coolant"


STRANGE = {name: (text, named) for name, text, named in make_strange()}


@pytest.mark.parametrize("name", STRANGE)
def test_what_no_list_has_is_named_and_the_rest_is_read(tmp_path, name):
    text, named = STRANGE[name]
    report = read(tmp_path, text, name)
    assert warning(report).endswith(named)
    rows = (report.kernels, report.operations, report.summaries, report.samples, report.steps)
    assert any(list(part) for part in rows)


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
    "columns.csv",
    "four_columns.txt",
    "odd.json",
    "processes.txt",
    "unknown_report.txt",
}
"""Reports whose warning is correct: NVTX payload schemas and tensor sizes are not read, a log that
pauses; and cases with something strange in them."""


@pytest.mark.parametrize("folder", ["own", "real"])
def test_nothing_in_reports_that_are_understood_is_called_unknown(folder, request):
    root = DATA if folder == "own" else request.getfixturevalue("reports")
    wrong = {}
    for path in sample(parsers.find_report_paths(root), 4):
        try:
            for part in parsers.parse_every_run(path):
                if part.report and (said := warning(part.report)) and path.name not in WARNED:
                    wrong[path.name, part.number] = said
        except ReportError:
            continue
    assert wrong == {}


XPLANE = b"\n\x9a\x01\x08\x01\x12\x09/host:CPU\x1a\x40"
GZIPPED = gzip.compress(b"{}", mtime=0)
NOT_READ = "XPlane file of JAX or TensorFlow"


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        *(
            ("file.csv", data, said)
            for data, said in (
                (gzip.compress(b"ID,Process ID\n", mtime=0), "it is a gzip-compressed report"),
                ("one,two\n1,2\n".encode("utf-16"), "it is UTF-16 text"),
                (b"one,two\n1,2\n", r"it is not a profiler report\. 'perfctl ingest --help' lists"),
                (gzip.compress(GZIPPED, mtime=0), "it is a gzip-compressed report"),
                (gzip.compress(b'{"ids": [1]}', mtime=0), "it is not a profiler report"),
                (gzip.compress(b"SQLite format 3\0", mtime=0), "it is not a profiler report"),
                (GZIPPED[:12], r"truncated in its first bytes .*\. Copy"),
                (GZIPPED[:10] + b"\xff" * 40, r"damaged or .* in its first bytes \(Error"),
                (b"\x28\xb5\x2f\xfd" + bytes(range(200)), "compressed with zstd, .*zstd -d"),
                (b"<!DOCTYPE html><html>", "a web page"),
                (bytes(5000), "it begins with zeros"),
            )
        ),
        ("host.xplane.pb", b"\n\x02\x08\x01", f"{NOT_READ}.*trace_viewer"),
        ("host.pb", XPLANE, NOT_READ),
        ("host.xplane.riegeli", b"\x83\xaf", NOT_READ),
        ("1_results.pftrace", b"\n\x10\x08\x01", "Perfetto trace.*rocprofv3 --output-format rocpd"),
        ("cuda.nsys-analysis", b'{"RecipeName": "x"}', "result of nsys recipe.*reports themselves"),
        ("all_stats.csv", b"Text,Count,Mean,Std,Min\n", "table of nsys recipe"),
        ("StringIds.arrow", b"ARROW1\0\0", "one table in the Parquet or Arrow format"),
    ],
)
def test_what_is_no_report_is_refused_with_what_it_is(tmp_path, name, data, said):
    with pytest.raises(ReportError, match=said):
        read(tmp_path, data, name)
