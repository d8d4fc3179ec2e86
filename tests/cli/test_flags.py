"""Errors name fields; what is printed names the options of the command that runs."""

import ast
import re
from pathlib import Path

import pytest
import typer.main

from perfctl.orchestrator.cli import commands as declared
from perfctl.orchestrator.cli.main import build_application
from perfctl.orchestrator.errors import FIELD, UsageError

ROOT = Path(__file__).resolve().parents[2]


def commands(command, words=()):
    """Every declared command, with the words that call it."""
    for name, inside in getattr(command, "commands", {}).items():
        yield from commands(inside, (*words, name))
    if isinstance(command, declared.DeclaredTyperCommand):
        yield words, command


EVERY = dict(commands(typer.main.get_command(build_application())))


def with_options(text, *words):
    """The text as it is printed while the command that ``words`` call runs."""
    return declared.replace_field_names_with_flags(text, EVERY[words].context_settings["obj"])


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_every_field_of_every_command_becomes_what_a_user_types(words):
    command = EVERY[words]
    params = {param.name: param for param in command.params}
    for field in command.context_settings["obj"].declared_options:
        if field.option.filled_from:
            continue
        text = with_options(f"`{field.name}`", *words)
        param = params[field.name]
        if param.param_type_name == "argument":
            assert text.upper() == text and "`" not in text
        else:
            assert text in param.opts and text.startswith("--")


@pytest.mark.parametrize(
    ("words", "text", "printed"),
    [
        (("slurm", "ingest"), "`batch` must be at least 1", "--batch must be at least 1"),
        (("predict",), "`dataset_size` and `gpus`", "--dataset-size and --gpus"),
        (("ncu",), "`layer` and `layers`", "--layer and --layer"),
        (("export",), "`format` `all_tables`", "--format --all"),
        (("ingest",), "`paths`: nothing there", "PATHS: nothing there"),
        (("slurm", "render"), "`force` and `array_limit`", "--force and --array-limit"),
        (("show",), "`gpus` and `no_such_field`", "gpus and no such field"),
        (("show",), "`perfctl runs`, `Store` stay", "`perfctl runs`, `Store` stay"),
        (("infer",), "`data_dir`, `weights`, `sheet`", "--data-dir, --weights, sheet"),
        (("runs",), "`data_dir` is an option of sweeps", "data dir is an option of sweeps"),
    ],
)
def test_options_of_the_command_are_printed_for_fields(words, text, printed):
    assert with_options(text, *words) == printed


def test_advice_about_a_field_that_the_command_lacks_is_dropped():
    flags = declared.map_fields_to_flags(EVERY[("show",)].context_settings["obj"])
    for remedy, printed in (("Omit `gpus`", "--store is wrong"), ("Omit `store`", None)):
        error = UsageError("`store` is wrong", remedy)
        error.name_options(flags)
        assert str(error) == (printed or "--store is wrong. Omit --store")


def test_warnings_are_printed_with_options(capsys):
    command = EVERY[("scrub",)].context_settings["obj"]
    declared.TerminalEvents(command, lambda *step: None).warning("use `force`")
    assert capsys.readouterr().err == "warning: use --force\n"


def texts_of(file):
    """The texts of a module that are no docstrings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and id(node) not in docstrings
        if is_text and isinstance(node.value, str):
            yield node.value


def test_every_field_that_a_text_names_is_an_option_of_a_command():
    """Derived from all texts of the program: a field that no command takes is a wrong name."""
    flags = set().union(
        *(
            declared.map_fields_to_flags(command.context_settings["obj"])
            for command in EVERY.values()
        )
    )
    rooms = ("orchestrator", "parsers", "perfctl", "workloads")
    files = [file for room in rooms for file in (ROOT / room).rglob("*.py")]
    fields = {field for file in files for text in texts_of(file) for field in FIELD.findall(text)}
    assert len(fields) > 100
    assert fields - flags == set()


def test_a_refusal_of_an_action_reaches_the_user_with_its_option(perfctl):
    said = perfctl("torch -b 4 --sweep-name a/b")
    assert (said.code, said.err.startswith("perfctl: --sweep-name: invalid folder name 'a/b'")) == (
        2,
        True,
    )
    said = perfctl("torch -b 4 --bind /data")
    assert "--bind and --container-runtime need an image. Set the image with --image" in said.err
    assert list(Path().iterdir()) == []


def test_the_mode_of_dlprof_is_not_the_mode_of_the_workload(perfctl, monkeypatch):
    def refuse(mode, **others):
        raise UsageError(f"`mode` must be simple or pytorch, got {mode}")

    monkeypatch.setattr("perfctl.orchestrator.launch.profilers.dlprof.DLProf", refuse)
    said = perfctl("dlprof -b 4 --dlprof-mode fast")
    assert (said.code, said.err) == (
        2,
        "perfctl: --dlprof-mode must be simple or pytorch, got fast\n",
    )


def errors_in(file):
    """The texts of the errors that a module raises."""
    for raised in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(raised, ast.Raise) and isinstance(raised.exc, ast.Call):
            for part in ast.walk(raised.exc):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def test_errors_name_fields_and_no_options():
    """Whole commands, and options of the workload's own, may stand in them."""
    own_words = re.compile(r"perfctl |python |--weights |--data-dir |--help |--json ")
    rooms = ("commands", "estimate", "ingest", "predict")
    files = [file for room in rooms for file in (ROOT / "orchestrator" / room).rglob("*.py")]
    texts = {text for file in files for text in errors_in(file)}
    assert len(texts) > 20
    assert [
        text for text in texts if re.search(r"--[a-z]", text) and not own_words.search(text)
    ] == []
