import gzip
import json
from pathlib import Path

import pytest

from perfctl.orchestrator.report.files.trace import build_chrome_trace
from perfctl.parsers import parse
from perfctl.records.report import Kernel, OpCall, Range, Sample
from tests.cli.conftest import sql
from tests.cli.hostile import ESCAPES, FORMULA, MARKUP
from tests.make import synthetic


def events(path, phase="X"):
    content = json.loads(
        gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    )
    return [event for event in content["traceEvents"] if event["ph"] == phase]


def test_a_steps_kernels_copies_and_ranges_stand_where_they_ran(perfctl, hostile):
    assert perfctl("trace 1 --step 0 --out t.json").code == 0
    found = {event["name"]: event for event in events(Path("t.json"))}
    assert set(found) == {FORMULA, ESCAPES, "Memcpy HtoD", "outer", "inner"}, "not the next step's"
    kernel, copy, inner = found[FORMULA], found["Memcpy HtoD"], found["inner"]
    zero = 900  # the outer range begins first
    assert (kernel["ts"], kernel["dur"]) == ((1000 - zero) / 1000, 500 / 1000)
    assert (kernel["pid"], kernel["tid"]) == (copy["pid"], copy["tid"]), "the same stream"
    assert (inner["ts"], inner["dur"], inner["tid"]) == (0.1, 0.3, 11)
    assert inner["pid"] != kernel["pid"]
    assert (
        kernel["args"] | {"layer": "conv1", "direction": "forward", "grid": [4, 2, 1]}
        == kernel["args"]
    )
    assert copy["args"]["bytes"] == 4096
    assert found[ESCAPES]["dur"] == 0
    assert [event["name"] for event in events(Path("t.json"), "i")] == [MARKUP], (
        "its length is not known"
    )
    names = {event["args"]["name"] for event in events(Path("t.json"), "M")}
    assert names == {"host", "GPU 0", "stream 7", "thread 11"}


def test_a_cpu_run_gives_its_ranges_which_our_own_parser_reads_back(perfctl, replayed):
    assert perfctl(f"trace 1 --step 1 --store {replayed}").code == 0
    back = parse(Path("trace-run1.json.gz"))
    shown = perfctl(f"show 1 --json --store {replayed}").json
    wanted = [(r["name"], r["duration_ns"]) for r in shown["ranges"] if r["step"] == 1]
    assert wanted
    found = [(span.name, span.duration_ns) for span in back.ranges]
    assert sorted(
        name_and_length for name_and_length in found if name_and_length in wanted
    ) == sorted(wanted)


def test_the_last_step_is_taken_where_none_is_named_and_the_same_step_gives_the_same_bytes(
    perfctl, hostile
):
    written = [perfctl(f"trace 1 --out {name}.json.gz --json").json["step"] for name in "ab"]
    assert written == [1, 1]
    assert Path("a.json.gz").read_bytes() == Path("b.json.gz").read_bytes()


def with_everything():
    """Two steps with a range, operators, kernels of which two overlap on a stream, and readings of
    the GPU and the host."""
    ranges = [
        Range(0, "perfctl:step:0", None, 0, 1000, 11, 0, None, step=0),
        Range(
            1, "conv1:forward", None, 100, 300, 11, 1, 0, layer="conv1", direction="forward", step=0
        ),
        Range(2, "perfctl:step:1", None, 2000, 1000, 11, 0, None, step=1),
    ]
    kernels = [
        Kernel(
            0,
            "a",
            layer="conv1",
            step=0,
            range_number=1,
            stream=7,
            start_ns=500,
            duration_ns=200,
            correlation=4,
        ),
        Kernel(
            1, "b", layer="conv1", step=0, range_number=1, stream=7, start_ns=600, duration_ns=300
        ),
        Kernel(2, "c", step=1, range_number=2, stream=7, start_ns=2500, duration_ns=300),
    ]
    samples = [
        Sample(400, 0.5, 1_000_000, 2_000_000, 120.5, 60, 1_400_000_000, 0),
        Sample(2400, 1.0, 1_000_000, 2_000_000, 130.5, 60, 1_400_000_000, 0),
        Sample(450, None, None, None, None, None, None, host_cpu=1.5),
    ]
    return synthetic.foreign_run(1, kernels=kernels, ranges=ranges, samples=samples)


OPERATORS = (
    OpCall("aten::conv2d", 110, 200, 500, "[[1]]", step=0, thread=11),
    OpCall("aten::add", 2100, 200, step=1, thread=11),
    OpCall("aten::copy_", 120, 20, thread=11),
)


def of_kind(content, kind):
    return [
        event for event in content["traceEvents"] if event.get("cat") == kind or event["ph"] == kind
    ]


def test_operators_of_the_step_stand_on_the_thread_of_its_ranges():
    content, counted = build_chrome_trace(with_everything(), 0, OPERATORS)
    found = [
        (event["name"], event["ts"], event["dur"], event["tid"])
        for event in of_kind(content, "cpu_op")
    ]
    assert found == [("aten::conv2d", 0.11, 0.2, 11), ("aten::copy_", 0.12, 0.02, 11)]
    assert (counted.operators, counted.kernels, counted.ranges, counted.arrows) == (2, 2, 2, 2)
    assert {event["tid"] for event in of_kind(content, "user_annotation")} == {11}


def test_readings_of_the_steps_time_are_counters_with_their_unit():
    content, counted = build_chrome_trace(with_everything(), 0)
    found = {
        (event["pid"], event["name"]): (event["ts"], *event["args"].values())
        for event in of_kind(content, "C")
    }
    assert found[1, "GPU utilization (%)"] == (0.4, 50)
    assert found[1, "power (W)"] == (0.4, 120.5)
    assert found[1, "SM clock (Hz)"] == (0.4, 1_400_000_000)
    assert found[1, "memory used (bytes)"] == (0.4, 1_000_000)
    assert found[0, "CPU of the processes (cores)"] == (0.45, 1.5)
    assert counted.samples == 2, "the third is of the next step"


def test_readings_on_another_clock_are_left_out_and_the_file_says_so():
    run = with_everything()
    run = synthetic.with_report(run, samples=[run.report.samples[0]._replace(at_ns=10**18)])  # type: ignore[index]
    content, counted = build_chrome_trace(run, None)
    assert counted.samples == 0
    assert "none of 1 samples lies in this time" in content["otherData"]["missing"]


def test_an_arrow_leads_from_the_range_around_a_launch_to_its_kernel():
    content, _ = build_chrome_trace(with_everything(), 0)
    starts = {event["id"]: event for event in of_kind(content, "s")}
    ends = {event["id"]: event for event in of_kind(content, "f")}
    assert starts.keys() == ends.keys() == {1, 2}
    kernels = {event["name"]: event for event in of_kind(content, "kernel")}
    for number, name in ((1, "a"), (2, "b")):
        assert [starts[number][key] for key in ("pid", "tid", "ts")] == [0, 11, 0.1], (
            "where conv1:forward begins"
        )
        assert [ends[number][key] for key in ("pid", "tid", "ts")] == [
            kernels[name][key] for key in ("pid", "tid", "ts")
        ]
        assert ends[number]["bp"] == "e"
    assert kernels["a"]["args"]["correlation"] == 4


def test_kernels_that_overlap_on_a_stream_stand_on_two_lines_because_perfetto_drops_what_does_not_nest():
    content, _ = build_chrome_trace(with_everything(), 0)
    lines = {event["name"]: event["tid"] for event in of_kind(content, "kernel")}
    assert lines["a"] != lines["b"]
    names = {
        event["tid"]: event["args"]["name"]
        for event in of_kind(content, "M")
        if event["name"] == "thread_name"
    }
    assert (names[lines["a"]], names[lines["b"]]) == ("stream 7", "stream 7, overlapping 1")


def test_names_and_times_of_a_real_trace_equal_the_store_by_query(perfctl, reports):
    perfctl("ingest", reports / "kineto" / "tracelens_h100_Falconsai_vit.json.gz")
    answer = perfctl("trace 1 --whole --out t.json.gz --json").json
    content = json.loads(gzip.decompress(Path("t.json.gz").read_bytes()))
    zero = int(content["otherData"]["zero_ns"])
    tables = (
        ("kernel", "kernel", "kernels"),
        ("op_call", "cpu_op", "operators"),
        ("range", "user_annotation", "ranges"),
    )
    for table, kind, said in tables:
        stored = sql(
            f"SELECT name, start_ns, duration_ns FROM {table} WHERE duration_ns IS NOT NULL"
        )
        written = [
            (event["name"], round(event["ts"] * 1000) + zero, round(event["dur"] * 1000))
            for event in of_kind(content, kind)
            if event["ph"] == "X"
        ]
        assert sorted(written) == sorted(stored), table
        assert answer[said] == len(stored)
    assert answer["operators"] > 0


@pytest.mark.parametrize("has_steps", [True, False])
def test_a_run_without_times_is_refused_in_one_line_with_the_profiler_that_has_them(
    perfctl, hostile, has_steps
):
    for table in ("range", "copy", *(() if has_steps else ("step",))):
        sql(f"DELETE FROM {table}")
    sql(f"UPDATE kernel_launch SET start_ns = NULL{'' if has_steps else ', step = NULL'}")
    answer = perfctl("trace 1")
    assert (answer.code, answer.err.count("\n")) == (1, 1) and "perfctl nsys" in answer.err
