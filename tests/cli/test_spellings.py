"""One spelling in every command and groups in the help."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from perfctl.orchestrator.cli.main import COMMANDS, GROUPS, build_application

ROOT: Any = typer.main.get_command(build_application())
LETTERS = {
    "-b": "--batches",
    "-o": "--out",
    "-w": "--workload",
    "-p": "--profiler",
    "-f": "--format",
    "-j": "--jobs",
}
"""Letter -> the option that it stands for in every command."""


def _all(command=ROOT, name=""):
    for word, inside in getattr(command, "commands", {}).items():
        yield from _all(inside, f"{name} {word}".strip())
    if not hasattr(command, "commands"):
        yield name, command


def test_perfctl_alone_prints_its_help_and_is_no_error(perfctl):
    alone = perfctl()
    assert (alone.code, alone.err) == (0, "")
    assert "Start with 'perfctl doctor'" in alone.out
    assert alone.out == perfctl("--help").out
    assert (perfctl("slurm").code, perfctl("slurm").err) == (0, "")


def test_the_commands_stand_in_groups_in_the_order_of_use(perfctl):
    lines = perfctl("--help").out.splitlines()
    places = [lines.index(f"{group}:") for group in GROUPS]
    assert list(GROUPS) == ["Measure", "Read", "Understand", "Predict", "Cluster"]
    assert places == sorted(places)
    for start, inside in zip(places, GROUPS.values(), strict=True):
        below = lines[start + 1 : start + 1 + len(inside)]
        assert [line.split()[0] for line in below] == list(inside)
    assert sum(map(len, GROUPS.values())) == len(COMMANDS), "none stands in two groups"


@pytest.mark.parametrize("group", ["slurm", "bench", "study", "image"])
def test_every_command_of_a_group_has_one_whole_line(perfctl, group):
    listing = perfctl(group, "--help").out.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listing] == [
        name for name, command in ROOT.commands[group].commands.items() if not command.hidden
    ], "no line is wrapped"
    assert all(
        line.endswith(".") and not line.endswith("...") and len(line) < 80 for line in listing
    )


def test_a_letter_and_the_name_of_a_store_are_the_same_option_in_every_command():
    for name, command in _all():
        for option in command.params:
            spelt = [word for word in option.opts if word.startswith("--")]
            if spelt == ["--batch", "--batches"]:  # one size, or several
                spelt = ["--batches"]
            assert len(spelt) <= 1, f"perfctl {name} lists two spellings of {spelt}"
            for letter in set(option.opts) & set(LETTERS):
                assert spelt == [LETTERS[letter]], f"perfctl {name}: {letter} is {spelt}"
            assert "--db" not in spelt, name
            if spelt in (["--out"], ["--batches"]):
                assert set(option.opts) & set(LETTERS), f"perfctl {name}: {spelt[0]} has no letter"


def test_the_usage_of_a_command_writes_its_arguments_as_the_documentation_does(perfctl):
    for words in (
        "estimate [OPTIONS] MODEL",
        "predict [OPTIONS] [MODEL]",
        "show [OPTIONS] RUN",
        "ingest [OPTIONS] [PATHS]...",
    ):
        assert perfctl(words.split()[0], "--help").out.splitlines()[0] == f"Usage: perfctl {words}"


def test_the_help_of_a_sweep_has_examples_and_the_most_used_options_first(perfctl):
    for words in (("ncu",), ("slurm", "render")):
        first, _, rest = perfctl(*words, "--help").out.partition("\nInput:\n")
        assert first.count(f"\n    perfctl {' '.join(words)} ") == 3
        lines = first.partition("\nCommon options:\n")[2].splitlines()
        options = {line.split()[0].strip(",") for line in lines if line.startswith("  -")}
        assert len(options) == 12
        assert {"-b", "--steps", "--dry-run"} <= options
        headings = [line for line in rest.splitlines() if line and not line.startswith(" ")]
        assert headings == ["What to measure:", "Profiler:", "Output:", "Cluster:"]
        assert "  --stall SECONDS" in rest and "  --stall" not in first
        assert "<" not in first + rest, "no Python type"


def test_no_line_of_a_help_is_longer_than_80_columns(perfctl):
    pages = [(name,) for name in COMMANDS] + [("slurm", "render"), ("slurm", "ingest")]
    long = [
        line for words in pages for line in perfctl(*words, "--help").out.splitlines() if line[80:]
    ]
    assert long == []
