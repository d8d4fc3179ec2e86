"""Events that are passed over: which are known and left out, and which are counted."""

from __future__ import annotations

import pytest

from tests.make.kineto import collect


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
