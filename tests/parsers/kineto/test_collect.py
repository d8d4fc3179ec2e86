"""What one pass over the events of a trace leaves: spans, calls, device work, memory, and what
is counted."""

from __future__ import annotations

import pytest

from tests.make.kineto import (
    collect,
    event,
    operation,
)


def test_an_external_id_leads_to_its_span_unless_several_share_it() -> None:
    found = collect(
        [
            operation("first", 0, 5, 0),
            operation("a", 10, 5, 7),
            operation("b", 20, 5, 7),
            operation("none", 30, 5),
            operation("none", 30, 5),
            operation("none", 40, 5, -7),
            operation("alone", 50, 4, 9),
            operation("c", 60, 1, 7),
            operation("late", 80, 5, 11),
            operation("early", 70, 5, 11),
        ]
    )
    assert found.by_external == {0: 0, 7: -1, 9: 6, 11: -1}
    assert [span.external for span in found.spans] == [0, 7, 7, -1, -1, -1, 9, 7, 11, 11]


@pytest.mark.parametrize(
    ("category", "name", "is_range"),
    [
        ("user_annotation", "anything", True),
        ("cpu_op", "conv1:forward", False),
        ("cpu_op", "ProfilerStep#5", False),
        ("Operator", "aten::mm", False),
        ("Operator", "ProfilerStep#5", True),
        ("Operator", "conv1:forward", True),
        ("Operator", "perfctl:step:3", True),
        ("Operator", "perfctl:phase:data", True),
        ("Operator", "perfctl:x", False),
        ("Operator", "enumerate(DataLoader)#_Iter.__next__", True),
        ("Operator", "Optimizer.step#SGD.step", True),
        ("Operator", "aten::Optimizer.", False),
    ],
)
def test_ranges_are_annotations_and_until_2021_operations_with_a_range_s_name(
    category: str, name: str, is_range: bool
) -> None:
    assert [span.is_range for span in collect([event(category, name, 1, 1)]).spans] == [is_range]


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ([(5, 10)], (5000, 15_000)),
        ([(5, 0)], (5000, 5000)),
        ([(5, "-0.001")], None),
        ([(5, None)], None),
        ([(None, 5)], None),
        ([(5, 10), (2, 4)], (2000, 15_000)),
        ([(5, 10), (6, 20)], (5000, 26_000)),
        ([(5, 10), (6, 2)], (5000, 15_000)),
    ],
)
def test_the_window_reaches_over_all_windows_of_the_trace(
    windows: list[tuple[object, object]], expected: tuple[int, int] | None
) -> None:
    assert (
        collect([event("Trace", "PyTorch Profiler (0)", *window) for window in windows]).window
        == expected
    )


@pytest.mark.parametrize(
    ("kind", "category", "counted"),
    [
        ("X", None, {}),
        ("X", "overhead", {}),
        ("s", "ac2g", {}),
        ("M", None, {}),
        (None, None, {}),
        (5, None, {}),
        ("X", "gpu_dma", {"gpu_dma": 1}),
        (None, "gpu_dma", {"gpu_dma": 1}),
        (5, "gpu_dma", {"gpu_dma": 1}),
        ("Z", None, {"ph Z": 1}),
        ("Z", "overhead", {}),
        ("XB", "gpu_dma", {"ph XB": 1}),
        ("X", ["kernel"], {"['kernel']": 1}),
        ("X", 7, {"7": 1}),
        ("X", "", {"": 1}),
        ("X", "n" * 101, {"n" * 100: 1}),
        ("Z" * 200, None, {"ph " + "Z" * 97: 1}),
    ],
)
def test_an_event_is_counted_by_its_kind_or_else_by_its_category_if_that_is_in_no_list(
    kind: object, category: object, counted: dict[str, int]
) -> None:
    assert collect([{"ph": kind, "cat": category, "name": "x"}]).unknown == counted


def test_every_kind_of_event_of_the_chrome_format_is_known() -> None:
    kinds = "BEXiICbneSTpFstfPNODMvRc()"
    assert not collect([{"ph": kind, "name": "x"} for kind in kinds]).unknown
