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


@pytest.mark.parametrize("words", [[], ["nowhere", "/", ""], ["-"]])
def test_a_list_of_paths_is_what_typer_makes_of_it(words: list[str]) -> None:
    found = []
    for cls in (commands.Command, typer.core.TyperCommand):
        app = typer.Typer()

        @app.command(cls=cls)
        def main(paths: list[Path] | None = typer.Argument(None)) -> None:  # noqa: B008
            print(repr(paths))

        found.append(CliRunner().invoke(app, words).output)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runs"], "there is no store here"),
        (["report"], "there is no store here"),
        (["ingest", "nowhere"], "there is no such file"),
    ],
)
def test_a_command_with_simple_options_does_not_load_pydantic(
    tmp_path: Path, words: list[str], message: str
) -> None:
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
