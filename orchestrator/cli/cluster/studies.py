"""perfctl slurm render study NAME: a study's parts as an array, and its page from the
gather job."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfctl.orchestrator.cli import commands, console
from perfctl.orchestrator.cli.commands import AFTER, CONTEXT
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.launch.cluster.plan import Site, with_defaults
from perfctl.orchestrator.options import Option

if TYPE_CHECKING:
    from perfctl.orchestrator.commands.study.folder import StudyParts

STUDIES = ("flops", "inference", "speedup", "cost")
DEVICES = {"speedup": ("--devices", "cpu,cuda")}
"""What the nodes have, where the study is not told: this machine need not have a GPU."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """What is done with the scripts."""

    force: Annotated[bool, Option("Replace scripts that were edited.", "Output")] = False
    dry_run: Annotated[bool, Option("Print the scripts, and write nothing.", "Output")] = False


_SITE, _RENDERING = commands.declared_by(Site), commands.declared_by(Rendering)


def command(shown: Callable[..., None]) -> Callable[..., None]:
    """The typer command; ``shown`` prints what was written and what to type next."""

    def render_study(context: typer.Context, **given: Any) -> None:
        """Write the job scripts of a study: each part a task, and a gather job that makes the page.

        The first word is the study (flops, inference, speedup, cost); its options are those of
        perfctl study NAME. Needs no Slurm.
        """
        from perfctl.orchestrator.launch.cluster import render

        rendering = Rendering(**commands.values_of(_RENDERING, given))
        typed = Site(**commands.values_of(_SITE, given))
        site = with_defaults(typed, (Path.cwd(), Path.home()))
        study = parts_of(context.args, context.meta.get(AFTER))
        name = f"study-{study.kind}"
        line = console.command_line()
        asked = render.PartsRequest(
            name,
            study.parts,
            study.finish,
            study.folder.path,
            site,
            study.device,
            line,
            _folders(context.args),
        )
        rendered = render.render_parts(asked)
        if rendering.dry_run:
            for text in rendered.texts.values():
                console.result(text)
            return
        study.folder.path.mkdir(parents=True, exist_ok=True)
        study.write_files()
        render.write(rendered, force=rendering.force)
        shown(rendered.plan, site)

    parameters = [CONTEXT, *commands.parameters_of(_SITE | _RENDERING)]
    return commands.with_parameters(render_study, parameters, inspect.getdoc(render_study) or "")


def parts_of(words: Sequence[str], program: Sequence[str] | None = None) -> StudyParts:
    """The parts of ``perfctl study WORDS``, read as that command reads them. Raises UsageError,
    also for its bad options."""
    from perfctl.orchestrator.cli.study.group import study, taking_parts

    name = words[0] if words else None
    if name not in STUDIES:
        said = f"'{name}' is not a study" if name else "there is no study"
        raise UsageError(
            f"{said}", f"Say perfctl slurm render study NAME, with one of {', '.join(STUDIES)}"
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
