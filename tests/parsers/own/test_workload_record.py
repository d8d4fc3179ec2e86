"""What perfctl itself writes next to a run: the record, its rows, and samples.csv."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from perfctl.parsers import ReportError
from perfctl.parsers.own import samples, workload_record
from perfctl.parsers.own.json import make_checked_record
from perfctl.parsers.own.workload_record import parse, sniff
from perfctl.records.paper import OpShape, parse_op_shape
from perfctl.records.report import Step
from tests.make.files import read, write

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


def without(*names, **changed):
    return {key: value for key, value in (RECORD | changed).items() if key not in names}


def test_a_row_without_types_and_attributes_has_none():
    row = {key: value for key, value in OP.items() if key not in ("dtypes", "attributes")}
    assert parse_op_shape(row) == OpShape(
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
def test_a_record_that_is_none_newer_or_broken_is_refused(tmp_path, record, reason):
    with pytest.raises(ReportError) as refused:
        parse(write(tmp_path / "workload.json", json.dumps(record)))
    assert reason in refused.value.reason
    assert refused.value.tool == "workload"


def test_unknown_fields_of_rows_and_of_the_record_are_left_out_and_named(tmp_path):
    steps = [RECORD["steps"][0], RECORD["steps"][0] | {"mood": 1, "sky": 2}]
    report = read(tmp_path, json.dumps(without(steps=steps, weather=1)))
    assert report.steps == (Step(0, "step", 1, 2, 1),) * 2
    assert [said.text for said in report.diagnostics] == [
        "not understood and left out: fields weather, steps.mood, steps.sky"
    ]


def test_the_checksum_that_perfctl_1_0_wrote_is_known_and_not_compared(tmp_path):
    report = read(tmp_path, json.dumps(without(crc32="0a1b2c3d")))
    assert report.diagnostics == ()
    assert report.steps == read(tmp_path, json.dumps(without())).steps


def test_a_record_is_known_by_its_key_among_the_first_200_bytes(tmp_path):
    key = b'"perfctl_workload_record"'
    assert sniff(tmp_path, b"{" + key)
    assert sniff(tmp_path, b" " * (200 - len(key)) + key)
    assert not sniff(tmp_path, b" " * (201 - len(key)) + key)
    assert not sniff(tmp_path, b"perfctl_workload_record")
    assert workload_record.KEY.encode() in key


# Rows of JSON become records only with the types that the record says


def row(**changed):
    return {"number": 1, "phase": "step", "start_ns": None, "duration_ns": 5, "loss": 0.5} | changed


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"loss": 2},
        {"loss": None},
        {"duration_ns": 2**63 - 1},
        {"duration_ns": -(2**63)},
        {"accuracy": 1.0},
    ],
)
def test_a_whole_row_is_its_record_and_a_whole_number_may_stand_for_a_float(changed):
    assert make_checked_record(Step, row(**changed)) == Step(**row(**changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"number": None}, TypeError, "Step.number is 'None'"),
        ({"number": 1.0}, TypeError, "Step.number is '1.0'"),
        ({"phase": 3}, TypeError, "Step.phase is '3'"),
        ({"loss": "y" * 61}, TypeError, f"Step.loss is '{'y' * 60}'"),
        ({"duration_ns": 0.5}, TypeError, "Step.duration_ns is '0.5'"),
        ({"duration_ns": 2**63}, OverflowError, "Step.duration_ns does not fit 64 bits"),
        ({"duration_ns": -(2**63) - 1}, OverflowError, "Step.duration_ns does not fit 64 bits"),
        ({"loss": 2**64}, OverflowError, "Step.loss does not fit 64 bits"),
        ({"mood": "good"}, TypeError, "mood"),
    ],
)
def test_a_field_of_another_type_is_named_with_what_stands_in_it(changed, error, said):
    with pytest.raises(error, match=re.escape(said)):
        make_checked_record(Step, row(**changed))


# samples.csv, which perfctl writes next to a run: broken files


HEAD = "# perfctl samples 1\n# gpu: NVML, driver 550.54.15\n# every_s: 0.05\n"
COLUMNS = (
    "at_ns,device_index,gpu_utilisation,memory_used_bytes,memory_total_bytes,power_w,temperature_c,"
    "sm_clock_hz,memory_clock_hz,energy_j,throttle_reasons,process_memory_bytes,"
    "process_utilisation,host_cpu,host_memory_bytes\n"
)
GPU = "1000,1,0.5,10,100,70.5,41,1410000000,1215000000,99.5,idle,7,0.4,,\n"
HOST = "1000,,,,,,,,,,,,,1.25,4096\n"
END = "# readings: 2\n# cost_ns: 1500000\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"# perfctl samples {'9' * 30}\n", f"version {'9' * 20}, but this perfctl reads 1"),
        (HEAD + "device_index\n", "line 4: no column at_ns"),
        (HEAD + COLUMNS + "1,2\n", "line 5: 2 cells for 15 columns"),
        (HEAD + COLUMNS + HOST.replace("1.25", "many"), "line 5: could not convert"),
        (HEAD + COLUMNS + HOST.replace("1.25", "nan"), "line 5: nan is not a number"),
        (HEAD + COLUMNS + HOST.replace("1000", ""), "the sample has no time"),
    ],
)
def test_a_broken_file_is_refused_with_the_line(tmp_path, text, reason):
    with pytest.raises(ReportError, match=reason):
        read(tmp_path, text)


def test_cells_of_whole_numbers_take_no_fraction_and_texts_may_have_commas(tmp_path):
    report = read(tmp_path, HEAD + COLUMNS + GPU.replace("idle", '"idle, cap"') + END)
    assert next(iter(report.samples)).throttle_reasons == "idle, cap"
    for cell in ("1000.5", "inf"):
        with pytest.raises(ReportError, match="line 5: "):
            read(tmp_path, HEAD + COLUMNS + HOST.replace("1000", cell) + END)


def test_a_file_that_cannot_be_read_is_refused_and_says_why(tmp_path):
    path = tmp_path / "samples.csv"
    for data, reason in (
        (b"", "the file is empty"),
        (HEAD.encode() + b"\xff\n", "it cannot be read ('utf-8' codec can't decode byte 0xff"),
    ):
        path.write_bytes(data)
        with pytest.raises(ReportError) as caught:
            samples.parse(path)
        assert caught.value.reason.startswith(reason)
        assert caught.value.tool == "sampler"
