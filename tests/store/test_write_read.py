from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.store.write import RunFacts, SweepFacts, Written, write_run
from perfctl.records import report as records
from perfctl.records.errors import ReportError
from perfctl.records.paper import LayerCall, OpShape
from perfctl.records.report import Counter, Device, Kernel, Range, Report
from perfctl.records.serving import GraphLaunch, ServedStep

SWEEP = SweepFacts("a sweep", "sweep", "perfctl ncu --batches 16", "host")
FACTS = RunFacts(
    "ncu", "ok", "measured", "mnist_cnn", 16, artifact="r.csv", artifact_sha256="ab" * 32
)
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
BIG = 20480 * 20480 * 81920
"""More than 32 bits hold; a float would round larger ones."""


def full_report() -> Report:
    """One of everything."""
    return Report(
        tool="ncu",
        path=Path("r.csv"),
        form="ncu CSV",
        tool_version="2025.3",
        devices=(
            Device("NVIDIA H200", "gpu", 0, "9.0", 132, 1 << 37, None, None, "580"),
            Device("CPU", "cpu", 1),
        ),
        environment={"torch": "2.15", "tf32_conv": "off"},
        ranges=[
            Range(0, "perfctl:step:0", None, -5, 100, 7, 0, None, step=0),
            Range(1, "conv1:forward", None, 0, 10, 7, 1, 0, gpu_ns=8, gpu_span_ns=9),
        ],
        kernels=[
            Kernel(
                0,
                "gemm<float>",
                "gemm",
                "conv1",
                "forward",
                0,
                "range",
                1,
                0,
                7,
                1,
                2,
                3,
                4,
                5,
                6,
                32,
                64,
                128,
                10,
                20,
            ),
            Kernel(
                1,
                "other",
                process=4711,
                context=1,
                graph_id=2,
                graph_node_id=3,
                correlation=99,
                cluster_x=2,
                cluster_y=1,
                cluster_z=1,
                occupancy=0.5,
                source="counted",
            ),
        ],
        counters=[
            Counter(0, FFMA, BIG, None),
            Counter(0, "x", None, None, "s", "text"),
            Counter(1, FFMA, 0, "inst"),
        ],
        copies=[records.Copy("PtoP", 4096, 1, 2, None, 0, 7, "device", "pinned", 1)],
        operations=[
            records.Operation(
                "aten::conv2d", "cpu_op", 3, 30, 20, None, None, None, "conv1", "forward"
            )
        ],
        samples=[records.Sample(1, 0.5, 10, 20, 100.5, 40.0, 10**9, 0)],
        steps=(records.Step(0, "step", 0, 100, 2.3, None),),
        memory=(records.MemoryFigure("peak", "allocated", 18_037_080),),
        summaries=(
            records.Summary("GPU Utilization", 8.0, "%"),
            records.Summary("GPU Name", None, None, "V100"),
        ),
        ops=(
            OpShape(
                "conv1",
                "Conv2d",
                "aten.convolution",
                "forward",
                ((16, 1, 28, 28), None),
                ((16, 32, 26, 26),),
                ("float32",),
                {"stride": [1, 1]},
                320,
            ),
        ),
        gaps=(records.Gap("counter:x", "not_available", "n/a", "gemm"),),
        diagnostics=(records.Diagnostic("warning", "ncu", "a warning"),),
        mode="train",
        precision="fp32",
        started_at="2026-01-01T00:00:00Z",
        duration_ns=5,
        api_calls=[
            records.ApiCall("cuda", "cudaLaunchKernel", 3, 30, 5, 20),
            records.ApiCall("osrt", "poll", 0, None),
        ],
        op_calls=[
            records.OpCall(
                "aten::conv2d",
                0,
                5,
                3,
                "[[1, 2]]",
                '["float"]',
                "conv1",
                "forward",
                0,
                7,
                "a.py(1)",
            ),
            records.OpCall("aten::relu", None, None),
        ],
        collectives=[
            records.Collective("all_reduce", "tp", 8, 4096, "bfloat16", 1, 20, 0),
            records.Collective("barrier"),
        ],
        threads=(records.Thread(4711, 7, "python"),),
        compiled_kernels=[
            records.CompiledKernel("triton_poi_fused_add_0", "/a.py", "c0", "triton", "add", 3, 70)
        ],
        advice=[
            records.Advice(0, "Occupancy", "OPT", "a text", 0.25, "local"),
            records.Advice(None, "whole"),
        ],
        rank=3,
        world_size=8,
        host="node7",
        phase="train",
        effective_batch=64,
        kernel_parts=[
            records.KernelPart(0, "block.act", "forward", 1, 0.5),
            records.KernelPart(0, None, None, 1, 0.5),
        ],
        served_steps=[ServedStep(0, "m", "mixed", 2, 100, None, 0, 1, None)],
        graph_launches=[
            GraphLaunch(99, 0, 2, 70, "capture_8_FULL", 1, "name", 0.5),
            GraphLaunch(100, None, 1, None),
        ],
    )


CALLS = (LayerCall("conv1", "Conv2d", "forward", 3_115_008, 6_230_016, 320, 1, 2, 3, "N*P*Q*K"),)


def write(
    connection: sqlite3.Connection,
    facts: RunFacts = FACTS,
    report: Report | None = None,
    **more: bool,
) -> Written:
    return write_run(connection, SWEEP, facts, report, CALLS if report else (), **more)


def test_everything_that_goes_in_comes_out_again(writing: sqlite3.Connection) -> None:
    # so that ids do not start at 1
    write(writing, replace(FACTS, artifact_sha256="cd" * 32), full_report())
    written = write(writing, report=full_report())
    (run,) = read.load(writing, [written.run_id])
    expected = full_report()
    for field in Report.__dataclass_fields__:
        if field in ("path", "workload", "batch_size"):
            continue
        got, want = getattr(run.report, field), getattr(expected, field)
        if field == "op_calls":  # millions of them are never read at once
            assert got == ()
            got = list(read.op_calls(writing, written.run_id))
        assert (list(got) if isinstance(want, list) else got) == want, field
    assert run.layer_calls == CALLS
    assert run.families == (None, None)  # derived later
    assert (written.op_calls, run.host) == (2, "node7")
    assert (run.workload, run.batch_size, run.device) == ("mnist_cnn", 16, expected.devices[0])
    assert (
        written.kernels,
        written.counters,
        written.ranges,
        written.copies,
        written.operations,
    ) == (2, 3, 2, 1, 1)
    values = [counter.value for counter in run.report.counters]
    assert values == [BIG, None, 0] and isinstance(values[0], int), (
        "exact, zero stays zero, and unknown stays unknown"
    )


def test_the_same_artifact_goes_in_once_unless_asked_again(writing: sqlite3.Connection) -> None:
    first = write(writing, report=full_report())
    assert write(writing, report=full_report()) == Written(first.run_id, new=False)
    assert write(writing, report=full_report(), again=True).new
    # foreign keys are checked again once a run is written
    with pytest.raises(sqlite3.IntegrityError):
        writing.execute(
            "INSERT INTO diagnostic (run_id, severity, source, text) VALUES (77, 'info', 'x', 'y')"
        )
    assert writing.execute("SELECT count(*) FROM run").fetchone() == (2,)


def test_a_report_that_breaks_off_while_it_is_read_leaves_the_store_as_it_was(
    writing: sqlite3.Connection,
) -> None:
    def broken() -> Iterator[Kernel]:
        yield Kernel(0, "first")
        raise ReportError(Path("r"), "nsys", "row 2 is damaged", "Export it again")

    before = list(writing.iterdump())
    with pytest.raises(ReportError):
        write(writing, report=replace(full_report(), kernels=broken()))
    assert list(writing.iterdump()) == before


def test_the_newest_run_of_each_kind_stands_for_the_older_ones(writing: sqlite3.Connection) -> None:
    old = write(writing, replace(FACTS, artifact_sha256="1"), full_report()).run_id
    new = write(writing, replace(FACTS, artifact_sha256="2"), full_report()).run_id
    other = write(writing, replace(FACTS, artifact_sha256="3", batch_size=32), full_report()).run_id
    foreign = [
        write(writing, RunFacts("ncu", "ok", "ingested", artifact_sha256=s), full_report()).run_id
        for s in "45"
    ]
    assert read.run_ids(writing, latest_of_each=True) == [new, other, *foreign]
    assert read.run_ids(writing) == [old, new, other, *foreign]


def _write_many(path: Path, mark: str) -> None:
    with database.writing(path) as connection:
        for number in range(10):
            write(connection, replace(FACTS, artifact_sha256=f"{mark}{number}"), full_report())


def test_two_processes_write_one_store_and_nothing_is_lost(path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_write_many, args=(path, mark)) for mark in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
        assert writer.exitcode == 0
    with database.reading(path) as connection:
        assert connection.execute("SELECT count(*) FROM run").fetchone() == (20,)
        assert connection.execute("SELECT count(*) FROM counter").fetchone() == (60,)
        assert connection.execute("SELECT count(*) FROM sweep").fetchone() == (1,)


def _die_in_the_middle(path: Path) -> None:
    def kernels() -> Iterator[Kernel]:
        for launch in range(50_000):
            yield Kernel(launch, "k")
        os.kill(os.getpid(), signal.SIGKILL)

    with database.writing(path) as connection:
        write(connection, report=replace(full_report(), kernels=kernels(), counters=()))


def test_after_a_kill_in_the_middle_the_store_holds_none_of_it_and_takes_it_again(
    is_killed: Callable[..., None], path: Path
) -> None:
    is_killed(_die_in_the_middle, path)
    with database.writing(path) as connection:
        assert connection.execute("SELECT count(*) FROM run").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM kernel").fetchone() == (0,)
        assert write(connection, report=full_report()).new


def test_a_run_that_is_replaced_takes_all_its_rows_with_it_and_no_row_of_another(
    writing: sqlite3.Connection,
) -> None:
    kept = write(writing, replace(FACTS, batch_size=8, artifact_sha256="ab" * 32), full_report())
    tables = [
        name for (name,) in writing.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    ]

    def counts() -> dict[str, int]:
        return {
            name: writing.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables
        }

    alone = counts()
    assert alone["metric_value"] and alone["kernel_launch"] and alone["layer_call"]
    partial = replace(FACTS, status="partial", reason="stopped", artifact_sha256="cd" * 32)
    lost = write(writing, partial, full_report())
    assert counts()["metric_value"] == 2 * alone["metric_value"]
    found = write(
        writing,
        replace(
            FACTS, status="failed", reason="out of memory", artifact=None, artifact_sha256=None
        ),
    )
    assert counts() == {**alone, "run": 2}
    assert [row[0] for row in writing.execute("SELECT id FROM run ORDER BY id")] == [
        kept.run_id,
        found.run_id,
    ]
    assert lost.run_id != kept.run_id
    assert read.load(writing, [found.run_id])[0].reason == "out of memory"
    write(writing, replace(FACTS, artifact_sha256="ef" * 32), full_report())
    assert writing.execute("SELECT status FROM run ORDER BY id").fetchall() == [("ok",), ("ok",)]
    assert writing.execute("PRAGMA foreign_key_check").fetchall() == []
