"""perfctl slurm render study NAME: a study's parts as an array, and its page from the
gather job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from perfctl.orchestrator.cli import commands
from perfctl.orchestrator.commands import slurm
from perfctl.orchestrator.commands.declare import Command, CommandLine, Events
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.launch.cluster import render
from perfctl.orchestrator.launch.cluster.plan import Site, with_defaults
from perfctl.orchestrator.launch.sweep.options import OUTPUT
from perfctl.orchestrator.launch.sweep.study import SEEDS, read_study
from perfctl.orchestrator.options import Option, part_of

if TYPE_CHECKING:
    from perfctl.orchestrator.launch.sweep.study import StudyParts

DEVICES = {"devices": "cpu,cuda", "device": "cuda"}
"""Option of a study -> what the nodes have, where it is not told: this machine need not have a
GPU."""


@dataclass(frozen=True, kw_only=True)
class StudyScriptOptions(Site):
    """Write the job scripts of a study: each part a task, and a gather job that makes the page.

    The first word is the study (flops, inference, speedup, cost, or a TOML file); its options are
    those of perfctl study NAME. Needs no Slurm.
    """

    force: Annotated[bool, Option("Replace scripts that were edited.", OUTPUT, is_common=True)] = (
        False
    )
    dry_run: slurm.DryRun = False
    arguments: Annotated[
        Sequence[str], Option("The study and its options.", filled_from="rest")
    ] = ()
    program: Annotated[
        Sequence[str] | None, Option("A program of your own.", filled_from="program")
    ] = None
    command_line: CommandLine = ""


def render_study(asked: StudyScriptOptions, events: Events) -> slurm.Scripts:
    """Write the job scripts of a study, or only make them."""
    site = with_defaults(part_of(asked, Site), (Path.cwd(), Path.home()))
    study = parts_of(asked.arguments, asked.program)
    rendered = render.render_parts(
        render.PartsRequest(
            f"study-{study.kind}",
            study.parts,
            study.finish,
            study.out,
            site,
            study.device,
            asked.command_line,
            _folders(asked.arguments),
        )
    )
    if not asked.dry_run:
        study.out.mkdir(parents=True, exist_ok=True)
    is_written = not asked.dry_run
    return slurm.finish_scripts(rendered, site, events, force=asked.force, is_written=is_written)


COMMAND = Command(StudyScriptOptions, render_study, slurm.show_scripts, has_document=False)


def parts_of(words: Sequence[str], program: Sequence[str] | None = None) -> StudyParts:
    """The parts of ``perfctl study WORDS``, read as that command reads them. Raises UsageError,
    also for its bad options."""
    from perfctl.orchestrator.cli.study import read_parts, study

    name = words[0] if words else None
    if name is None or not (name in SEEDS or name.endswith(".toml")):
        problem = f"'{name}' is not a study" if name else "there is no study"
        remedy = f"perfctl slurm render study NAME, with one of {', '.join(SEEDS)}, or a TOML file"
        raise UsageError(problem, f"Say {remedy}")
    known = read_study(name).options
    option = next((option for option in DEVICES if option in known), None)
    is_given = any(word.partition("=")[0] == f"--{option}" for word in words)
    device = () if option is None or is_given else (f"--{option}", DEVICES[option])
    after = ("--", *program) if program else ()
    try:
        return read_parts(name, [*device, *words[1:], *after])
    except PerfctlError as error:
        command = commands.called(study, [name])
        error.message = commands.with_flags(error.message, command)
        error.remedy = error.remedy and commands.with_flags(error.remedy, command)
        raise


def _folders(words: Sequence[str]) -> tuple[Path, ...]:
    """Folders that options name, which an image must see."""
    return tuple(
        Path(word).resolve() for word in words if not word.startswith("-") and Path(word).is_dir()
    )
