"""perfctl slurm render study NAME: a study's parts as an array, and its page from the
gather job."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfctl.orchestrator.cli import commands, console, flags
from perfctl.orchestrator.cli.measure.profilers import AFTER, CONTEXT
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.cluster.plan import Site, with_defaults
from perfctl.orchestrator.launch.sweep.study import SEEDS, read_study
from perfctl.orchestrator.options import Option

if TYPE_CHECKING:
    from perfctl.orchestrator.launch.sweep.study import StudyParts

DEVICES = {"devices": "cpu,cuda", "device": "cuda"}
"""Option of a study -> what the nodes have, where it is not told: this machine need not have a
GPU."""


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

        The first word is the study (flops, inference, speedup, cost, or a TOML file); its options
        are those of perfctl study NAME. Needs no Slurm.
        """
        from perfctl.orchestrator.actions.sweep import slurm as actions

        rendering = Rendering(**commands.values_of(_RENDERING, given))
        typed = Site(**commands.values_of(_SITE, given))
        site = with_defaults(typed, (Path.cwd(), Path.home()))
        study = parts_of(context.args, context.meta.get(AFTER))
        name = f"study-{study.kind}"
        line = console.command_line()
        asked = actions.PartsRequest(
            name,
            study.parts,
            study.finish,
            study.out,
            site,
            study.device,
            line,
            _folders(context.args),
        )
        rendered = actions.render_parts(asked)
        if rendering.dry_run:
            for text in rendered.texts.values():
                console.result(text)
            return
        study.out.mkdir(parents=True, exist_ok=True)
        actions.write(rendered, force=rendering.force)
        shown(rendered.plan, site)

    parameters = [CONTEXT, *commands.parameters_of(_SITE | _RENDERING)]
    return commands.with_parameters(render_study, parameters, inspect.getdoc(render_study) or "")


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
    with flags.about(study, [name]):
        return read_parts(name, [*device, *words[1:], *after])


def _folders(words: Sequence[str]) -> tuple[Path, ...]:
    """Folders that options name, which an image must see."""
    return tuple(
        Path(word).resolve() for word in words if not word.startswith("-") and Path(word).is_dir()
    )
