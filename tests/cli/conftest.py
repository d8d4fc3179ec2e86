"""The command line as a user calls it, in a folder of its own."""

from __future__ import annotations

import json
import shlex
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from perfctl import parsers
from perfctl.orchestrator import pool
from perfctl.orchestrator.cli import console
from perfctl.orchestrator.cli.main import run_command_line
from perfctl.orchestrator.outputs import (
    JsonLists,
    build_output_schema,
    convert_to_json,
    format_schema_name,
)
from tests.cli import hostile as hostile_store

Perfctl = Callable[..., "Said"]


@dataclass(frozen=True, slots=True)
class Said:
    """What one call said."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)

    def ok(self):
        """Itself, of a call that has to end with 0."""
        assert self.code == 0, self.err
        return self

    def ends(self, code, *words):
        """Itself, of a call that has to end with this code and to say these words on stderr."""
        assert self.code == code, self.err
        for one in words:
            assert one in self.err
        return self


def sql(statement, store="perfctl.db"):
    """Run a statement on a store, and return its rows."""
    with closing(sqlite3.connect(store)) as connection, connection:
        return connection.execute(statement).fetchall()


@pytest.fixture
def own_configuration(tmp_path, monkeypatch):
    """No price table of whoever runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture(autouse=True)
def every_json_holds_to_its_schema(request, monkeypatch):
    """Whatever a command prints with --json in any test here names its schema, and holds to it.

    A module that prints values of its own, as no command does, says ``PRINTS_ITS_OWN``.
    """
    if hasattr(request.module, "PRINTS_ITS_OWN"):
        yield
        return
    wrong: list[str] = []
    printing = console.print_json

    def check(value, schema=None):
        if schema is None and "$schema" in value:  # --json-schema
            pass
        elif schema is None:
            wrong.append("printed without a schema")
        else:
            printed = _of_lists(value) if isinstance(value, JsonLists) else convert_to_json(value)
            printed = json.loads(json.dumps(printed, default=str))
            told = (
                {"schema": format_schema_name(schema), **printed}
                if isinstance(printed, dict)
                else printed
            )
            wrong.extend(
                f"{schema}: {one.json_path}: {one.message[:200]}"
                for one in _validator(schema).iter_errors(told)
            )
        printing(value, schema)

    monkeypatch.setattr(console, "print_json", check)
    yield
    assert wrong == []


@cache
def _validator(schema):
    return Draft202012Validator(build_output_schema(schema))


def _of_lists(value):
    lists: dict[str, list[Any]] = {name: [] for name in value.names}
    for texts in value.batches(console.format_json):
        for name, more in texts.items():
            lists[name] += map(json.loads, more)
    return lists


@pytest.fixture
def perfctl(tmp_path, monkeypatch, capsys):
    """Call a command in an empty folder (the same one within a test): a line as a user types it, or
    its words after "perfctl"."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*words):
        capsys.readouterr()
        typed = shlex.split(str(words[0])) if len(words) == 1 else words
        code = run_command_line([str(word) for word in typed])
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return call


@pytest.fixture(scope="session")
def replayed(recorded, tmp_path_factory):
    """A store with the recorded torch sweep, made once, for tests that only read it."""
    folder = tmp_path_factory.mktemp("replayed")
    store = folder / "perfctl.db"
    line = f"replay {recorded / 'torch'} --store {store} --out {folder / 'perfctl-runs'}"
    assert run_command_line(shlex.split(line)) == 0
    return store


@pytest.fixture
def hostile(tmp_path):
    """The synthetic store of hostile.py beside this one, where commands look for theirs."""
    return hostile_store.store(tmp_path / "perfctl.db")


@pytest.fixture
def own_log(tmp_path, monkeypatch):
    """A log in the test's folder, and workers that the tests' own threads do not keep from being
    forked."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(pool, "_is_main_perfctl_or_rich_thread", lambda thread: True)


@pytest.fixture
def forked_workers(monkeypatch):
    """Workers are forked, so that they have what the test changed: a test before may have left a
    thread, beside which a new interpreter would be started."""
    monkeypatch.setattr(pool, "can_fork_safely", lambda store=None: True)


@pytest.fixture
def break_parser(monkeypatch, forked_workers):
    """From now on something happens while a file is parsed whose path has a word in it."""
    whole = parsers.Parser.parse

    def break_it(word, how):
        def parse(self, path, **options):
            if word in str(path):
                how()
            return whole(self, path, **options)

        monkeypatch.setattr(parsers.Parser, "parse", parse)

    return break_it
