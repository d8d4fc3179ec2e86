"""Proton's profiles: broken ones, and a real one read a second time with json alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perfctl import parsers
from perfctl.parsers import ReportError

Node = dict[str, Any]


@pytest.mark.parametrize(
    "text",
    [
        '[{"frame": {}, "children": [',
        '[{"children": [], "metrics": {}}]',
        '[{"children": 1, "frame": 2]',
    ],
)
def test_a_broken_profile_is_one_clear_error(text, tmp_path):
    path = tmp_path / "p.hatchet"
    path.write_text(text)
    with pytest.raises(ReportError):
        parsers.parse(path)


def test_a_tree_too_deep_is_refused(tmp_path):
    deep: list[Node] = []
    for _ in range(450):
        deep = [{"frame": {"name": "s", "type": "function"}, "metrics": {}, "children": deep}]
    path = tmp_path / "p.hatchet"
    path.write_text(json.dumps(deep))
    with pytest.raises(ReportError, match="deeper than"):
        parsers.parse(path)


@pytest.mark.parametrize("children", [-1, "none", {"frame": {}}])
def test_children_that_are_no_list_are_refused_with_their_node(tmp_path, children):
    path = tmp_path / "p.hatchet"
    path.write_text(json.dumps([{"frame": {"name": "ROOT"}, "metrics": {}, "children": children}]))
    with pytest.raises(ReportError, match=r"the children of 'ROOT' are .* not a list"):
        parsers.parse(path)


@pytest.mark.parametrize("left_out", ["time (ns)", "count"])
def test_a_kernel_without_time_or_launches_is_missing_and_not_0(left_out, tmp_path):
    metrics = {"time (ns)": 5, "count": 2} | {f"new {left_out}": 1}
    del metrics[left_out]
    kernel = {"frame": {"name": "k", "type": "function"}, "metrics": metrics, "children": []}
    path = tmp_path / "p.hatchet"
    path.write_text(json.dumps([{"frame": {"name": "ROOT"}, "metrics": {}, "children": [kernel]}]))
    report = parsers.parse(path)
    assert report.operations == []
    assert "operation" in {gap.quantity for gap in report.gaps}
