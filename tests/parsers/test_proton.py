"""Proton's profiles: synthetic trees written here, and a real one read a second time with
json alone."""

from __future__ import annotations

import json
from collections import Counter as Tally
from pathlib import Path
from typing import Any

import pytest

from perfctl import parsers
from perfctl.parsers import ReportError

Node = dict[str, Any]


def node(name: str, metrics: dict[str, Any], *children: Node) -> Node:
    return {
        "frame": {"name": name, "type": "function"},
        "metrics": metrics,
        "children": list(children),
    }


def kernel(name: str, count: int, time: int, **more: float) -> Node:
    return node(
        name, {"count": count, "time (ns)": time, "device_id": "1", "device_type": "HIP", **more}
    )


def written(path: Path, *children: Node) -> Path:
    devices = {
        "HIP": {
            "0": {"arch": "gfx942:sramecc+"},
            "1": {"arch": "gfx942", "num_sms": 304, "clock_rate": 2_100_000},
        }
    }
    path.write_text(json.dumps([node("ROOT", {"count": 0, "time (ns)": 0}, *children), devices]))
    return path


def test_kernels_are_summed_over_the_scopes_that_launched_them(tmp_path: Path) -> None:
    scopes = (
        node("a", {}, kernel("mul", 3, 300), kernel("add", 1, 7)),
        node("b", {}, kernel("mul", 2, 50)),
    )
    report = parsers.parse(written(tmp_path / "p.hatchet", *scopes))
    assert [(one.name, one.category, one.calls, one.device_ns) for one in report.operations] == [
        ("mul", "kernel", 3 + 2, 300 + 50),
        ("add", "kernel", 1, 7),
    ]
    figures = {one.name: one.value for one in report.summaries}
    assert (figures["scope a: launches"], figures["scope a: time"]) == (3 + 1, 300 + 7)
    assert list(report.kernels) == []
    assert "no single launch" in next(gap.reason for gap in report.gaps if gap.quantity == "kernel")


def test_stated_flops_belong_to_a_kernel_where_they_stand_on_it_or_around_it_alone(
    tmp_path: Path,
) -> None:
    alone = node("mul [M=64]", {"flops16": 2 * 64**3, "bytes": 6 * 64**2}, kernel("mul", 1, 90))
    own = kernel("mul2", 2, 90, flops8=1000, flops16=24)
    several = node("both", {"flops32": 5}, kernel("x", 1, 1), kernel("y", 1, 1))
    report = parsers.parse(written(tmp_path / "p.hatchet", alone, own, several))
    assert {one.name: one.flops for one in report.operations} == {
        "mul": 2 * 64**3,
        "mul2": 1024,
        "x": None,
        "y": None,
    }
    figures = {one.name: (one.value, one.unit) for one in report.summaries}
    assert figures["scope mul [M=64]: flops16"] == (2 * 64**3, "flop")
    assert figures["scope mul [M=64]: bytes"] == (6 * 64**2, "byte")
    assert figures["scope both: flops32"] == (5, "flop")


def test_a_kernel_whose_flops_are_stated_for_some_launches_only_has_none(tmp_path: Path) -> None:
    report = parsers.parse(
        written(
            tmp_path / "p.hatchet", kernel("mul", 1, 9, flops=8), node("a", {}, kernel("mul", 1, 9))
        )
    )
    assert [one.flops for one in report.operations] == [None]


def test_the_device_that_ran_kernels_comes_first(tmp_path: Path) -> None:
    first, second = parsers.parse(written(tmp_path / "p.hatchet", kernel("mul", 1, 9))).devices
    assert (first.index, first.compute_capability, first.sm_count, first.clock_hz) == (
        1,
        "gfx942",
        304,
        2_100_000_000,
    )
    assert (second.index, second.compute_capability) == (0, "gfx942")


@pytest.mark.parametrize(
    "text",
    [
        '[{"frame": {}, "children": [',
        '[{"children": [], "metrics": {}}]',
        '[{"children": 1, "frame": 2]',
    ],
)
def test_a_broken_profile_is_one_clear_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "p.hatchet"
    path.write_text(text)
    with pytest.raises(ReportError):
        parsers.parse(path)


def test_a_tree_too_deep_is_refused(tmp_path: Path) -> None:
    deep = kernel("mul", 1, 9)
    for _ in range(450):
        deep = node("s", {}, deep)
    with pytest.raises(ReportError, match="deeper than"):
        parsers.parse(written(tmp_path / "p.hatchet", deep))


def test_the_real_profile_agrees_with_its_leaves(shared: Path) -> None:
    path = shared / "reports/proton/tritonbench_softmax.hatchet"
    tree, devices = json.loads(path.read_text())
    calls, times = Tally[str](), Tally[str]()

    def walk(one: Node) -> None:
        if not one["children"]:
            calls[one["frame"]["name"]] += one["metrics"]["count"]
            times[one["frame"]["name"]] += one["metrics"]["time (ns)"]
        for child in one["children"]:
            walk(child)

    walk(tree)
    report = parsers.parse(path)
    assert {one.name: one.calls for one in report.operations} == calls
    assert {one.name: one.device_ns for one in report.operations} == times
    assert (calls.total(), times.total()) == (18, 91711)
    (gpu,) = report.devices
    assert (gpu.sm_count, gpu.compute_capability) == (devices["CUDA"]["0"]["num_sms"], "9.0")


@pytest.mark.parametrize("children", [-1, "none", {"frame": {}}])
def test_children_that_are_no_list_are_refused_with_their_node(
    tmp_path: Path, children: object
) -> None:
    path = tmp_path / "p.hatchet"
    path.write_text(json.dumps([{"frame": {"name": "ROOT"}, "metrics": {}, "children": children}]))
    with pytest.raises(ReportError, match=r"the children of 'ROOT' are .* no list"):
        parsers.parse(path)
