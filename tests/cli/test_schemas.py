"""What commands print with --json holds to the schema that --json-schema prints for it."""

import json
import shutil
from dataclasses import replace

import pytest
from jsonschema import Draft202012Validator

from perfctl.orchestrator.cli.commands import list_json_output_names
from perfctl.orchestrator.outputs import OUTPUTS as RECORDS
from perfctl.orchestrator.outputs import build_output_schema, convert_to_json, format_schema_name
from perfctl.orchestrator.report.ledger.ranks import list_multi_rank_job_json
from perfctl.records.report import Collective, Kernel
from tests.commands.test_declare import DECLARED
from tests.make.synthetic import foreign_run

PRINTED = {
    "runs": "runs",
    "show": "show 1",
    "ledger": "ledger",
    "compare": "compare run:1 run:2 --anyway",
    "query": "query 'select * from gap'",
    "doctor": "doctor",
    "prices": "predict --list-prices",
    "report": "report",
    "plot": "plot step --out step.svg",
    "plot-list": "plot --list",
    "trace": "trace 1",
    "history": "history",
    "export": "export",
    "estimate": "estimate mnist_cnn --batches 2,3 --memory 8G",
    "estimate-layer": "estimate mnist_cnn --layer conv2 --check 141557760",
    "estimate-sheet": "estimate mnist_cnn --sheet",
    "predict": "predict mnist_cnn --device V100 --batch 8 --dataset-size 1000",
}
"""Output -> a command that prints it."""


def inside(schema):
    """Every object in a schema, itself first."""
    if isinstance(schema, dict):
        yield schema
        for part in schema.values():
            yield from inside(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from inside(part)


def wrong(output, value):
    found = Draft202012Validator(build_output_schema(output)).iter_errors(value)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message[:200]}" for error in found]


@pytest.mark.parametrize("output", PRINTED)
def test_what_a_command_prints_holds_to_its_schema(perfctl, replayed, output, own_configuration):
    shutil.copy(replayed, "perfctl.db")
    said = perfctl(f"{PRINTED[output]} --json")
    assert wrong(output, said.json) == []
    if isinstance(said.json, dict):
        assert next(iter(said.json.items())) == ("schema", format_schema_name(output))


def test_a_job_of_two_ranks_holds_to_the_schema_of_the_ledger():
    talks = [Collective("allreduce", "0", 2, 1000, "Float", 100 * at, 50, 50) for at in range(4)]
    talks.append(Collective("send", None, 2, None, None, 900, 50, 50))
    kernels = [
        Kernel(at, "nccl", start_ns=one.start_ns, duration_ns=50, step=1)
        for at, one in enumerate(talks)
    ]
    runs = [
        foreign_run(rank + 1, kernels=kernels, collectives=talks, rank=rank, world_size=2)
        for rank in (0, 1)
    ]
    jobs = convert_to_json(
        list_multi_rank_job_json(replace(run, artifact=f"job/{run.id}.json") for run in runs)
    )
    assert jobs[0]["bubbles"]
    value = {
        "schema": format_schema_name("ledger"),
        "rows": [],
        "sweep": [],
        "phases": [],
        "passes": [],
        "jobs": json.loads(json.dumps(jobs)),
    }
    assert not wrong("ledger", value)
    assert wrong("ledger", value | {"jobs": [jobs[0] | {"surprise": 1}]})


def test_every_command_with_json_has_a_schema_and_every_schema_a_command():
    printed = [list_json_output_names(command) for command in DECLARED.values() if command.has_json]
    assert all(printed)
    assert set().union(*printed) == set(RECORDS)


@pytest.mark.parametrize("output", RECORDS)
def test_a_schema_is_one_and_lists_every_key(output):
    schema = build_output_schema(output)
    Draft202012Validator.check_schema(schema)
    assert "1 multiply-add counts as 2 FLOPs" in schema["description"]
    for one in inside(schema):
        if one.get("type") == "object" and "properties" in one and "required" in one:
            assert one["additionalProperties"] is False
            assert set(one["required"]) == set(one["properties"])
            assert {} not in one["properties"].values(), one["properties"]


def test_a_key_that_no_schema_lists_and_one_that_is_missing_are_noticed(perfctl, replayed):
    """The schemas are closed, so the test above can fail."""
    said = perfctl(f"ledger --store {replayed} --json").json
    row = said["rows"][0]
    assert wrong("ledger", said | {"rows": [row | {"surprise": 1}]})
    assert wrong(
        "ledger", said | {"rows": [{name: value for name, value in row.items() if name != "ratio"}]}
    )
    assert wrong("ledger", said | {"rows": [row | {"time_ns": "439 us"}]})
