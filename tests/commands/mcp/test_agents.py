"""What an agent sees before its first question, and how it mends a wrong one."""

import re
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from perfctl.orchestrator.commands import mcp
from perfctl.orchestrator.store import query

SKILL = Path(__file__).resolve().parents[3] / "docs/skills/perfctl/SKILL.md"


def test_errors_name_what_there_is(store, ask):
    layer, column, table, run, unknown = ask(
        store,
        [
            ("ledger", {"layer": "conv9"}),
            ("query", {"sql": "SELECT device_name FROM run"}),
            ("query", {"sql": "SELECT 1 FROM absent"}),
            ("show", {"run": 99}),
            ("show", {"runs": 3}),
        ],
    )
    assert all(one.refused and "\n" not in one.text for one in (layer, column, table, run, unknown))
    assert (
        "layer 'conv9' not found" in layer.text
        and "Available layers: conv2, conv1 and 13 more" in layer.text
    )
    assert "no such column: device_name. run has id, sweep_id" in column.text
    assert "Tables: sweep, device, run" in table.text
    assert "run 99 not found" in run.text
    assert "'runs' was unexpected" in unknown.text
    assert "Arguments: run, source, form, limit" in unknown.text


@pytest.mark.parametrize("name", mcp.TOOLS)
def test_tools_are_made_of_the_options_that_read_and_name_no_file(name):
    command, declared = mcp.load_tool_command(name)
    assert set(mcp.TOOLS[name]) <= {option.name for option in command.declared_options}
    for option in mcp.TOOLS[name]:
        assert declared[option].option.group != "Output" or option == "rows"
    schema = mcp.describe_tool(name)["inputSchema"]
    Draft202012Validator.check_schema(schema)
    assert not {"store", "stores", "out", "rev", "dataset", "peaks"} & set(schema["properties"])


@pytest.mark.parametrize("path", ["../perfctl.db", "/etc/passwd", ".", "..", "perfctl.db/x"])
def test_a_side_of_a_comparison_is_no_path(path):
    validator = Draft202012Validator(mcp.describe_tool("compare")["inputSchema"])
    assert validator.is_valid({"a": 1, "b": "sweep:3"})
    assert not validator.is_valid({"a": path, "b": "1"})


@pytest.mark.parametrize("name", mcp.TOOLS)
def test_descriptions_are_short(name):
    """An agent reads all of them before its first question."""
    assert 20 < len(mcp.describe_tool(name)["description"]) < 400
    assert all(
        "description" in one
        for one in mcp.describe_tool(name)["inputSchema"]["properties"].values()
    )


def test_the_skill_has_a_name_and_its_queries_are_answered(store):
    text = SKILL.read_text(encoding="utf-8")
    _, front, body = text.split("---\n", 2)
    assert set(yaml.safe_load(front)) == {"name", "description"}
    assert len(text.splitlines()) <= 120
    queries = re.findall(r'^perfctl query "(.*?)"', body, re.MULTILINE)
    assert len(queries) > 3
    for sql in queries:
        with query.run_select(store, sql) as (_, rows):
            assert list(rows), sql
