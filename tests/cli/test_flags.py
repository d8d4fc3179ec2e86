"""Errors name fields; what is printed names the options of the command that runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from perfctl.orchestrator.cli import commands as declared
from perfctl.orchestrator.cli.main import application
from perfctl.orchestrator.errors import UsageError

ROOMS = Path(__file__).resolve().parents[2] / "orchestrator"


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command, with the words that call it."""
    for name, inside in getattr(command, "commands", {}).items():
        yield from commands(inside, (*words, name))
    if not hasattr(command, "commands"):
        yield words, command


EVERY = [(words, command) for words, command in commands(typer.main.get_command(application()))]


def with_flags(text: str, *words: str) -> str:
    """The text as it is printed while the command that ``words`` call runs."""
    return declared.with_flags(text, declared.called(application(words[0]), words))


@pytest.mark.parametrize("words", [words for words, _ in EVERY], ids=" ".join)
def test_every_parameter_of_every_command_becomes_what_a_user_types(
    words: tuple[str, ...],
) -> None:
    (command,) = (command for typed, command in EVERY if typed == words)
    for one in command.params:
        said = with_flags(f"`{one.name}` makes no sense, see `{one.name}`", *words)
        first, _, last = said.partition(" makes no sense, see ")
        assert first == last
        if one.param_type_name == "argument":
            assert first.upper() == first and "`" not in first
        else:
            assert first in one.opts and first.startswith("--")


@pytest.mark.parametrize(
    ("words", "text", "said"),
    [
        (("ingest",), "`batch_size` must be at least 1", "--batch must be at least 1"),
        (("predict",), "`dataset_size` and `gpus`", "--dataset-size and --gpus"),
        (("ncu",), "`layer` and `layers`", "--layer and --layer"),
        (("export",), "`format` `all_tables` `as_json`", "--format --all --json"),
        (("ingest",), "`paths`: nothing there", "PATHS: nothing there"),
        (("slurm", "render"), "`force` and `array_limit`", "--force and --array-limit"),
        (("bench", "grid.toml"), "`shard` of bench run", "--shard of bench run"),
        (
            ("show",),
            "`gpus` and `no_such_field` are not its own",
            "`gpus` and `no_such_field` are not its own",
        ),
        (
            ("show",),
            "`perfctl runs`, `Store` and ``store`` stay",
            "`perfctl runs`, `Store` and `--store` stay",
        ),
        (("infer",), "`data_dir`, `weights`, `sweep`", "--data-dir, --weights, `sweep`"),
        (("runs",), "`data_dir` is a sweep's", "`data_dir` is a sweep's"),
        (("no-such-command",), "`store` stays", "`store` stays"),
    ],
)
def test_only_fields_that_the_command_takes_are_rewritten(
    words: tuple[str, ...], text: str, said: str
) -> None:
    assert with_flags(text, *words) == said


def test_a_field_with_another_name_means_a_parameter_that_some_command_has() -> None:
    names = {one.name for _, command in EVERY for one in command.params}
    wanted = {
        field: name for field, name in declared.OTHER_NAMES.items() if name.split()[0] not in names
    }
    assert wanted == {}
    assert not set(declared.OTHER_NAMES) & set(declared.OTHER_NAMES.values())


def test_warnings_are_printed_with_options(capsys: pytest.CaptureFixture[str]) -> None:
    command = declared.called(application("scrub"), ["scrub"])
    declared.Shown(command, lambda *step: None).warning("use `force`")
    assert capsys.readouterr().err == "warning: use --force\n"


def test_a_refusal_of_an_action_reaches_the_user_with_its_option(
    perfctl: Callable[..., Any],
) -> None:
    said = perfctl("torch", "-b", "4", "--sweep-name", "a/b")
    assert (said.code, said.err.startswith("perfctl: --sweep-name: invalid folder name 'a/b'")) == (
        2,
        True,
    )
    said = perfctl("torch", "-b", "4", "--bind", "/data")
    assert "--bind and --container-runtime need an image. Set the image with --image" in said.err
    assert list(Path().iterdir()) == []


def test_the_mode_of_dlprof_is_not_the_mode_of_the_workload(
    perfctl: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(mode: str, **others: object) -> None:
        raise UsageError(f"`mode` must be simple or pytorch, got {mode}")

    monkeypatch.setattr("perfctl.orchestrator.launch.profilers.dlprof.DLProf", refuse)
    said = perfctl("dlprof", "-b", "4", "--dlprof-mode", "fast")
    assert (said.code, said.err) == (
        2,
        "perfctl: --dlprof-mode must be simple or pytorch, got fast\n",
    )


def errors_in(file: Path) -> Iterator[str]:
    """The texts of the errors that a module raises."""
    for raised in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(raised, ast.Raise) and isinstance(raised.exc, ast.Call):
            for part in ast.walk(raised.exc):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def test_errors_name_fields_and_no_options() -> None:
    """Whole commands, and options of the workload's own, may stand in them."""
    own_words = re.compile(r"perfctl |python |--weights |--data-dir |--help |--json ")
    rooms = ("commands", "estimate", "ingest", "predict")
    files = [file for room in rooms for file in (ROOMS / room).rglob("*.py")]
    texts = {text for file in files for text in errors_in(file)}
    assert len(texts) > 20
    assert [
        text for text in texts if re.search(r"--[a-z]", text) and not own_words.search(text)
    ] == []
