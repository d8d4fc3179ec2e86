from __future__ import annotations

import multiprocessing
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.store.read import TABLES
from perfctl.orchestrator.store.write import (
    NUMBERED,
    WrittenRun,
    replace_parameters_and_expectations,
)
from perfctl.records.errors import ReportError
from perfctl.records.paper import LayerCall, OpShape
from perfctl.records.report import Counter, Device, Kernel, Report
from perfctl.records.run import Expectation, Parameter
from tests.make import stored

FACTS = {
    "workload": "mnist_cnn",
    "batch_size": 16,
    "artifact": "r.csv",
    "artifact_sha256": "ab" * 32,
}
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
BIG = 20480 * 20480 * 81920
"""More than 32 bits hold; a float would round larger ones."""
CALLS = (LayerCall("conv1", "Conv2d", "forward", 3_115_008, 6_230_016, 320, 1, 2, 3, "N*P*Q*K"),)

PARAMETERS = (Parameter("N", "20480", 20480.0), Parameter("precision", "fp32", None))
EXPECTATIONS = (
    Expectation("sgemm*", BIG, None, "2*N**3", "option"),
    Expectation("copy", None, 8, None, "file"),
)

VALID = {"state": "not_available"}
"""Field -> one of the few texts that its column takes."""


def fill(record, number, *, is_complete):
    """Return a record in which every field of a kind has another value: whole numbers count up
    from ``number``, texts are the names of their fields (see VALID), ranges refer to the first.
    Optional fields of an incomplete record are None."""
    values: dict[str, Any] = {}
    for index, (name, hint) in enumerate(get_type_hints(record).items()):
        types = get_args(hint) or (hint,)
        integer = 0 if name in ("parent", "range_number") else number + index
        of_type = {int: integer, float: 1 / (number + index + 2), str: VALID.get(name, name)}
        is_missing = type(None) in types and not is_complete
        values[name] = None if is_missing else of_type[types[0]]
    return record(**values)


def full_report():
    """Three records of each kind, the first without its optional fields."""
    rows = {
        field: [fill(record, number, is_complete=number > 0) for number in range(3)]
        for field, (_, record) in {**NUMBERED, **TABLES}.items()
        if field != "source_counters"  # only sums of them are read
    }
    values = ((FFMA, BIG, None), ("x", None, "s"), (FFMA, 0, "inst"))
    rows["counters"] = [Counter(0, name, value, unit) for name, value, unit in values]
    shapes = ((16, 1, 28, 28), None), ((16, 32, 26, 26),)
    op = OpShape(
        "conv1",
        "Conv2d",
        "aten.convolution",
        "forward",
        *shapes,
        ("float32",),
        {"stride": [1, 1]},
        320,
    )
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
        ops=(op,),
        mode="train",
        precision="fp32",
        started_at="2026-01-01T00:00:00Z",
        duration_ns=5,
        rank=3,
        world_size=8,
        host="node7",
        phase="train",
        effective_batch=64,
        **rows,
    )


def write(connection, report=None, *, again=False, **facts):
    calls = CALLS if report else ()
    return stored.write(connection, report, calls, again=again, **{**FACTS, **facts})


def test_everything_that_goes_in_comes_out_again(writing):
    # so that ids do not start at 1
    write(writing, full_report(), artifact_sha256="cd" * 32)
    written = write(writing, full_report(), parameters=PARAMETERS)
    parameters = (*PARAMETERS, Parameter("batch", "16", 16.0))
    assert read.load_run_without_report_rows(writing, written.run_id).parameters == parameters
    replace_parameters_and_expectations(writing, written.run_id, parameters, EXPECTATIONS)
    run = read.load_run(writing, written.run_id)
    expected = full_report()
    for field in Report.__dataclass_fields__:
        if field in ("path", "workload", "batch_size"):
            continue
        got, want = getattr(run.report, field), getattr(expected, field)
        if field == "op_calls":  # millions of them are never read at once
            assert got == ()
            got = list(read.read_op_calls(writing, written.run_id))
        assert list(got) == want if isinstance(want, list) else got == want, field
    assert run.layer_calls == CALLS
    assert run.parameters == parameters
    assert run.expectations == EXPECTATIONS
    assert read.load_run_without_report_rows(writing, written.run_id).parameters == run.parameters
    assert (written.op_calls, run.host) == (3, "node7")
    assert (run.workload, run.batch_size, run.device) == ("mnist_cnn", 16, expected.devices[0])
    assert (
        written.kernels,
        written.counters,
        written.ranges,
        written.copies,
        written.operations,
    ) == (3, 3, 3, 3, 3)
    values = [counter.value for counter in run.report.counters]
    assert values == [BIG, None, 0] and isinstance(values[0], int), (
        "exact, zero stays zero, and unknown stays unknown"
    )


def test_the_same_artifact_goes_in_once_unless_asked_again(writing):
    first = write(writing, full_report())
    assert write(writing, full_report()) == WrittenRun(first.run_id, new=False)
    assert write(writing, full_report(), again=True).new
    # foreign keys are checked again once a run is written
    with pytest.raises(sqlite3.IntegrityError):
        writing.execute(
            "INSERT INTO diagnostic (run_id, severity, source, text) VALUES (77, 'info', 'x', 'y')"
        )
    assert writing.execute("SELECT count(*) FROM run").fetchone() == (2,)


def test_a_report_that_breaks_off_while_it_is_read_leaves_the_store_as_it_was(writing):
    def broken():
        yield Kernel(0, "first")
        raise ReportError(Path("r"), "nsys", "row 2 is damaged", "Export it again")

    before = list(writing.iterdump())
    with pytest.raises(ReportError):
        write(writing, replace(full_report(), kernels=broken()))
    assert list(writing.iterdump()) == before


def test_the_newest_run_of_each_kind_stands_for_the_older_ones(writing):
    old = write(writing, full_report(), artifact_sha256="1").run_id
    new = write(writing, full_report(), artifact_sha256="2").run_id
    other = write(writing, full_report(), artifact_sha256="3", batch_size=32).run_id
    foreign = [
        write(writing, full_report(), workload=None, batch_size=None, artifact_sha256=s).run_id
        for s in "45"
    ]
    small, _, large = [
        write(
            writing,
            full_report(),
            batch_size=None,
            parameters=(Parameter("N", value, float(value)),),
            artifact_sha256=f"N{number}",
        ).run_id
        for number, value in enumerate(("256", "512", "512"))
    ]
    assert read.list_run_ids(writing, latest_per_configuration=True) == [
        new,
        other,
        *foreign,
        small,
        large,
    ]
    assert read.list_repeat_ids(writing, large) == [large - 1]
    assert read.list_run_ids(writing)[:2] == [old, new]


def test_a_later_run_replaces_one_that_is_no_more_complete(writing):
    newest = []
    for number, (folder, status) in enumerate(
        (("a", "failed"), ("a", "partial"), ("b", "partial"), ("a", "ok"), ("b", "partial"))
    ):
        facts = {"status": status, "reason": None if status == "ok" else "stopped"}
        path = f"{folder}/b16/report.sqlite"
        run = write(writing, full_report(), artifact=path, artifact_sha256=str(number), **facts)
        newest += [run.run_id] if number != 4 else []
        assert read.list_run_ids(writing, latest_per_configuration=True) == [newest[-1]]
    assert read.list_run_ids(writing, artifact_folder="b/", latest_per_configuration=True) == [
        run.run_id
    ]


def _write_many(path, mark):
    with database.open_store_for_writing(path) as connection:
        for number in range(10):
            write(connection, full_report(), artifact_sha256=f"{mark}{number}")


def test_two_processes_write_one_store_and_nothing_is_lost(path):
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_write_many, args=(path, mark)) for mark in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    with database.open_store_for_reading(path) as connection:
        assert connection.execute("SELECT count(*) FROM run").fetchone() == (20,)
        assert connection.execute("SELECT count(*) FROM counter").fetchone() == (60,)
        assert connection.execute("SELECT count(*) FROM sweep").fetchone() == (1,)


def test_a_run_that_is_replaced_takes_all_its_rows_with_it_and_no_row_of_another(writing):
    kept = write(writing, full_report(), batch_size=8)
    tables = [
        name for (name,) in writing.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    ]

    def counts():
        return {
            name: writing.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables
        }

    alone = counts()
    assert alone["metric_value"] and alone["kernel_launch"] and alone["layer_call"]
    partial = {"status": "partial", "reason": "stopped", "artifact_sha256": "cd" * 32}
    lost = write(writing, full_report(), **partial)
    assert counts()["metric_value"] == 2 * alone["metric_value"]
    found = write(
        writing, status="failed", reason="out of memory", artifact=None, artifact_sha256=None
    )
    assert counts() == {**alone, "run": 2, "parameter": 2}
    assert [row[0] for row in writing.execute("SELECT id FROM run ORDER BY id")] == [
        kept.run_id,
        found.run_id,
    ]
    assert lost.run_id != kept.run_id
    assert read.load_run(writing, found.run_id).reason == "out of memory"
    write(writing, full_report(), artifact_sha256="ef" * 32)
    assert writing.execute("SELECT status FROM run ORDER BY id").fetchall() == [("ok",), ("ok",)]
    assert writing.execute("PRAGMA foreign_key_check").fetchall() == []
