"""Events that are passed over: which are known and left out, and which are counted."""

from __future__ import annotations

import pytest

from perfctl.parsers.kineto import events
from perfctl.records.report import Diagnostic


@pytest.mark.parametrize(
    ("kind", "category", "counted"),
    [
        ("X", None, {}),
        ("X", "overhead", {}),
        ("s", "ac2g", {}),
        ("M", None, {}),
        (None, None, {"none, and no ph": 1}),
        (5, None, {}),
        ("X", "gpu_dma", {"gpu_dma": 1}),
        (None, "gpu_dma", {"gpu_dma": 1}),
        (5, "gpu_dma", {"gpu_dma": 1}),
        ("Z", None, {"ph Z": 1}),
        ("Z", "overhead", {"ph Z": 1}),
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
    unknown: dict[str, int] = {}
    events.count_unknown(unknown, kind, category)
    assert unknown == counted


def test_every_kind_of_event_of_the_chrome_format_is_known() -> None:
    unknown: dict[str, int] = {}
    for kind in "BEXiICbneSTpFstfPNODMvRc()":
        events.count_unknown(unknown, kind, None)
    assert unknown == {}


def test_a_hundred_names_are_kept_and_these_are_counted_on() -> None:
    unknown: dict[str, int] = {}
    for number in (*range(101), 0, 99, 99, 100):
        events.count_unknown(unknown, "X", f"kind {number}")
    assert unknown == {f"kind {number}": 1 for number in range(100)} | {"kind 0": 2, "kind 99": 3}


def test_one_warning_names_them_with_their_numbers_of_events() -> None:
    said = "not understood and left out: categories gpu_dma (3 events), ph Z (1 events)"
    assert events.describe_unknown({"gpu_dma": 3, "ph Z": 1}) == (
        Diagnostic("warning", "perfctl parser", said),
    )
    assert events.describe_unknown({}) == ()
