"""DLProf's numbers, names of ops and layers, and what its reports leave open."""

from __future__ import annotations

import pytest

from perfctl.parsers.dlprof.records import (
    describe_tables,
    place_op,
)
from perfctl.records.ranges import RangeName
from perfctl.records.report import Diagnostic


@pytest.mark.parametrize(
    ("name", "place", "source"),
    [
        ("conv2:backward", RangeName("conv2", "backward"), "range"),
        ("/perfctl:step:3/a:forward[2]/b:backward/conv", RangeName("b", "backward", 3), "range"),
        ("/a:forward/perfctl:step:3/perfctl:step:4/x", RangeName("a", "forward", 4), "range"),
        ("features.0", RangeName("features.0"), "operation"),
        ("features", RangeName(), None),
        ("perfctl:step:5", RangeName(step=5), None),
        ("net::__call__/relu", RangeName("net"), "operation"),
        ("net::_call_impl/Linear::_call_impl[3]/linear", RangeName("Linear_3"), "operation"),
        ("net::_call_impl/LazyLinear::_call_impl/Linear", RangeName("LazyLinear_1"), "operation"),
        ("net::_call_impl/LazyConv2d::_call_impl/relu", RangeName("net"), "operation"),
        (
            "net::_call_impl/BatchNorm2d::_call_impl/batch_norm",
            RangeName("BatchNorm2d_1"),
            "operation",
        ),
        (
            "/perfctl:step:2/net::_call_impl/B::_call_impl/C::_call_impl[2]/x",
            RangeName("B_1.C_2", None, 2),
            "operation",
        ),
        ("Conv2d::_call_impl/relu", RangeName("Conv2d"), "operation"),
        ("", RangeName(), None),
    ],
)
def test_an_op_s_name_gives_layer_direction_and_step(
    name: str, place: RangeName, source: str | None
) -> None:
    assert place_op(name) == (place, source)


def test_columns_beyond_the_known_are_named_by_report_and_sums_of_time_are_known() -> None:
    sums = [
        f"{part} {what} (ns)"
        for part in ("total", "avg", "min", "max")
        for what in ("cpu time", "gpu time", "cpu overhead", "gpu idle", "api time")
    ]
    row = dict.fromkeys([*sums, "op name", "mood"], "")
    (said,) = describe_tables({"detail": [row, row | {"later": ""}], "other": [{"x": ""}]}, "1.8.9")
    assert said.text == "not understood and left out: columns detail.mood, other.x"
    (said,) = describe_tables({}, "1.9")
    assert said == Diagnostic(
        "info",
        "perfctl parser",
        "DLProf 1.9 is newer than the newest tested version (1.8): perfctl read all known parts",
    )
    assert describe_tables({"detail": []}, None) == ()
