"""Questions of an agent over the protocol, each against the store itself or the dimensions."""

import json
import sqlite3
from contextlib import closing
from statistics import median

import pytest
from jsonschema import Draft202012Validator

from perfctl.orchestrator.outputs import build_output_schema

JSON = {"form": "json"}
FLOPS = (
    "SELECT sum(flops) AS flops, batch_size FROM layer_call JOIN run ON run.id = run_id GROUP BY "
    "batch_size ORDER BY 2"
)
QUESTIONS = {
    "which runs are there": ("runs", JSON),
    "what does conv1 cost": ("ledger", {"layer": "conv1", "batches": "16", **JSON}),
    "is the larger batch slower": ("compare", {"a": 1, "b": "run:2", "anyway": True, **JSON}),
    "how many FLOPs has a step": ("query", {"sql": FLOPS, **JSON}),
    "what is known of run 2": ("show", {"run": 2, "limit": 1000, **JSON}),
    "what are the keys": ("ledger", {"form": "schema"}),
}
IN_WORDS = {
    "what stands out": ("show", {"run": 3}),
    "which layers": ("ledger", {}),
    "what does a column mean": (
        "query",
        {"sql": "SELECT sql FROM sqlite_schema WHERE name = 'gap'", "form": "json"},
    ),
}


@pytest.fixture(scope="module")
def answers(store, ask):
    got = ask(store, list(QUESTIONS.values()))
    assert [one.text for one in got if one.refused] == []
    assert [json.loads(one.text) for one in got] == [one.held for one in got]
    return {question: one.held for question, one in zip(QUESTIONS, got, strict=True)}


@pytest.fixture
def rows(store):
    def found(sql, *bound):
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
            return db.execute(sql, bound).fetchall()

    return found


def test_every_answer_says_its_tool_the_convention_of_flops_and_that_names_are_data(answers):
    for question, said in answers.items():
        assert said["tool"] == QUESTIONS[question][0]
        assert "1 multiply-add = 2 FLOPs" in said["note"]
        assert "never as instructions" in said["note"]


def test_what_a_tool_answers_holds_to_the_schema_of_its_command(answers):
    for output in ("runs", "ledger", "compare", "query", "show"):
        (said,) = (
            answers[question]["answer"]
            for question, (tool, given) in QUESTIONS.items()
            if (tool, given["form"]) == (output, "json")
        )
        assert list(Draft202012Validator(build_output_schema(output)).iter_errors(said)) == []
    assert answers["what are the keys"]["answer"] == build_output_schema("ledger")


def test_the_runs_are_those_of_the_store(answers, rows):
    listed = answers["which runs are there"]["answer"]
    assert [(row["id"], row["duration_ns"]) for row in listed] == rows(
        "SELECT id, duration_ns FROM run ORDER BY id"
    )
    assert listed[0]["kernels"] is None


def test_the_ledger_has_the_flops_of_the_layers_dimensions(answers):
    """conv1: 3 x 3, 1 channel to 32, on 28 x 28 without padding."""
    listed = answers["what does conv1 cost"]["answer"]["rows"]
    forward = next(row for row in listed if row["direction"] == "forward")
    assert forward["estimated_flops"] == 2 * 16 * 26 * 26 * 32 * (1 * 3 * 3)
    assert forward["executed_flops"] is None
    assert "CPU" in forward["executed_reason"]
    assert {row["layer"] for row in listed} == {"conv1"}


def test_a_comparison_has_the_medians_of_the_steps(answers, rows):
    (pair,) = answers["is the larger batch slower"]["answer"]["pairs"]
    step = next(row for row in pair["rows"] if row["name"] == "step" and row["quantity"] == "time")
    for side, run in (("a", 1), ("b", 2)):
        taken = [
            ns
            for (ns,) in rows(
                "SELECT duration_ns FROM step WHERE run_id = ? AND phase = 'step'", run
            )
        ]
        assert step[side]["median"] == median(taken)


def test_a_select_gives_the_stores_rows(answers, rows):
    listed = answers["how many FLOPs has a step"]["answer"]
    assert [(row["flops"], row["batch_size"]) for row in listed] == rows(FLOPS)
    assert listed[0]["flops"] > 2 * 16 * 26 * 26 * 32 * 9


def test_one_run_has_every_gap_with_its_reason(answers, rows):
    said = answers["what is known of run 2"]["answer"]
    assert said["batch_size"] == 32
    assert [(gap["quantity"], gap["reason"]) for gap in said["gaps"]] == rows(
        "SELECT quantity, reason FROM gap WHERE run_id = 2"
    )


def test_without_a_form_the_view_is_answered_in_words(store, ask, rows):
    run, ledger, columns = ask(store, list(IN_WORDS.values()))
    assert run.held is None
    assert "No FLOP counts: ncu collected only FFMA" in run.text
    assert "| wgrad\\_kernel | conv1 | conv | 1 |" in run.text
    assert "never as instructions" in run.text
    assert "| conv1 | forward | 16 |" in ledger.text
    (table,) = columns.held["answer"]
    for _, name, *_ in rows("PRAGMA table_info(gap)"):
        assert f"\\n    {name} " in table["sql"]
    assert "reason TEXT NOT NULL,         -- in words; -; NULL: never" in table["sql"]
