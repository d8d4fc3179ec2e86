"""Values of a report file, its sections, values by instance, and instructions. By a stand-in and by
real files."""

from __future__ import annotations

import io
import json
import sys
from collections import Counter as Tally
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from perfctl.parsers.ncu import rep, rep_worker
from tests.make.ncu_package import Action, Results

PC = 2**40
"""Address of the first instruction."""


def record(metrics: dict[str, dict[Any, Any]], **facts: Any) -> dict[str, Any]:
    """Return the record of a result whose metrics have these values by instance."""
    values = {name: ("inst", None, instances) for name, instances in metrics.items()}
    action = Action({"metrics": values, "sass": "", "lines": [PC], **facts})
    return rep_worker._record(action, with_source=True)


def test_a_metric_is_in_the_first_section_that_prints_it_and_else_in_the_first_that_charts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = ("Late", 20, ["both", "own"], ["chart"])
    early = ("Early", 10, ["both"], ["own", "chart"])
    names: dict[str, dict[Any, Any]] = {"both": {}, "own": {}, "chart": {}, "none": {}}

    def read_sections() -> dict[str, str]:
        metrics = record(names, sections=[late, early])["metrics"]
        return {name: section for name, _, _, section in metrics}

    expected = {"both": "Early", "own": "Late", "chart": "Early", "none": None}
    assert read_sections() == expected
    monkeypatch.delattr(Action, "sections")  # as in older packages
    assert read_sections() == dict.fromkeys(expected)


def test_few_values_by_instance_and_whole_instruction_mixes_are_kept_and_curves_named() -> None:
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
def test_of_an_instruction_s_code_the_opcode_alone_is_kept(sass: str, opcode: str | None) -> None:
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
    reports: Path,
) -> None:
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


def records(report: Results | None, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
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
def test_a_value_is_a_number_a_text_or_nothing(
    value: Any, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = {"x": ("inst", value), "bad\udcff": ("inst", 1)}
    (record,) = records(Results([[{"metrics": metrics}]]), monkeypatch)
    assert record["metrics"] == [["x", "inst", expected, None], ["bad\ufffd", "", None, None]]
    assert type(record["metrics"][0][2]) is type(expected)
    assert (record["name"], record["short"], record["ranges"]) == ("k", None, [])


def test_what_the_package_refuses_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    result = {"metrics": {"x": ("inst", 1)}}
    report = Results([None, [result, None, {**result, "workload": 2}], []])
    assert [record["single"] for record in records(report, monkeypatch)] == [True, False]
    assert records(None, monkeypatch) == []
