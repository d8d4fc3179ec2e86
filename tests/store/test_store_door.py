"""Impossible values are NULL with a gap; a row that needs the value is left out and counted."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

from perfctl import redact
from perfctl.orchestrator.store.write import replace_derived_counts
from perfctl.records.report import (
    ApiCall,
    Collective,
    Copy,
    Counter,
    DerivedCount,
    Device,
    Kernel,
    KernelPart,
    OpCall,
    Operation,
    Range,
    Report,
    Sample,
    SourceCounter,
    Step,
    Summary,
)
from tests.make.stored import write

LAST = 1 << 62
TEN_YEARS = 10 * 365 * 86_400 * 10**9
LARGEST = 2**63 - 1
BELOW = "1 value is below 0 or not a number"
INFINITE = "1 value is infinite or not a number"
NO_NUMBER = "1 value is not a number"
ABOVE = "1 value is above the maximum of {:,}"
GONE = ", so that row is left out"


@pytest.mark.parametrize(
    ("fields", "query", "rows", "gaps"),
    [
        pytest.param(
            {"duration_ns": -1, "rank": -1, "world_size": 0},
            "duration_ns, rank, world_size FROM run",
            [(None, None, 0)],
            {"run.duration_ns": BELOW, "run.rank": BELOW},
            id="run",
        ),
        pytest.param(
            {"devices": (Device("G", "gpu", sm_count=-1, memory_bytes=80 << 30),)},
            "sm_count, memory_bytes FROM device",
            [(None, 80 << 30)],
            {},
            id="device",
        ),
        pytest.param(
            {
                "ranges": [
                    Range(0, "outer", None, 0, -3, 1, 0, None),
                    Range(1, "gone", None, LAST + 1, 5, 1, 1, 0),
                    Range(2, "inner", None, -5, 5, 1, 2, 1),
                ],
                "kernels": [Kernel(0, "k", range_number=1)],
            },
            "range.name, range.start_ns, range.duration_ns, parent, range_id FROM range, kernel",
            [("outer", 0, None, None, None), ("inner", -5, 5, None, None)],
            {"range.start_ns": ABOVE.format(LAST) + GONE, "range.duration_ns": BELOW},
            id="range and what refers to it",
        ),
        pytest.param(
            {
                "kernels": [
                    Kernel(0, "k", registers=-1, start_ns=-TEN_YEARS, duration_ns=inf),
                    Kernel(1, "k", registers=0, start_ns=LAST + 1, duration_ns=0),
                ]
            },
            "registers, start_ns, duration_ns FROM kernel ORDER BY launch",
            [(None, -TEN_YEARS, None), (0, None, 0)],
            {
                "kernel.registers": BELOW,
                "kernel.start_ns": ABOVE.format(LAST),
                "kernel.duration_ns": BELOW,
            },
            id="kernel",
        ),
        pytest.param(
            {"kernels": [Kernel(0, "k", stream="7th"), Kernel(1, "k", stream=7)]},
            "stream FROM kernel",
            [(None,), (7,)],
            {"kernel.stream": NO_NUMBER},
            id="ordinal",
        ),
        pytest.param(
            {"kernel_parts": [KernelPart(n, None, None, 1, 0.5) for n in ("both", 1)]},
            "launch FROM kernel_part",
            [(1,)],
            {"kernel_part.launch": NO_NUMBER + GONE},
            id="row that needs an ordinal",
        ),
        pytest.param(
            {
                "kernels": [Kernel(0, "k")],
                "counters": [Counter(0, f"c{n}", n, None) for n in (0, -1, inf)],
            },
            "value FROM counter ORDER BY rowid",
            [(0,), (None,), (None,)],
            {"counter.value": "2 values are below 0 or not a number"},
            id="counter",
        ),
        pytest.param(
            {
                "kernels": [Kernel(0, "k")],
                "source_counters": [SourceCounter(0, 0, "MOV", None, None, -1, 5)],
            },
            "inst_executed, thread_inst_executed FROM source_counter",
            [(None, 5)],
            {"source_counter.inst_executed": BELOW},
            id="counter of an instruction",
        ),
        pytest.param(
            {
                "copies": [
                    Copy("HtoD", LARGEST, LAST, 1),
                    Copy("HtoD", -5, -TEN_YEARS - 1, 1),
                ]
            },
            "bytes, start_ns FROM copy",
            [(LARGEST, LAST), (None, None)],
            {
                "copy.bytes": BELOW,
                "copy.start_ns": f"1 value is below {-TEN_YEARS:,} or not a number",
            },
            id="copy",
        ),
        pytest.param(
            {
                "samples": [
                    Sample(1, 1.0, None, None, 0.0, -40.0, None),
                    Sample(2, 1.5, None, None, -1.0, 5000.0, None),
                    Sample(LAST + 1, 0.5, None, None, None, None, None),
                ]
            },
            "gpu_utilisation, power_w, temperature_c FROM sample",
            [(1, 0, -40), (None, None, None)],
            {
                "sample.at_ns": ABOVE.format(LAST) + GONE,
                "sample.gpu_utilisation": ABOVE.format(1),
                "sample.power_w": BELOW,
                "sample.temperature_c": ABOVE.format(1000),
            },
            id="sample",
        ),
        pytest.param(
            {
                "operations": [
                    Operation("o", None, 1, ns, None, None, -64, 5)
                    for ns in (TEN_YEARS, TEN_YEARS + 1)
                ]
            },
            "cpu_ns, memory_bytes, flops FROM operation",
            [(TEN_YEARS, -64, 5), (None, -64, 5)],
            {"operation.cpu_ns": ABOVE.format(TEN_YEARS)},
            id="operation",
        ),
        pytest.param(
            {
                "steps": (
                    Step(0, "step", -3, -100, loss=-2.5),
                    Step(1, "step", 1, 2, loss=inf, accuracy=2.0),
                    Step(-1, "step", 1, 2),
                )
            },
            "start_ns, duration_ns, loss, accuracy FROM step",
            [(-3, None, -2.5, None), (1, 2, None, None)],
            {
                "step.number": BELOW + GONE,
                "step.duration_ns": BELOW,
                "step.loss": INFINITE,
                "step.accuracy": ABOVE.format(1),
            },
            id="step",
        ),
        pytest.param(
            {"summaries": (Summary("low", -2.5, None), Summary("endless", -inf, None))},
            "value FROM summary",
            [(-2.5,), (None,)],
            {"summary.value": INFINITE},
            id="summary",
        ),
        pytest.param(
            {"api_calls": [ApiCall("cuda", "f", 0, -1, None, 5)]},
            "calls, total_ns, max_ns FROM api_call",
            [(0, None, 5)],
            {"api_call.total_ns": BELOW},
            id="API call",
        ),
        pytest.param(
            {"op_calls": [OpCall("o", -9, -1, 0), OpCall("o", 1, 2, 3)]},
            "start_ns, duration_ns, device_ns FROM op_call",
            [(-9, None, 0), (1, 2, 3)],
            {"op_call.duration_ns": BELOW},
            id="operator",
        ),
        pytest.param(
            {"collectives": [Collective("all_reduce", "tp", 2, 0, None, -1, 7, -7)]},
            "bytes, start_ns, exposed_ns FROM collective",
            [(0, -1, None)],
            {"collective.exposed_ns": BELOW},
            id="collective",
        ),
    ],
)
def test_impossible_values_are_null_with_a_gap_and_others_stay(writing, fields, query, rows, gaps):
    write(writing, Report("nsys", Path("r"), "made", **fields))
    assert writing.execute(f"SELECT {query}").fetchall() == rows
    assert dict(writing.execute("SELECT quantity, reason FROM gap")) == gaps
    assert not writing.execute("SELECT 1 FROM gap WHERE state <> 'unreadable'").fetchall()


def test_a_negative_derived_count_is_null_with_a_gap(writing):
    report = Report("nsys", Path("r"), "made", kernels=[Kernel(0, "k"), Kernel(1, "k")])
    counts = [DerivedCount(launch, "FFMA", value, "rule") for launch, value in ((0, -1), (1, 0))]
    replace_derived_counts(writing, write(writing, report).run_id, counts)
    assert writing.execute("SELECT value FROM derived_count").fetchall() == [(None,), (0,)]
    assert writing.execute("SELECT quantity FROM gap").fetchall() == [("derived_count.value",)]


def test_a_long_text_is_cut_without_the_beginning_of_a_secret_and_a_gap_says_so(writing):
    token = "ghp_" + "a1B2" * 9
    # the token would be cut after 20 of its 40 characters
    fill = redact.LONGEST - len("k ") - 20
    long = f"k {'x' * (fill - 1)} {token} {'y' * 100_000}"
    whole = "k" * redact.LONGEST
    report = Report("nsys", Path("r"), "made", kernels=[Kernel(0, long), Kernel(1, whole)])
    write(writing, report)
    (cut,), (same,) = writing.execute("SELECT name FROM kernel ORDER BY launch").fetchall()
    assert cut.endswith(f"({len(long):,} characters)")
    assert "ghp_a1" not in cut and len(cut) < redact.LONGEST + 40
    assert same == whole
    (gap,) = writing.execute("SELECT quantity, reason FROM gap").fetchall()
    assert gap == (
        "text",
        f"1 text has up to {len(long):,} characters; perfctl truncates each to {redact.LONGEST:,}",
    )
