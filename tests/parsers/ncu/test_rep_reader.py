"""Each kind of metric value that NVIDIA's package may give becomes a number, a text or nothing."""

from __future__ import annotations

import io
import json
import sys
from types import ModuleType
from typing import Any

import pytest

from perfctl.parsers.ncu import rep_worker
from tests.make.ncu_package import Results


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
