"""A command is declared once: the command line and the Python API take the same options."""

from __future__ import annotations

import inspect
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.main
from jsonschema import Draft202012Validator

import perfctl
from perfctl.orchestrator.cli import main
from perfctl.orchestrator.commands.declare import Command, options_of
from perfctl.orchestrator.outputs import outputs_of, schema_of

DECLARED = [name for name, (place, _) in main.COMMANDS.items() if ":" not in place]
RETURN_RECORDS = {"ledger", "runs"}
"""Functions of the Python API that return what the store holds, whatever the command shows."""
TAKE_MODELS = {"estimate"}
"""Functions of the Python API that take a model of the caller's, which the shell can only name."""
OTHERS = RETURN_RECORDS | TAKE_MODELS
API = [name for name in DECLARED if name in perfctl.__all__ and name not in OTHERS]
OF_THE_COMMAND_LINE = {
    *("as_json", "form", "json_schema"),
    *("explain", "frontier"),
    *("list_prices", "use_prices", "reset_prices"),
}
"""What is printed of a result, of which a Python user has all, and changes of the user's files."""


def declaration(name: str) -> Command[Any, Any]:
    found = import_module(f"perfctl.orchestrator.commands.{main.COMMANDS[name][0]}").COMMAND
    assert isinstance(found, Command)
    return found


def test_some_commands_are_declared() -> None:
    assert "mfu" in DECLARED


def plain(default: Any) -> Any:
    """A default, and None where nothing is given: the command line has no empty tuple."""
    if isinstance(default, list):
        return tuple(default)
    return None if default in ((), inspect.Parameter.empty) else default


@pytest.mark.parametrize("name", API)
def test_keywords_of_the_api_are_the_options_of_the_command(name: str) -> None:
    group: Any = typer.main.get_command(main.application(name))
    readers = {
        one.name: one.option.parse
        for one in options_of(declaration(name).options)
        if one.option.typed_default is not None
    }
    options = {
        one.name: readers.get(one.name, plain)(one.default) for one in group.commands[name].params
    }
    keywords = {
        key: plain(value.default)
        for key, value in inspect.signature(getattr(perfctl, name)).parameters.items()
    }
    assert {
        key: value for key, value in options.items() if key not in OF_THE_COMMAND_LINE
    } == keywords


@pytest.mark.parametrize("name", API)
def test_the_api_documents_every_keyword(name: str) -> None:
    said = inspect.getdoc(getattr(perfctl, name)) or ""
    names = {one.name for one in options_of(declaration(name).options)} - OF_THE_COMMAND_LINE
    assert all(f"{option}: " in said for option in names)


@pytest.mark.parametrize("name", DECLARED)
def test_json_schema_is_that_of_what_json_prints(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run([name, "--json-schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    Draft202012Validator.check_schema(schema)
    declared = declaration(name)
    outputs = outputs_of(declared.record) or outputs_of(declared.run)
    assert schema == (
        schema_of(*outputs) if len(outputs) == 1 else {"anyOf": list(map(schema_of, outputs))}
    )


def test_a_python_user_may_give_the_text_of_a_path(tmp_path: Path) -> None:
    with pytest.raises(perfctl.PerfctlError, match="there is no store here yet"):
        perfctl.report(str(tmp_path / "none.db"))  # type: ignore[arg-type]
