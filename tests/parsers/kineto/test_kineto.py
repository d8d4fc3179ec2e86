"""The Kineto parser on tests/data/kineto-synthetic (written by hand)."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from perfctl.parsers import ReportError
from perfctl.parsers.kineto import trace as kineto_trace
from perfctl.records.report import Device, Report
from tests.make.kineto import the_kernel, the_operation

TRACE = Path(__file__).resolve().parents[2] / "data" / "kineto-synthetic" / "trace.json"


@pytest.fixture(scope="module")
def report() -> Report:
    return kineto_trace.parse(TRACE)


def test_a_kernel_has_its_launch_shape_and_exact_nanoseconds(report: Report) -> None:
    conv = the_kernel(report, "void conv<float, 128>(float*)")
    assert (conv.grid_x, conv.grid_y, conv.grid_z) == (12, 3, 2)
    assert (conv.block_x, conv.block_y, conv.block_z) == (128, 1, 1)
    assert (conv.registers, conv.device_index, conv.stream) == (64, 0, 7)
    assert (conv.start_ns, conv.duration_ns) == (1060123, 20001)


def test_a_kernel_belongs_to_the_innermost_layer_range_around_its_launch(report: Report) -> None:
    conv = the_kernel(report, "void conv<float, 128>(float*)")
    assert (conv.layer, conv.direction, conv.step, conv.layer_source) == (
        "conv1",
        "forward",
        0,
        "range",
    )
    assert list(report.ranges)[conv.range_number or 0].name == "conv1:forward"
    relu = the_kernel(report, "relu")
    assert (relu.layer, relu.direction, relu.step, relu.layer_source) == (None, None, 0, None)


def test_a_backward_kernel_is_attributed_on_autograds_own_thread_and_gets_its_step_by_time(
    report: Report,
) -> None:
    dgrad = the_kernel(report, "dgrad")
    assert (dgrad.layer, dgrad.direction, dgrad.step) == ("conv1", "backward", 0)
    (backward,) = [entry for entry in report.ranges if entry.name == "conv1:backward"]
    assert (backward.step, backward.phase, backward.depth, backward.parent) == (
        0,
        "backward",
        0,
        None,
    )


def test_operations_carry_time_with_and_without_children(report: Report) -> None:
    outer, inner = the_operation(report, "aten::conv2d"), the_operation(report, "aten::convolution")
    assert (outer.cpu_ns, outer.self_cpu_ns) == (120000, 120000 - 100005)
    assert (inner.cpu_ns, inner.self_cpu_ns) == (100005, 100005)
    assert (outer.layer, outer.direction, outer.category) == ("conv1", "forward", "cpu_op")


def test_device_time_of_an_operation_is_that_of_all_kernels_launched_inside_it(
    report: Report,
) -> None:
    both = 20001 + 5000
    assert the_operation(report, "aten::convolution").device_ns == both
    assert the_operation(report, "aten::conv2d").device_ns == both
    assert the_operation(report, "aten::relu").device_ns == 3000
    assert the_operation(report, "aten::convolution_backward").device_ns == 40250


def test_memory_of_an_operation_is_net_and_includes_its_children(report: Report) -> None:
    assert the_operation(report, "aten::convolution").memory_bytes == 4096
    assert the_operation(report, "aten::conv2d").memory_bytes == 4096 - 1024
    assert the_operation(report, "aten::relu").memory_bytes == 0
    assert {(figure.quantity, figure.bytes) for figure in report.memory} == {
        ("allocated", 8192),
        ("reserved", 20971520),
    }


def test_copies_and_steps_have_their_layer_phase_and_time(report: Report) -> None:
    assert [(copy.kind, copy.bytes, copy.layer, copy.duration_ns) for copy in report.copies] == [
        ("HtoD", 4096, None, 1500),
        ("memset", 512, "conv1", 2000),
    ]
    assert [(step.number, step.phase, step.duration_ns) for step in report.steps] == [
        (0, "step", 1000000),
        (0, "forward", 290000),
        (0, "backward", 500000),
    ]


def test_the_environment_holds_software_facts_and_no_job_metadata(report: Report) -> None:
    assert report.environment["cuda"] == "12.4"
    assert report.environment["profile_memory"] == "1"
    assert "somebody" not in repr(report)
    assert "somewhere" not in repr(report)


def test_devices_have_name_capability_and_size(report: Report) -> None:
    assert report.devices[0] == Device("Synthetic GPU", "gpu", 0, "9.0", 132, 16 * 2**30)
    assert (report.started_at, report.duration_ns) == ("2025-07-01T23:00:36+00:00", 1100000)


def test_gzip_and_plain_give_the_same_report(tmp_path: Path, report: Report) -> None:
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(TRACE.read_bytes()))
    found = kineto_trace.parse(packed)
    assert kineto_trace.sniff(packed, packed.read_bytes()[:65536])
    assert (list(found.kernels), list(found.operations)) == (
        list(report.kernels),
        list(report.operations),
    )


@pytest.mark.parametrize(
    ("head", "is_one"),
    [
        (b'\n {"schemaVersion": 1, "traceEvents": [', True),
        (b'{"traceEvents": [', True),
        (b'{"schemaVersion": 1, "job": "...', False),
        (b'\xef\xbb\xbf{"schemaVersion": 1, "deviceProperties": [], "job": "...', True),
        (b'{"schemaVersion": 1, "deviceProperties": [], "distributedInfo": {}, "job": "...', True),
        (b'["traceEvents", "schemaVersion", "deviceProperties"]', False),
        (b'{"format": "perfctl workload"}', False),
        (b"\x1f\x8b broken", False),
        (b"", False),
    ],
)
def test_a_trace_is_recognised_by_content(head: bytes, is_one: bool) -> None:
    assert kineto_trace.sniff(Path("x"), head) is is_one


def test_a_chrome_trace_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"traceEvents": [{"ph": "X", "cat": "v8", "ts": 1, "dur": 1}]}')
    with pytest.raises(ReportError, match=r"without any event of torch\.profiler"):
        kineto_trace.parse(path)


@pytest.mark.parametrize(
    "text",
    [
        '{"schemaVersion": 1, "traceEvents": []}',
        '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "ts": 1, "dur": 1}]}',
    ],
)
def test_a_schema_version_or_one_known_event_is_enough(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    assert kineto_trace.parse(path).tool == "torch"
