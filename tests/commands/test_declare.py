"""A command is declared once: the command line and the Python API take the same options."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest
import typer.main
from jsonschema import Draft202012Validator

import perfctl
from perfctl.orchestrator.cli import main
from perfctl.orchestrator.cli.commands import list_json_output_names, parse_typed_value
from perfctl.orchestrator.commands.declare import Command, Group, load_command_or_group
from perfctl.orchestrator.outputs import build_output_schema


def declarations():
    """Words of each declared command -> the command; those of groups, too."""
    found = {}
    for name in main.COMMANDS:
        declared = load_command_or_group(name)
        if isinstance(declared, Group):
            found |= {
                f"{name} {word}": command
                for word, command in declared.commands.items()
                if isinstance(command, Command)
            }
        else:
            found[name] = declared
    return found


DECLARED = declarations()
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


def test_some_commands_are_declared():
    assert {"mfu", "image render"} <= set(DECLARED)


def plain(default):
    """A default, and None if nothing is given: the command line has no empty tuple, and no False
    for what is typed as a word."""
    if isinstance(default, list):
        return tuple(default)
    return None if default is False or default in ((), inspect.Parameter.empty) else default


@pytest.mark.parametrize("name", API)
def test_keywords_of_the_api_are_the_options_of_the_command(name):
    group: Any = typer.main.get_command(main.build_application(name))
    fields = {field.name: field for field in DECLARED[name].declared_options}
    options = {
        param.name: plain(
            parse_typed_value(fields[param.name], param.default)
            if param.name in fields and param.default is not None
            else param.default
        )
        for param in group.commands[name].params
    }
    keywords = {
        key: plain(value.default)
        for key, value in inspect.signature(getattr(perfctl, name)).parameters.items()
    }
    parts_of_the_line = {
        one.name: plain(one.default)
        for one in DECLARED[name].declared_options
        if one.option.filled_from and one.option.filled_from != "line"
    }
    assert {
        key: value for key, value in options.items() if key not in OF_THE_COMMAND_LINE
    } | parts_of_the_line == keywords


@pytest.mark.parametrize("name", API)
def test_the_api_documents_every_keyword(name):
    said = inspect.getdoc(getattr(perfctl, name)) or ""
    names = {
        one.name for one in DECLARED[name].declared_options if one.option.filled_from != "line"
    } - OF_THE_COMMAND_LINE
    assert all(f"{option}: " in said for option in names)


@pytest.mark.parametrize("name", [name for name in DECLARED if DECLARED[name].has_json])
def test_json_schema_is_that_of_what_json_prints(name, capsys):
    assert main.run_command_line([*name.split(), "--json-schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    Draft202012Validator.check_schema(schema)
    outputs = list_json_output_names(DECLARED[name])
    assert schema == (
        build_output_schema(*outputs)
        if len(outputs) == 1
        else {"anyOf": list(map(build_output_schema, outputs))}
    )


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: perfctl.report("none.db"), "none.db: no results database found"),
        (lambda: perfctl.history("none.db"), "none.db: no results database found"),
        (lambda: perfctl.predict(batch="x"), "invalid value 'x' for `batch`"),
        (lambda: perfctl.predict(batch="4", gpus="two"), "`gpus`: 'two' is not a whole number"),
        (lambda: perfctl.torch(batches="x"), "invalid value 'x' for `batches`"),
        (lambda: perfctl.mfu(gpus=0), "`gpus` must be at least 1, got 0"),
    ],
)
def test_a_python_user_may_give_texts_and_is_refused_as_on_the_command_line(
    call, reason, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(perfctl.PerfctlError, match=reason):
        call()
