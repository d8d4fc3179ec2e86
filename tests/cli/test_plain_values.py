"""What is typed becomes a value of the declared type."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from perfctl.orchestrator.cli import commands
from perfctl.orchestrator.commands.declare import Command, Option
from perfctl.orchestrator.errors import UsageError


@dataclass(frozen=True)
class Asked:
    """Take one value of each kind."""

    paths: Annotated[Sequence[Path | str], Option("Some paths.", is_argument=True)] = ()
    number: Annotated[int, Option("A number.", least=1, most=9)] = 3
    share: Annotated[float | None, Option("A share.")] = None
    name: Annotated[str, Option("A name.")] = "x"
    out: Annotated[Path, Option("A file.")] = Path("page.html")
    runs: Annotated[Sequence[int], Option("Some numbers.", names=("--run",))] = ()
    is_quick: Annotated[bool | None, Option("Yes, no or neither.", names=("--quick/--slow",))] = (
        None
    )


def asked(*words):
    """What a command is asked by these words."""
    heard: list[Asked] = []
    declared: Command[Asked, Any] = Command(
        Asked, lambda asked, events: heard.append(asked), lambda result: None, lambda result: None
    )
    app = typer.Typer()
    app.callback()(lambda: None)
    commands.register_declared_command(app, "take", "Take it.", declared)
    outcome = CliRunner().invoke(app, ["take", *words, "--json"])
    if outcome.exception is not None:
        raise outcome.exception
    return heard[0]


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ((), Asked()),
        (("--number", "7"), Asked(number=7)),
        (("--share", "0.5", "--name", "é"), Asked(share=0.5, name="é")),
        (("--out", "-"), Asked(out=Path("-"))),
        (("--name", ""), Asked(name="")),
        (("a", "/", "-"), Asked(paths=(Path("a"), Path("/"), Path("-")))),
        (("--run", "1", "--run", "2"), Asked(runs=(1, 2))),
        (("--slow",), Asked(is_quick=False)),
    ],
)
def test_words_become_values_of_the_declared_types(words, values):
    assert asked(*words) == values


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--number", "no"), "--number: 'no' is not a whole number"),
        (("--number", "4.0"), "--number: '4.0' is not a whole number"),
        (("--number", "0"), "--number must be at least 1, got 0"),
        (("--number", "10"), "--number must be at most 9, got 10"),
        (("--share", "half"), "--share: 'half' is not a number"),
        (("--run", "1", "--run", "b"), "--run: 'b' is not a whole number"),
    ],
)
def test_a_word_of_another_type_is_refused(words, said):
    with pytest.raises(UsageError) as refused:
        asked(*words)
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runs"], "none.db: no results database found"),
        (["report"], "none.db: no results database found"),
        (["torch", "--batches", "0"], "--batches must be at least 1 (got 0)"),
    ],
)
def test_a_declared_command_does_not_load_pydantic(tmp_path, words, message):
    told = (
        "import sys; from perfctl.__main__ import main; "
        f"sys.argv = ['perfctl', *{words}, '--store', 'none.db']\n"
        "try: main()\nexcept SystemExit: pass\nprint('pydantic' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", told], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert message in found.stderr
    assert found.stdout.strip() == "False"
