"""Events of a Kineto trace: what is one, what one pass over them leaves, single values, versions and gaps."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfctl.parsers import ReportError, parse
from perfctl.parsers.kineto import trace as kineto_trace
from perfctl.parsers.kineto import xla
from perfctl.parsers.kineto.stream import parse_int64, parse_microseconds_as_ns
from perfctl.records.report import Kernel
from tests.make.files import write
from tests.make.kineto import (
    collect,
    event,
    kernel,
    launch,
    operation,
    read,
)

VALUE = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.just([1, 2, 3])
    | st.just({})
)
CATEGORIES = (
    *("cpu_op", "Operator", "user_annotation", "cuda_runtime", "cuda_driver", "hip_runtime"),
    *("xpu_runtime", "Runtime", "kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset"),
    *("Memset", "cuda_profiler_range", "Trace", "python_function", "cuda_sync"),
)
FIELD = st.fixed_dictionaries(
    {
        "ph": st.just("X"),
        "cat": st.sampled_from([*CATEGORIES, "cpu_instant_event"]),
        "name": VALUE | st.just("[memory]"),
    },
    optional={
        "pid": VALUE,
        "tid": VALUE,
        "ts": VALUE | st.integers(0, 50),
        "dur": VALUE | st.integers(0, 50),
        "args": st.dictionaries(
            st.sampled_from(
                ["External id", "correlation", "grid", "device", "stream", "bytes", "Bytes"]
            ),
            VALUE | st.integers(0, 5),
        ),
    },
)


@given(st.lists(FIELD, min_size=1, max_size=12))
@settings(max_examples=80)
def test_whatever_stands_in_the_fields_every_kernel_is_kept_and_ranges_are_numbered(
    tmp_path_factory, events
):
    found = kineto_trace.parse(
        write(
            tmp_path_factory.mktemp("any") / "trace.json",
            json.dumps({"schemaVersion": 1, "traceEvents": events}),
        )
    )
    repeated = sum(
        int(entry.text.split()[0]) for entry in found.diagnostics if "twice" in entry.text
    )
    kernels = sum(event["cat"] in ("kernel", "Kernel") for event in events)
    assert kernels - repeated <= len(list(found.kernels)) <= kernels
    for entry in found.operations:
        assert entry.cpu_ns is None or entry.self_cpu_ns is None or entry.self_cpu_ns >= 0
    assert [entry.number for entry in found.ranges] == list(range(len(list(found.ranges))))


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
def test_a_trace_is_recognised_by_content(head, is_one):
    assert kineto_trace.sniff(Path("x"), head) is is_one


def test_a_chrome_trace_of_another_program_is_refused(tmp_path):
    with pytest.raises(ReportError, match=r"without torch\.profiler events"):
        kineto_trace.parse(
            write(
                tmp_path / "other.json",
                '{"traceEvents": [{"ph": "X", "cat": "v8", "ts": 1, "dur": 1}]}',
            )
        )


# What one pass over the events of a trace leaves: spans, calls, device work, memory, and what


def test_an_external_id_leads_to_its_span_unless_several_share_it():
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
    category, name, is_range
):
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
def test_the_window_reaches_over_all_windows_of_the_trace(windows, expected):
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
    kind, category, counted
):
    assert collect([{"ph": kind, "cat": category, "name": "x"}]).unknown == counted


def test_every_kind_of_event_of_the_chrome_format_is_known():
    kinds = "BEXiICbneSTpFstfPNODMvRc()"
    assert not collect([{"ph": kind, "name": "x"} for kind in kinds]).unknown


# Single values of a Kineto trace: what they become, exactly, and where a value stops


LAST = 2**63 - 1


@pytest.mark.parametrize(
    ("microseconds", "expected"),
    [
        (0, 0),
        (5, 5_000),
        (-5, -5_000),
        ("7", 7_000),
        ("1.5", 1_500),
        ("1.25", 1_250),
        ("1.2346", 1_235),
        ("1623143089861.123", 1_623_143_089_861_123),
        ("-0.500", -500),
        ("-1.250", -1_250),
        ("2e3", 2_000_000),
        (9_223_372_036_854_775, 9_223_372_036_854_775_000),
        (9_223_372_036_854_776, None),
        ("9223372036854775.807", LAST),
        ("9223372036854775.808", None),
        ("-9223372036854775.808", -LAST - 1),
        ("-9223372036854775.809", None),
        (1.5, 1_500),
        (4348661288164.763, 4_348_661_288_164_763),
        (True, None),
        (None, None),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ([1], None),
        ("169581e4005579936493", None),
        ("1e999999", None),
        ("-1e999999", None),
        (1e306, None),
    ],
)
def test_microseconds_become_nanoseconds_to_the_last_digit(microseconds, expected):
    assert parse_microseconds_as_ns(microseconds) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (12, 12),
        ("12", 12),
        (-3, -3),
        (LAST, LAST),
        (str(LAST), LAST),
        (LAST + 1, None),
        (str(LAST + 1), None),
        (-LAST - 1, -LAST - 1),
        (-LAST - 2, None),
        (1.0, None),
        ("1.0", None),
        (True, None),
        (None, None),
        ("x", None),
    ],
)
def test_only_integers_that_fit_64_bits_are_whole(value, expected):
    assert parse_int64(value) == expected


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"External id": 3}, 3),
        ({"External id": "3"}, 3),
        ({"external id": 4}, 4),
        ({"external id": "5"}, 5),
        ({"External id": 0, "external id": 9}, 0),
        ({"External id": -7}, -1),
        ({}, -1),
        ({"External id": "none"}, -1),
        ({"External id": LAST + 1}, -1),
    ],
)
def test_an_external_id_is_read_in_both_spellings(args, expected):
    (span,) = collect([{**operation("op", 1, 1), "args": args}]).spans
    assert span.external == expected


# Launches tied to their operations by external IDs, and steps from ranges


def device_time(found, name):
    (only,) = [op for op in found.operations if op.name == name]
    return only.device_ns


@pytest.mark.parametrize(
    ("dur", "thread", "at", "inside"),
    [
        (10, 1, 9.999, False),
        (10, 1, 10, True),
        (10, 1, 20, True),
        (10, 1, 20.001, False),
        (10, 2, 15, False),
        (None, 1, 9.999, False),
        (None, 1, 10, True),
        (None, 1, 10.001, False),
    ],
)
def test_an_external_id_is_believed_from_the_begin_to_the_end_of_its_operation_on_its_thread(
    dur, thread, at, inside, tmp_path
):
    events = [operation("op", 10, dur, 1), launch(at, 5, thread=thread), kernel("k", 50, 3, 1, 5)]
    assert device_time(read(tmp_path, *events), "op") == (3000 if inside else 0)


@pytest.mark.parametrize(
    ("start", "inside"), [(9.999, False), (10, True), (90, True), (None, False)]
)
def test_without_a_launch_call_the_external_id_holds_for_what_began_no_earlier(
    start, inside, tmp_path
):
    found = read(
        tmp_path, operation("op", 10, 5, 1), kernel("k", start, 3, 1), operation("last", 30, 5, 2)
    )
    assert device_time(found, "op") == (3000 if inside else None)
    assert device_time(found, "last") == (0 if inside else None)
    reasons = [gap.reason for gap in found.gaps if gap.quantity == "operation.device_ns"]
    assert [reason[:9] for reason in reasons] == ([] if inside else ["no kernel"])


# Versions and gaps of a Kineto trace


MM = operation("aten::mm", 1, 2, 1)
CALL = event("cuda_runtime", "cudaMalloc", 5, 1, correlation=7)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"cuda_runtime_version": 12040}, {"cuda_runtime_version": "12040", "cuda": "12.4"}),
        ({"cuda_runtime_version": "11080"}, {"cuda_runtime_version": "11080", "cuda": "11.8"}),
        ({"cuda_runtime_version": 0}, {"cuda_runtime_version": "0"}),
        (
            {"hip_runtime_version": 60_342_134},
            {"hip_runtime_version": "60342134", "hip": "6.3.42134"},
        ),
        (
            {"distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8, "host": "x"}},
            {"distributed_backend": "nccl", "distributed_rank": "3", "distributed_world_size": "8"},
        ),
        ({"distributedInfo": {"rank": [1]}}, {}),
        ({"pytorch_version": "2.1.0"}, {"torch": "2.1.0"}),
        ({"baseTimeNanoseconds": 7}, {"clock_base_ns": "7"}),
        ({"with_stack": 1, "record_shapes": [1]}, {"with_stack": "1"}),
        ({"distributedInfo": "none", "cupti_version": 22}, {"cupti_version": "22"}),
        ({"hip_runtime_version": 60_300_000}, {"hip_runtime_version": "60300000", "hip": "6.3.0"}),
        (
            {"hip_driver_version": 60_342_134, "baseTimeNanoseconds": 1.5},
            {"hip_driver_version": "60342134"},
        ),
    ],
)
def test_versions_are_read_from_cuda_and_hip_numbers(metadata, expected, tmp_path):
    """CUDA: 1000 x major + 10 x minor; HIP: 10,000,000 x major + 100,000 x minor + patch."""
    assert read(tmp_path, MM, **metadata).environment == {
        **expected,
        "schema_version": "1",
    }


def test_without_single_operators_only_the_sums_are_kept(tmp_path):
    report = read(tmp_path, operation("aten::add", 10, 20, 1))
    without = kineto_trace.parse(report.path, single_operators=False)
    assert list(without.op_calls) == []
    assert list(without.operations) == list(report.operations)


def test_a_reason_names_at_most_three_kernels_in_one_sentence():
    kernels = [
        Kernel(number, f"{number}_{'long_name_' * 20}", start_ns=0, duration_ns=10)
        for number in range(4000)
    ]
    kernels.append(Kernel(4000, "gemm", "gemm", "fc", "forward", 0, "range", duration_ns=10))
    reasons = [
        gap.reason
        for gap in kineto_trace._list_missing_kernel_field_gaps(kernels, has_operator_rows=True)
        if gap.quantity == "kernel.layer"
    ]
    assert len(reasons) == 1
    assert reasons[0].endswith(" and 3997 more")
    assert len(reasons[0]) <= 160


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ([launch(5, 1), launch(9, 2)], "2 launches recorded, GPU activity missing"),
        ([CALL], "1 CUDA calls and no launch recorded, GPU activity missing"),
        ([], "the trace holds no GPU activity: torch.profiler ran without"),
    ],
)
def test_why_a_trace_has_no_kernel(calls, reason, tmp_path):
    gaps = read(tmp_path, MM, *calls).gaps
    assert [gap.reason.startswith(reason) for gap in gaps if gap.quantity == "kernel"] == [True]


def test_calls_of_merged_ranks_share_a_number_and_each_has_its_kernel(tmp_path):
    merged = [launch(5, 1), {**launch(5, 1), "pid": 77}]
    lost = launch(9, 2)
    reasons = []
    kernels = [kernel(name, 6, 1, correlation=1) for name in "ab"]
    for calls in (merged, [*merged, lost]):
        gaps = read(tmp_path, *calls, *kernels).gaps
        reasons.append([gap.reason for gap in gaps if "launch calls" in gap.reason])
    assert reasons[0] == []
    assert [text.partition(" in the trace")[0] for text in reasons[1]] == [
        "1 of 3 launch calls have no kernel"
    ]


# Traces of JAX that break off; what they hold otherwise is a case (tests/data/kineto/jax)


TRACE = Path(__file__).resolve().parents[2] / "data" / "kineto" / "jax" / "two_gpus.json"


@pytest.mark.parametrize(("beyond", "gaps"), [(0, 1), (-1, 0)])
def test_a_trace_as_long_as_the_limit_may_lack_events(beyond, gaps, monkeypatch):
    events = TRACE.read_text().count('"ph": "X"')
    monkeypatch.setattr(xla, "LIMIT", events + beyond)
    assert sum(gap.quantity == "kernel" for gap in parse(TRACE).gaps) == gaps
