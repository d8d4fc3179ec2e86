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
from perfctl.orchestrator.options import Option, part_of

if TYPE_CHECKING:
    from perfctl.orchestrator.commands.study.folder import StudyParts

STUDIES = ("flops", "inference", "speedup", "cost")
DEVICES = {"speedup": ("--devices", "cpu,cuda")}
"""What the nodes have, where the study is not told: this machine need not have a GPU."""


@dataclass(frozen=True, kw_only=True)
class StudyScriptOptions(Site):
    """Write the job scripts of a study: each part a task, and a gather job that makes the page.

    The first word is the study (flops, inference, speedup, cost); its options are those of
    perfctl study NAME. Needs no Slurm.
    """

    force: Annotated[bool, Option("Overwrite scripts that you edited.", OUTPUT, is_common=True)] = (
        False
    )
    dry_run: slurm.DryRun = False
    arguments: Annotated[
        Sequence[str], Option("The study and its options.", filled_from="rest")
    ] = ()
    program: Annotated[Sequence[str] | None, Option("Your script.", filled_from="program")] = None
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
            study.folder.path,
            site,
            study.device,
            asked.command_line,
            _folders(asked.arguments),
        )
    )
    if not asked.dry_run:
        study.folder.path.mkdir(parents=True, exist_ok=True)
        study.write_files()
    is_written = not asked.dry_run
    return slurm.finish_scripts(rendered, site, events, force=asked.force, is_written=is_written)


COMMAND = Command(StudyScriptOptions, render_study, slurm.show_scripts, has_document=False)


def parts_of(words: Sequence[str], program: Sequence[str] | None = None) -> StudyParts:
    """The parts of ``perfctl study WORDS``, read as that command reads them. Raises UsageError,
    also for its bad options."""
    from perfctl.orchestrator.cli.study.group import study, taking_parts

    name = words[0] if words else None
    if name not in STUDIES:
        said = f"invalid study '{name}'" if name else "no study was named"
        raise UsageError(
            f"{said}", f"Run 'perfctl slurm render study NAME' with one of {', '.join(STUDIES)}"
        )
    option, device = DEVICES.get(name, ("--device", "cuda"))
    given = any(word == option or word.startswith(f"{option}=") for word in words)
    words = [name, "--dry-run", *(() if given else (option, device)), *words[1:]]
    typed = [*words, *(("--", *program) if program else ())]
    with taking_parts() as taken:
        try:
            study(typed, standalone_mode=False, prog_name="perfctl study")
        except PerfctlError as error:
            command = commands.called(study, [name])
            error.message = commands.with_flags(error.message, command)
            error.remedy = error.remedy and commands.with_flags(error.remedy, command)
            raise
    (found,) = taken
    return found


def _folders(words: Sequence[str]) -> tuple[Path, ...]:
    """Folders that options name, which an image must see."""
    return tuple(
        Path(word).resolve() for word in words if not word.startswith("-") and Path(word).is_dir()
    )
