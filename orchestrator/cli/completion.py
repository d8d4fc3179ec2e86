"""Completion of commands and options in bash, zsh and fish; the scripts are typer's own.

While a word is completed, the shell calls perfctl with the line so far in its environment.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

from perfctl.orchestrator.cli import console

ASKED = "_PERFCTL_COMPLETE"
"""Set by the shell that asks what may follow."""
COMPDEF = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }"


class Shell(StrEnum):
    """The shells whose scripts are tried by the tests."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def typed() -> list[str] | None:
    """The words after ``perfctl`` on the line that a shell wants completed; None where none asks."""
    if ASKED not in os.environ:
        return None
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    return line.split()[1:]


def prepare() -> None:
    """Make typer answer shells in its own way, which its scripts expect."""
    from typer._completion_classes import completion_init

    completion_init()


def _show(shell: Shell | None) -> None:
    if shell is None:
        return
    from typer._completion_shared import get_completion_script

    script = get_completion_script(prog_name="perfctl", complete_var=ASKED, shell=shell.value)  # nosec B604
    if shell is Shell.zsh:  # a ~/.zshrc need not have called what defines compdef
        script = script.replace("\ncompdef ", f"\n{COMPDEF}\ncompdef ")
    console.raw(script + "\n")
    raise typer.Exit


def _install(shell: Shell | None) -> None:
    if shell is None:
        return
    from typer._completion_shared import install

    _, path = install(shell=shell.value, prog_name="perfctl", complete_var=ASKED)  # nosec B604
    console.result(f"Wrote {path}. Completion works in the next {shell.value} that is started")
    raise typer.Exit


Show = Annotated[
    Shell | None,
    typer.Option(
        "--show-completion", callback=_show, is_eager=True, expose_value=False, metavar="SHELL",
        help="Print completion for bash, zsh or fish.",
    ),
]  # fmt: skip
Install = Annotated[
    Shell | None,
    typer.Option(
        "--install-completion", callback=_install, is_eager=True, expose_value=False, metavar="SHELL",
        help="Write it where the shell reads it at its start.",
    ),
]  # fmt: skip
