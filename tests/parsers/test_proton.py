"""Proton's profiles: broken ones, and a real one read a second time with json alone."""

from __future__ import annotations

import gzip
import json

import pytest

from perfctl.parsers import ReportError
from tests.make.files import read

ROOT = '[{"frame": {"name": "ROOT"}, "metrics": {}, "children": '
NODE = '[{"frame": {"name": "s", "type": "function"}, "metrics": {}, "children": '


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[{"frame": {}, "children": [', "the JSON is incomplete"),
        ('[{"children": [], "metrics": {}}]', "no call tree of Proton"),
        ('[{"children": 1, "frame": 2]', "the JSON is incomplete"),
        (NODE * 450 + "[]" + "}]" * 450, "deeper than"),
        *(
            (ROOT + children + "}]", r"the children of 'ROOT' are .* not a list")
            for children in ("-1", '"none"', '{"frame": {}}')
        ),
    ],
)
def test_a_broken_profile_is_one_clear_error(text, reason, tmp_path):
    with pytest.raises(ReportError, match=reason):
        read(tmp_path, text)


@pytest.mark.parametrize("left_out", ["time (ns)", "count"])
def test_a_kernel_without_time_or_launches_is_missing_and_not_0(left_out, tmp_path):
    metrics = {"time (ns)": 5, "count": 2} | {f"new {left_out}": 1}
    del metrics[left_out]
    kernel = {"frame": {"name": "k", "type": "function"}, "metrics": metrics, "children": []}
    text = f"{ROOT}{json.dumps([kernel])}}}]"
    report = read(tmp_path, text)
    assert report.operations == [] and 0 not in [one.value for one in report.summaries]
    assert "operation" in {gap.quantity for gap in report.gaps}


def test_a_gzipped_profile_is_read(tmp_path):
    kernel = '{"frame": {"name": "k"}, "metrics": {"time (ns)": 5, "count": 2}, "children": []}'
    text = f"{ROOT}[{kernel}]}}]".encode()
    assert read(tmp_path, gzip.compress(text)).operations == read(tmp_path, text).operations
    with pytest.raises(ReportError, match="the JSON is incomplete"):
        read(tmp_path, gzip.compress(text)[:-20])
