"""workload.json: what of it becomes the report, and which records are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfctl.parsers import ReportError
from perfctl.parsers.own import workload_record
from perfctl.parsers.own.workload_record import parse, sniff
from perfctl.records.paper import OpShape, read_op_shape
from perfctl.records.report import Step

OP = {"layer": "fc", "kind": "Linear", "op": "aten.addmm", "direction": "forward"}
OP |= {
    "inputs": [[10], [4, 8], None],
    "outputs": [[4, 10]],
    "dtypes": ["float32"],
    "attributes": {"bias": True},
}
RECORD: dict[str, Any] = {
    "perfctl_workload_record": 1,
    "workload": "mlp",
    "batch_size": 4,
    "mode": "train",
    "precision": "fp32",
    "seed": 0,
    "clock": "monotonic",
    "variant": "wide",
    "options": {
        "steps": 3,
        "trace": "t",
        "window": "w",
        "annotate": "nvtx",
        "record": "r",
        "batch_size": 4,
        "data": None,
    },
    "environment": {"torch": "2.9.0", "cuda": None, "threads": 2},
    "device": {"name": "a CPU", "kind": "cpu"},
    "started_at": "2026-11-20T20:58:30Z",
    "duration_ns": 7,
    "steps": [{"number": 0, "phase": "step", "start_ns": 1, "duration_ns": 2, "loss": 1}],
    "memory": [{"moment": "peak", "quantity": "allocated", "bytes": 9}],
    "summaries": [{"name": "s", "value": 1.5, "unit": None}],
    "ops": [OP],
    "layer_times": [
        {
            "layer": "fc",
            "kind": "Linear",
            "direction": "forward",
            "duration_ns": 5,
            "low_ns": 4,
            "high_ns": 6,
            "steps": 3,
        }
    ],
    "gaps": [{"quantity": "kernel", "state": "not_collected", "reason": "no profiler"}],
}


def put(folder: Path, record: object) -> Path:
    path = folder / "workload.json"
    path.write_text(json.dumps(record))
    return path


def without(*names: str, **changed: object) -> dict[str, object]:
    return {key: value for key, value in (RECORD | changed).items() if key not in names}


def test_a_row_without_types_and_attributes_has_none() -> None:
    row = {key: value for key, value in OP.items() if key not in ("dtypes", "attributes")}
    assert read_op_shape(row) == OpShape(
        "fc", "Linear", "aten.addmm", "forward", ((10,), (4, 8), None), ((4, 10),)
    )


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ([], "no field perfctl_workload_record"),
        (without("perfctl_workload_record"), "no field perfctl_workload_record"),
        (without(perfctl_workload_record="1"), "no field perfctl_workload_record"),
        (without(perfctl_workload_record=2), "version 2, but this perfctl reads 1"),
        (without("steps"), "a field is missing or wrong ('steps')"),
        (without("gaps"), "a field is missing or wrong ('gaps')"),
        (without(duration_ns=1.5), "a field is missing or wrong (_RunFields.duration_ns is '1.5')"),
        (
            without(memory=[{"moment": 3, "quantity": "x", "bytes": 1}]),
            "(MemoryFigure.moment is '3')",
        ),
        (without(environment=5), "a field is missing or wrong"),
        (without(environment=[1]), "a field is missing or wrong"),
        (without(options=[1]), "a field is missing or wrong"),
    ],
)
def test_a_record_that_is_none_newer_or_broken_is_refused(
    tmp_path: Path, record: object, reason: str
) -> None:
    with pytest.raises(ReportError) as refused:
        parse(put(tmp_path, record))
    assert reason in refused.value.reason
    assert refused.value.tool == "workload"


def test_unknown_fields_of_rows_and_of_the_record_are_left_out_and_named(tmp_path: Path) -> None:
    steps = [RECORD["steps"][0], RECORD["steps"][0] | {"mood": 1, "sky": 2}]
    report = parse(put(tmp_path, without(steps=steps, weather=1)))
    assert report.steps == (Step(0, "step", 1, 2, 1),) * 2
    assert [said.text for said in report.diagnostics] == [
        "not understood and left out: fields weather, steps.mood, steps.sky"
    ]


def test_the_checksum_that_perfctl_1_0_wrote_is_known_and_not_compared(tmp_path: Path) -> None:
    report = parse(put(tmp_path, without(crc32="0a1b2c3d")))
    assert report.diagnostics == ()
    assert report.steps == parse(put(tmp_path, without())).steps


def test_a_record_is_known_by_its_key_among_the_first_200_bytes(tmp_path: Path) -> None:
    key = b'"perfctl_workload_record"'
    assert sniff(tmp_path, b"{" + key)
    assert sniff(tmp_path, b" " * (200 - len(key)) + key)
    assert not sniff(tmp_path, b" " * (201 - len(key)) + key)
    assert not sniff(tmp_path, b"perfctl_workload_record")
    assert workload_record.KEY.encode() in key
