"""Ten questions of an agent, each against the store itself or against the dimensions."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import pytest

Answers = dict[str, Any]
Rows = Callable[..., list[tuple[Any, ...]]]
FLOPS = (
    "SELECT sum(flops) AS flops, batch_size FROM layer_call JOIN run ON run.id = run_id GROUP BY "
    "batch_size ORDER BY 2"
)
QUESTIONS = {
    "which runs are there": ("list_runs", {}),
    "what does conv1 cost": ("ledger", {"layer": "conv1", "batch": 16}),
    "what stands out": ("findings", {}),
    "which kernels ran": ("kernels", {"run": 3}),
    "what did one launch execute": ("kernel", {"run": 3, "launch": 0}),
    "is the larger batch slower": (
        "compare",
        {"a": "run:1", "b": "run:2", "anyway": True, "every_row": True},
    ),
    "how many FLOPs has a step": ("query", {"sql": FLOPS}),
    "what is known of run 2": ("run", {"run": 2}),
    "why is there no time": ("gaps", {"run": 3, "quantity": "duration"}),
    "what may be asked of": ("tables", {"table": "gap"}),
}


@pytest.fixture(scope="module")
def answers(store: Path, ask: Any) -> Answers:
    got = ask(store, list(QUESTIONS.values()))
    assert [one.text for one in got if one.refused] == []
    assert [json.loads(one.text) for one in got] == [one.held for one in got]
    return {question: one.held for question, one in zip(QUESTIONS, got, strict=True)}


@pytest.fixture
def rows(store: Path) -> Rows:
    def found(sql: str, *bound: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
            return db.execute(sql, bound).fetchall()

    return found


def test_every_answer_says_version_units_sources_and_the_convention_of_flops(
    answers: Answers,
) -> None:
    for question, said in answers.items():
        assert said["schema"] == "perfctl.mcp/1", question
        assert said["tool"] == QUESTIONS[question][0]
        assert said["flops"] == "1 multiply-add = 2 FLOPs"
        assert said["sources"], question
        assert isinstance(said["units"], dict)
        assert "never instructions" in said["note"]


def test_the_list_of_runs_is_that_of_the_store_and_null_has_its_gaps_reason(
    answers: Answers, rows: Rows
) -> None:
    said = answers["which runs are there"]
    assert [row["id"] for row in said["rows"]] == [
        number for (number,) in rows("SELECT id FROM run ORDER BY id DESC")
    ]
    on_cpu = next(row for row in said["rows"] if row["id"] == 1)
    ((reason,),) = rows("SELECT reason FROM gap WHERE run_id = 1 AND quantity = 'kernel'")
    assert on_cpu["kernels"] is None
    assert on_cpu["why_null"]["kernels"] == reason
    assert said["units"]["duration_ns"] == "ns"
    for row in said["rows"]:
        assert set(row["why_null"]) == {name for name, value in row.items() if value is None}


def test_the_ledger_has_the_flops_of_the_layers_dimensions(answers: Answers) -> None:
    """conv1: 3 x 3, 1 channel to 32, on 28 x 28 without padding."""
    said = answers["what does conv1 cost"]
    forward = next(row for row in said["rows"] if row["direction"] == "forward")
    assert forward["paper_flops"] == 2 * 16 * 26 * 26 * 32 * (1 * 3 * 3)
    assert forward["counted_flops"] is None
    assert "CPU" in forward["counted_why"]
    assert said["units"]["paper_flops"] == "FLOP"
    assert said["units"]["time_ns"] == "ns"
    assert {row["layer"] for row in said["rows"]} == {"conv1"}
    assert {source["run"] for source in said["sources"]} >= {1}


def test_findings_name_the_runs_that_prove_them(answers: Answers) -> None:
    said = answers["what stands out"]
    assert {number for row in said["rows"] for number in row["runs"]} == {1, 2, 3}
    assert {source["run"] for source in said["sources"]} == {1, 2, 3}
    assert any(
        "FLOPs were not counted" in row["text"] and row["is_warning"] for row in said["rows"]
    )


def test_kernels_of_a_run_are_those_of_the_store_with_the_reason_why_they_have_no_time(
    answers: Answers, rows: Rows
) -> None:
    said = answers["which kernels ran"]
    launched = dict(rows("SELECT name, count(*) FROM kernel WHERE run_id = 3 GROUP BY name"))
    assert {row["kernel"]: row["launches"] for row in said["rows"]} == launched
    ((reason,),) = rows(
        "SELECT reason FROM gap WHERE run_id = 3 AND quantity = 'kernel.duration_ns'"
    )
    for row in said["rows"]:
        assert row["time"] is None
        assert row["why_null"]["time"] == reason
        assert "FADD" in row["why_null"]["executed"]


def test_one_launch_has_its_counters_with_their_units(answers: Answers, rows: Rows) -> None:
    said = answers["what did one launch execute"]
    sql = (
        "SELECT counter.name, value, unit FROM counter JOIN kernel ON kernel.id = kernel_id WHERE "
        "run_id = 3 AND launch = 0"
    )
    assert [(row["name"], row["value"], row["unit"]) for row in said["rows"]] == rows(sql)
    assert said["kernel"]["registers"] is None
    assert "registers" in said["kernel"]["why_null"]
    assert "locked clocks" in said["sources"][0]["times"]


def test_a_comparison_has_the_medians_of_the_steps(answers: Answers, rows: Rows) -> None:
    said = answers["is the larger batch slower"]
    step = next(row for row in said["rows"] if row["name"] == "step" and row["quantity"] == "time")
    for side, run in (("a", 1), ("b", 2)):
        taken = [
            ns
            for (ns,) in rows(
                "SELECT duration_ns FROM step WHERE run_id = ? AND phase = 'step'", run
            )
        ]
        assert step[side]["median"] == median(taken)
    assert step["change"] == pytest.approx(step["b"]["median"] / step["a"]["median"] - 1)
    assert {(source["side"], source["run"]) for source in said["sources"]} == {("a", 1), ("b", 2)}


def test_a_select_gives_the_stores_rows_and_the_units_of_its_columns(
    answers: Answers, rows: Rows
) -> None:
    said = answers["how many FLOPs has a step"]
    assert [(row["flops"], row["batch_size"]) for row in said["rows"]] == rows(FLOPS)
    assert said["rows"][0]["flops"] > 2 * 16 * 26 * 26 * 32 * 9
    assert "FLOP" in said["units"]["flops"]
    assert said["has_more"] is False


def test_one_run_says_how_many_rows_it_has_and_every_gap(answers: Answers, rows: Rows) -> None:
    said = answers["what is known of run 2"]
    for name, table in (("operations", "operation"), ("ranges", "range"), ("steps", "step")):
        ((number,),) = rows(f"SELECT count(*) FROM {table} WHERE run_id = 2")
        assert said["row_counts"][name] == number
    assert len(said["rows"]) == rows("SELECT count(*) FROM gap WHERE run_id = 2")[0][0]
    assert said["run"]["batch_size"] == 32


def test_gaps_say_why(answers: Answers, rows: Rows) -> None:
    said = answers["why is there no time"]
    sql = "SELECT quantity, reason FROM gap WHERE run_id = 3 AND quantity LIKE '%duration%'"
    assert [(row["quantity"], row["reason"]) for row in said["rows"]] == rows(sql)


def test_a_tables_columns_are_described(answers: Answers, rows: Rows) -> None:
    said = answers["what may be asked of"]
    assert [row["column"] for row in said["rows"]] == [
        row[1] for row in rows("PRAGMA table_info(gap)")
    ]
    assert all(row["meaning"] and row["null_means"] for row in said["rows"])
