"""What holds for every command: JSON for programs, no colour where nobody sees it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import Any

from perfctl.orchestrator.cli.main import COMMANDS, build_application

WITHOUT = {"serve", "mcp"}
"""Two answer browsers and agents until they are ended."""


def _options():
    import typer

    group: Any = typer.main.get_command(build_application())
    return {
        name: {word for one in command.params for word in one.opts}
        for name, command in group.commands.items()
    }


def test_every_command_has_json():
    found = _options()
    assert set(COMMANDS) <= set(found)
    nested = {name for name, words in found.items() if not words - {"--help"}}
    assert {name for name, words in found.items() if "--json" not in words} - nested == WITHOUT


def test_a_dry_run_tells_programs_what_would_be_started(perfctl, recorded):
    planned = perfctl(f"replay {recorded / 'torch'} --json --dry-run").json
    assert [(row["batch_size"], row["stage"]) for row in planned] == [
        (16, "replay"),
        (32, "replay"),
    ]


def _on_a_terminal(words, folder, **environment):
    """What a command writes to a terminal of its own."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "perfctl", *words],
            cwd=folder,
            stdout=theirs,
            stderr=theirs,
            stdin=theirs,
            env={**os.environ, "TERM": "xterm-256color", **environment},
        )
        os.close(theirs)
        said = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            said += part
        assert process.wait(timeout=30) == 0
        return said
    finally:
        os.close(ours)


def test_no_colour_when_piped_or_where_no_color_is_set(perfctl, replayed, tmp_path):
    for words in (("runs",), ("show", 1), ("ledger",), ("query", "SELECT * FROM run")):
        assert "\x1b" not in perfctl(*words, "--store", replayed).out
    environment = {
        name: os.environ.pop(name) for name in ("NO_COLOR", "FORCE_COLOR") if name in os.environ
    }
    try:
        assert b"\x1b[" in _on_a_terminal(("doctor",), tmp_path), "on a terminal there is colour"
        said = _on_a_terminal(("doctor",), tmp_path, NO_COLOR="1")
    finally:
        os.environ.update(environment)
    colours = [f"\x1b[{code}".encode() for code in (*range(30, 38), *range(90, 98), "38;")]
    assert not any(colour in said for colour in colours)
