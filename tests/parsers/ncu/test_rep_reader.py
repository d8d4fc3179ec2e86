"""Each kind of metric value that NVIDIA's package may give becomes a number, a text or nothing."""

from __future__ import annotations

import io
import json
import sys
from types import ModuleType
from typing import Any

import pytest

from perfctl.parsers.ncu import rep_worker

UNKNOWN, ANY, STRING, FLOAT, DOUBLE, UINT32, UINT64 = range(7)


class Metric:
    """One value of a kind."""

    ValueKind_ANY = ANY

    def __init__(self, kind: int, value: Any) -> None:
        self._kind, self._value = kind, value

    def has_value(self) -> bool:
        return self._value is not None

    def num_instances(self) -> int:
        return 0

    def kind(self) -> int:
        return self._kind

    def unit(self) -> str:
        return "inst"

    def value(self) -> Any:
        read = {STRING: str, FLOAT: float, DOUBLE: float, UINT32: int, UINT64: int}
        return read[self._kind](self._value) if self._kind in read else None


class Action:
    """One launch without ranges."""

    NameBase_DEMANGLED, NameBase_FUNCTION, WorkloadType_KERNEL = 0, 1, 0

    def __init__(self, metric: Metric, workload: int = 0) -> None:
        self._metric, self._workload = metric, workload

    def name(self, base: int) -> str | None:
        return "k(int)" if base == self.NameBase_DEMANGLED else None

    def workload_type(self) -> int:
        return self._workload

    def nvtx_state(self) -> None:
        return None

    def metric_names(self) -> tuple[str, ...]:
        return ("x", "bad\udcff")

    def metric_by_name(self, name: str) -> Metric:
        assert name == "x", "a name with a lone surrogate is refused"
        return self._metric


class Context:
    """Ranges of actions; None where the package refuses one."""

    def __init__(self, *ranges: list[Action | None] | None) -> None:
        self._ranges = ranges

    def num_ranges(self) -> int:
        return len(self._ranges)

    def range_by_idx(self, index: int) -> Any:
        found = self._ranges[index]
        if found is None:
            return None
        part = ModuleType("part")
        part.__dict__.update(num_actions=lambda: len(found), action_by_idx=found.__getitem__)
        return part


def records(context: Context | None, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    package = ModuleType("ncu_report")
    package.__dict__["load_report"] = lambda path: context
    monkeypatch.setitem(sys.modules, "ncu_report", package)
    out = io.StringIO()
    assert rep_worker.main(["report.ncu-rep"], out) == 0
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (UINT32, 7, 7),
        (UINT64, 2**64 - 1, 2**64 - 1),
        (UINT64, None, None),
        (DOUBLE, 7.0, 7),
        (FLOAT, -2.0, -2),
        (DOUBLE, 0.5, 0.5),
        (DOUBLE, float("nan"), None),
        (FLOAT, float("inf"), None),
        (STRING, "A100", "A100"),
        (STRING, "", None),
        (ANY, 1, None),
        (UNKNOWN, 1, None),
    ],
)
def test_a_value_is_read_by_its_kind(
    kind: int, value: Any, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (record,) = records(Context([Action(Metric(kind, value))]), monkeypatch)
    assert record["metrics"] == [["x", "inst", expected, None], ["bad\ufffd", "", None, None]]
    assert type(record["metrics"][0][2]) is type(expected)
    assert (record["name"], record["short"], record["single"], record["ranges"]) == (
        "k(int)",
        None,
        True,
        [],
    )


@pytest.mark.parametrize(
    ("value", "kind"),
    [(2.0**53 - 1, int), (-(2.0**53) + 1, int), (2.0**53, float), (-(2.0**53), float)],
)
def test_a_double_is_whole_as_long_as_it_is_exact(
    value: float, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    (record,) = records(Context([Action(Metric(DOUBLE, value))]), monkeypatch)
    assert (record["metrics"][0][2], type(record["metrics"][0][2])) == (value, kind)


def test_what_the_package_refuses_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    metric = Metric(UINT32, 1)
    context = Context(None, [Action(metric), None, Action(metric, workload=2)], [])
    assert [record["single"] for record in records(context, monkeypatch)] == [True, False]
    assert records(None, monkeypatch) == []
