"""What results of an ncu report become, as a stand-in for NVIDIA's package gives them: launches,
counters, devices, gaps."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from collections import Counter as Tally
from types import ModuleType
from typing import Any

import pytest

from perfctl.parsers import ReportError
from perfctl.parsers.ncu import rep, rep_worker
from perfctl.parsers.ncu import rep as ncu_rep
from perfctl.records.report import Counter, Device, Diagnostic, Gap, Kernel
from tests.make import ncu_package
from tests.make.files import write
from tests.make.ncu_package import Action, Results
from tests.make.ncu_rep import MAGIC, block, number, piece, report_bytes, session, sized


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Writes a report and what the package gives of it (an int: the code it ends with), and
    parses it."""
    site = tmp_path / "site"
    site.mkdir()
    shutil.copy(ncu_package.__file__, site / "ncu_report.py")
    monkeypatch.delitem(sys.modules, "ncu_report", raising=False)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))

    def make(records, results, created=None, **versions):
        (site / "results.json").write_text(json.dumps(records))
        path = tmp_path / "a.ncu-rep"
        named = {name.replace("_", " "): text for name, text in versions.items()}
        process = piece(6, number(1, 42))
        path.write_bytes(report_bytes(block(b"", results, session(named, created), process)))
        return ncu_rep.parse(path)

    return make


FIRST = {
    "names": ["gemm(int)", "gemm"],
    "ranges": ["perfctl:step:4", "fc1:forward"],
    "metrics": {
        "gpu__time_duration.sum": ["ns", 6750.0],
        "launch__device_id": ["", 1],
        "launch__grid_dim_x": ["", 64],
        "launch__registers_per_thread": ["register/thread", 40],
        "device__attribute_display_name": ["", "GPU B"],
        "dram__bytes.sum": ["Kbyte", 3],
        "ratio": ["Kbyte", 0.0005],
        "absent": ["inst", None],
    },
}
SECOND = {
    "names": ["relu(int)", None],
    "metrics": {
        "launch__stream_id": ["", 13],
        "device__attribute_display_name": ["", "GPU A"],
        "dram__bytes.sum": ["byte", 5],
        "absent": ["inst", None],
    },
}
THIRD = SECOND | {"names": ["pool(int)", "pool"], "ranges": ["perfctl:step:4"], "workload": 2}
DAMAGED = {"names": ["lost", "lost"], "metrics": {}}


def test_results_become_launches_in_their_order_with_their_facts_and_places(read):
    report = read([FIRST, DAMAGED, SECOND, THIRD], 4)
    assert list(report.kernels) == [
        Kernel(
            0,
            "gemm(int)",
            "gemm",
            layer="fc1",
            direction="forward",
            step=4,
            layer_source="range",
            device_index=1,
            grid_x=64,
            registers=40,
            duration_ns=6750,
            process=42,
        ),
        Kernel(1, "relu(int)", None, stream=13, step=4, process=42),
        Kernel(2, "pool(int)", "pool", stream=13, step=4, process=42),
    ]
    assert (report.tool, report.form) == ("ncu", "ncu report")


def test_counters_are_in_base_units_under_their_launch_and_can_be_read_twice(read):
    counters = read([FIRST, DAMAGED, SECOND], 3).counters
    expected = [
        Counter(0, "gpu__time_duration.sum", 6750, "ns"),
        Counter(0, "launch__device_id", 1, None),
        Counter(0, "launch__grid_dim_x", 64, None),
        Counter(0, "launch__registers_per_thread", 40, "register/thread"),
        Counter(0, "device__attribute_display_name", None, None, None, "GPU B"),
        Counter(0, "dram__bytes.sum", 3000, "byte"),
        Counter(0, "ratio", 0.5, "byte"),
        Counter(0, "absent", None, "inst"),
        Counter(1, "launch__stream_id", 13, None),
        Counter(1, "device__attribute_display_name", None, None, None, "GPU A"),
        Counter(1, "dram__bytes.sum", 5, "byte"),
        Counter(1, "absent", None, "inst"),
    ]
    assert list(counters) == expected
    assert list(counters) == expected


def test_devices_stand_by_their_index_with_the_driver_of_the_machine(read):
    versions = {
        "CUDA_Version": "12.2",
        "Display_Driver_Version": "535.104",
        "Nsight_Compute_Target": "2023.1.0.0 (b)",
    }
    report = read([FIRST, SECOND], 2, 1_700_000_000, **versions)
    assert report.devices == (
        Device("GPU A", "gpu", 0, driver_version="535.104"),
        Device("GPU B", "gpu", 1, driver_version="535.104"),
    )
    assert report.environment == {"cuda": "12.2"}
    assert (report.tool_version, report.started_at) == ("2023.1.0.0", "2023-11-14T22:13:20+00:00")
    bare = read([FIRST], 1)
    assert bare.devices == (Device("GPU B", "gpu", 1),)
    assert (bare.environment, bare.tool_version, bare.started_at) == ({}, None, None)


def test_what_is_damaged_absent_or_was_not_collected_is_a_gap(read):
    reason = "the report has no value for it in 2 launches"
    values = [Gap("counter:absent", "not_available", reason)]
    version = {"Nsight_Compute_Target": "2025.1.0.0"}
    unstated = Gap(
        "profiler_version", "not_available", "the report does not state the version of ncu"
    )
    assert set(read([FIRST, SECOND], 2).gaps) == {unstated, *values}
    assert list(read([FIRST, SECOND], 2, **version).gaps) == values
    for results, records, lost in ((9, [FIRST, SECOND], 7), (2, [FIRST, SECOND, DAMAGED], 1)):
        reason = f"{lost} of {2 + lost} results in the report are damaged and could not be read"
        damaged = Gap("kernel", "unreadable", reason)
        assert list(read(records, results, **version).gaps) == [*values, damaged]
    assert [gap.quantity for gap in read([SECOND], 1, **version).gaps][1:] == [
        "kernel.duration_ns",
        "kernel.registers",
        "kernel.grid_x",
    ]


def test_ranges_and_a_newer_ncu_are_pointed_out(read):
    text = "result 1 is not a single kernel but a range, graph or command list: pool(int)"
    ranged = Diagnostic("warning", "ncu", text)
    assert read([FIRST, THIRD], 2, Nsight_Compute_Target="2025.1.9.0").diagnostics == (ranged,)
    text = "ncu 2025.2.0.0 is newer than the newest tested version (2025.1): perfctl read all known parts"
    later = read([FIRST], 1, Nsight_Compute_Target="2025.2.0.0 (build 3)")
    assert later.diagnostics == (Diagnostic("info", "perfctl parser", text),)


@pytest.mark.parametrize(
    ("records", "results", "reason"),
    [
        ([], 0, "the report contains no kernels. Check ncu's filters and --target-processes"),
        ([DAMAGED], 1, "the report (1 results) is damaged and could not be read. Export it with"),
        ([], 5, "the report (5 results) is damaged and could not be read. Export it with 'ncu"),
        (3, 5, "NVIDIA's ncu_report failed with exit code 3 while reading it. Export it with"),
        (0, 5, "NVIDIA's ncu_report was ended by signal 6 while reading it. Export it with 'ncu"),
    ],
)
def test_a_report_of_which_nothing_could_be_read_says_why(read, records, results, reason):
    with pytest.raises(ReportError, match=re.escape(reason)):
        read(records, results)


def test_a_file_of_an_unknown_layout_is_refused(read, tmp_path):
    read([FIRST], 1)
    (tmp_path / "site" / "results.json").write_text("[]")
    with pytest.raises(
        ReportError, match="it begins like an ncu report, but has an unknown structure"
    ):
        ncu_rep.parse(write(tmp_path / "other.ncu-rep", MAGIC + sized(b"\x08\x09") + bytes(20)))


# Values of a report file, its sections, values by instance, and instructions. By a stand-in and by


PC = 2**40
"""Address of the first instruction."""


def record(metrics, **facts):
    """Return the record of a result whose metrics have these values by instance."""
    values = {name: ("inst", None, instances) for name, instances in metrics.items()}
    action = Action({"metrics": values, "sass": "", "lines": [PC], **facts})
    return rep_worker._make_result_record(action, with_source=True)


def test_a_metric_is_in_the_first_section_that_prints_it_and_else_in_the_first_that_charts_it(
    monkeypatch,
):
    late = ("Late", 20, ["both", "own"], ["chart"])
    early = ("Early", 10, ["both"], ["own", "chart"])
    names: dict[str, dict[Any, Any]] = {"both": {}, "own": {}, "chart": {}, "none": {}}

    def read_sections():
        metrics = record(names, sections=[late, early])["metrics"]
        return {name: section for name, _, _, section in metrics}

    expected = {"both": "Early", "own": "Late", "chart": "Early", "none": None}
    assert read_sections() == expected
    monkeypatch.delattr(Action, "sections")  # as in older packages
    assert read_sections() == dict.fromkeys(expected)


def test_few_values_by_instance_and_whole_instruction_mixes_are_kept_and_curves_named():
    mix = {f"OP{number}": number for number in range(100)}
    found = record(
        {
            "mix": mix,
            "few": dict.fromkeys(range(rep_worker.FEW), 1),
            "curve": dict.fromkeys(range(rep_worker.FEW + 1), 1),
            "samples": {2**50: 0.5, 2**50 + 9: 1.5},
            "one": {0: 3},
            "inst_executed": {PC: 5, PC + 16: 7},
            "by_line": {PC: 1, PC + 16: 1},
            "words": {"a": "x", "b": float("nan")},
        }
    )
    few = [row[:3] for row in found["metrics"] if "[" in row[0]]
    names = Tally(name.partition("[")[0] for name, *_ in few)
    assert names == {"mix": 100, "few": rep_worker.FEW, "words": 2}
    assert few[-2:] == [("words[a]", "inst", "x"), ("words[b]", "inst", None)]
    assert found["series"] == ["curve", "samples"]
    assert found["addresses"] == 2


@pytest.mark.parametrize(
    ("sass", "opcode"),
    [
        ("  @!P0 ISETP.GE.AND P1, PT, R0, c[0x0][0x160], PT", "ISETP.GE.AND"),
        ("      MOV R1, c[0x0][0x28]", "MOV"),
        ("@UP1 UMOV UR4, 0x1", "UMOV"),
        ("PRMT R0, R1, R2, R3", "PRMT"),
        ("EXIT", "EXIT"),
        ("", None),
        ("0x123", None),
    ],
)
def test_of_an_instruction_s_code_the_opcode_alone_is_kept(sass, opcode):
    stalls = "smsp__pcsamp_warps_issue_stalled_"
    first, second = record(
        {
            "inst_executed": {PC: 5, PC + 32: 7},
            "smsp__pcsamp_sample_count": {PC: 9},
            f"{stalls}wait": {PC: 3},
            f"{stalls}barrier": {PC: 4},
            f"{stalls}selected": {PC: 9},
            f"{stalls}membar_not_issued": {PC: 8},
        },
        sass=sass,
    )["source"]
    assert first == (0, opcode, "/src/a.cu", 12, 5, None, 9, "barrier")
    assert second == (32, opcode, None, None, 7, None, 0, None)


def test_a_report_without_values_by_instruction_says_so_and_one_whose_are_not_asked_for_how_to_ask(
    reports,
):
    pytest.importorskip("ncu_report")
    old = rep.parse(reports / "ncu/rep/matrixMul_profile.nsight-cuprof-report", source=True)
    (gap,) = [gap for gap in old.gaps if gap.quantity == "source_counter"]
    assert (gap.state, list(old.source_counters)) == ("not_available", [])
    new = rep.parse(reports / "ncu/rep/armleth_mlp_report.ncu-rep")
    (gap,) = [gap for gap in new.gaps if gap.quantity == "source_counter"]
    assert gap[:3] == (
        "source_counter",
        "not_collected",
        "the report has values of 21 instructions; run perfctl ingest --source --again to store them",
    )


def records(report, monkeypatch):
    package = ModuleType("ncu_report")
    package.__dict__["load_report"] = lambda path: report
    monkeypatch.setitem(sys.modules, "ncu_report", package)
    out = io.StringIO()
    assert rep_worker.main(["report.ncu-rep"], out) == 0
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, 7),
        (2**64 - 1, 2**64 - 1),
        (None, None),
        (7.0, 7),
        (-2.0, -2),
        (0.5, 0.5),
        (2.0**53 - 1, 2**53 - 1),  # whole as long as it is exact
        (2.0**53, 2.0**53),
        (-(2.0**53), -(2.0**53)),
        (float("nan"), None),
        (float("inf"), None),
        ("A100", "A100"),
        ("", None),
    ],
)
def test_a_value_is_a_number_a_text_or_nothing(value, expected, monkeypatch):
    metrics = {"x": ("inst", value), "bad\udcff": ("inst", 1)}
    (record,) = records(Results([[{"metrics": metrics}]]), monkeypatch)
    assert record["metrics"] == [["x", "inst", expected, None], ["bad\ufffd", "", None, None]]
    assert type(record["metrics"][0][2]) is type(expected)
    assert (record["name"], record["short"], record["ranges"]) == ("k", None, [])


def test_what_the_package_refuses_is_passed_over(monkeypatch):
    result = {"metrics": {"x": ("inst", 1)}}
    report = Results([None, [result, None, {**result, "workload": 2}], []])
    assert [record["single"] for record in records(report, monkeypatch)] == [True, False]
    assert records(None, monkeypatch) == []
