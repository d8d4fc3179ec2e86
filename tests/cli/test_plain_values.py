"""Values that need no work are read without typer's help, which takes long to load, and as typer
reads them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from perfctl.orchestrator.cli import commands


def _given(cls: Any, words: list[str]) -> tuple[int, str]:
    app = typer.Typer()

    @app.command(cls=cls)
    def main(
        number: int = 3,
        few: int = typer.Option(2, min=1),
        name: str = "x",
        path: Path | None = None,
        out: Path = Path("page.html"),
    ) -> None:
        print(repr((number, few, name, path, out)))

    found = CliRunner().invoke(app, words)
    return found.exit_code, found.output


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--number", "17"],
        ["--number", "-4"],
        ["--number", " 7"],
        ["--number", "1_0"],
        ["--number", "4.0"],
        ["--number", "no"],
        ["--number", "\u0661"],
        ["--few", "0"],
        ["--few", "5"],
        ["--name", ""],
        ["--name", "\u00e9"],
        ["--path", "nowhere/a.db"],
        ["--path", "/"],
        ["--path", ""],
        ["--path", "-"],
        ["--out", "other.html"],
    ],
)
def test_a_value_is_what_typer_makes_of_it(words: list[str]) -> None:
    assert _given(commands.Command, words) == _given(typer.core.TyperCommand, words)


@pytest.mark.parametrize("command", ["runs", "report"])
def test_a_command_with_simple_options_does_not_load_pydantic(tmp_path: Path, command: str) -> None:
    told = (
        f"import sys; from perfctl.__main__ import main; sys.argv = ['perfctl', '{command}', "
        "'--store', 'none.db']\n"
        "try: main()\nexcept SystemExit: pass\nprint('pydantic' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", told], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "there is no store here" in found.stderr
    assert found.stdout.strip() == "False"
