"""What an agent does with the answers: it finds the slowest run, mends a wrong question, and reads
one counter."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from perfctl.orchestrator.actions.ingest import ingest
from perfctl.orchestrator.actions.mcp import tools
from perfctl.orchestrator.errors import PerfctlError
from tests.make.kineto import annotation, event, kernel

RING = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def ask(store: Path, tool: str, **arguments: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tools.call(store, tool, arguments))
    return found


def refused(store: Path, tool: str, **arguments: Any) -> str:
    with pytest.raises(PerfctlError) as error:
        tools.call(store, tool, arguments)
    return str(error.value)


def test_the_list_of_runs_says_which_has_the_longest_steps(store: Path) -> None:
    said = ask(store, "list_runs")
    rows = {row["id"]: row for row in said["rows"]}
    with closing(sqlite3.connect(store)) as db:
        for run in (1, 2):
            taken = [
                ns
                for (ns,) in db.execute(
                    "SELECT duration_ns FROM step WHERE run_id = ? AND phase = 'step'", (run,)
                )
            ]
            assert rows[run]["step_median_ns"] == median(taken)
    assert rows[3]["step_median_ns"] is None
    assert rows[3]["why_null"]["step_median_ns"] == "no steps were timed"
    assert said["units"]["step_median_ns"] == said["units"]["kernel_time_ns"] == "ns"


def test_the_time_of_all_kernels_is_their_sum_and_null_where_one_has_none(
    tmp_path: Path, store: Path
) -> None:
    events = [
        kernel("gemm", 0, 10, device=0),
        kernel("add", 20, 5, device=0),
        annotation("ProfilerStep#3", 0, 30),
    ]
    (tmp_path / "t.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    ingest(tmp_path / "t.json", tmp_path / "s.db")
    (row,) = ask(tmp_path / "s.db", "list_runs")["rows"]
    assert row["kernel_time_ns"] == (10 + 5) * 1000
    assert (row["step_median_ns"], row["clock"]) == (30 * 1000, None)
    assert row["why_null"]["clock"] == "the report's own: its steps are ranges on the host", (
        "steps were timed"
    )
    counted = next(row for row in ask(store, "list_runs")["rows"] if row["id"] == 3)
    assert counted["kernel_time_ns"] is None
    assert (
        "duration" in counted["why_null"]["kernel_time_ns"]
        or "time" in counted["why_null"]["kernel_time_ns"]
    )


def test_errors_name_what_there_is_and_no_command_that_an_agent_has_not(store: Path) -> None:
    layer = refused(store, "ledger", layer="conv9")
    assert "no 'conv9'" in layer and "There are conv2, conv1 and 13 more" in layer
    column = refused(store, "query", sql="SELECT device_name FROM run")
    assert "no such column: device_name. run has id, sweep_id" in column and "device_id" in column
    table = refused(store, "query", sql="SELECT 1 FROM absent")
    assert "There are sweep, device, run" in table
    batch, run = refused(store, "ledger", batch=99), refused(store, "run", run=99)
    unknown = refused(store, "kernels", runs=3)
    assert "'runs' was unexpected" in unknown and "It takes limit, offset, run, name" in unknown
    every = (layer, column, table, batch, run, unknown, refused(store, "query", sql="SELECT ("))
    assert [
        one
        for one in every
        if any(word in one for word in ("docs/", "perfctl ledger", "perfctl runs", "--"))
    ] == []


def test_a_comparison_that_is_refused_names_the_argument_that_overrides_it(store: Path) -> None:
    said = ask(store, "compare", a="run:1", b="run:2")
    assert said["not_comparable"] == 1
    assert any("anyway=true judges all the same" in text for text in said["findings"])
    assert not any("--anyway" in text for text in said["findings"])


def test_counters_of_a_launch_can_be_chosen_by_name(store: Path) -> None:
    said = ask(store, "kernel", run=3, launch=0, counter="FFMA")
    every = ask(store, "kernel", run=3, launch=0, limit=1000)["rows"]
    assert said["rows"] == [row for row in every if "ffma" in row["name"].lower()] != []
    assert said["rows_total"] == len(said["rows"])
    none = ask(store, "kernel", run=3, launch=0, counter="dram")
    assert (none["rows"], none["rows_are"]) == (
        [],
        "counters of the launch with 'dram' in their names: counted, each in the unit beside it",
    )


def test_findings_have_those_of_a_job_of_several_ranks_with_their_runs(tmp_path: Path) -> None:
    """Each rank computes 10 us and talks 20 us, 15 of them alone: 15 of 25."""
    for rank in (0, 1):
        events = [
            kernel("gemm", 0, 10, device=0),
            kernel(RING, 5, 20, device=0),
            event("cpu_op", "aten::mm", 0, 1),
        ]
        world = {"rank": rank, "world_size": 2}
        (tmp_path / f"w{rank}.json").write_text(
            json.dumps(
                {"schemaVersion": 1, "distributedInfo": world, "n": rank, "traceEvents": events}
            )
        )
    ingest(tmp_path, tmp_path / "s.db")
    said = ask(tmp_path / "s.db", "findings")
    (row,) = (row for row in said["rows"] if "of the job" in row["text"])
    assert (row["study"], row["runs"]) == ("job of 2 ranks", [1, 2])
    assert "15.0 µs" in row["text"] and f"{15 / 25:.1%}" in row["text"]


def test_descriptions_are_short_and_say_what_else_to_ask() -> None:
    """An agent reads all of them before its first question."""
    for tool in tools.TOOLS:
        assert len(tool.description) < 400, tool.name
        assert tool.description.count(tools.FLOPS) <= 1
        assert tools.NOTE not in tool.description
        assert all("description" in one for one in tool.takes.values())
