"""perfctl slurm render: from the options of a sweep and of a cluster to two job scripts."""

from __future__ import annotations

import hashlib
import inspect
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console
from perfctl.orchestrator.cli.here import program_words
from perfctl.orchestrator.cli.slurm_options import SiteOptions
from perfctl.orchestrator.cli.sweep_command import AFTER, Asked, parameters_of
from perfctl.orchestrator.cli.sweeps import SWEEPS
from perfctl.orchestrator.errors import UsageError

if TYPE_CHECKING:
    from perfctl.orchestrator.launch.profiler import Profiler
    from perfctl.orchestrator.launch.slurm_plan import Plan
    from perfctl.orchestrator.launch.slurm_script import Words
    from perfctl.orchestrator.launch.sweep_records import SweepRequest


def replay(
    recording: Annotated[Path | None, typer.Option(help="With replay: the recorded sweep to stand in.")] = None,
) -> Profiler:
    """A recorded sweep in the place of a profiler."""
    from perfctl.orchestrator.launch.replay import Replay

    if recording is None:
        raise UsageError("replay needs the folder of a recorded sweep", "Name it with --recording")
    return Replay(recording)


PROFILERS: dict[str, Callable[..., Any]] = {**SWEEPS, "replay": replay}
_NOT_HERE = ("estimate_cost", "again", "grace", "no_store", "sweep_name", "scratch", "devices", "as_json")
"""What has no sense in an array, and what each task is told by its script."""
_OF_SITE = tuple(field.name for field in fields(SiteOptions))
"""Of these names, the cluster's meaning counts: perfctl itself runs inside --image."""
_NOT_TASKS = ("batches", "store", "dry_run", "device", "workload")


@dataclass(frozen=True, slots=True)
class Rendering:
    """Options of render itself."""

    page: Annotated[Path | None, typer.Option(help="The page to write. Default: beside the store.")] = None
    force: Annotated[bool, typer.Option("--force", help="Replace scripts that were edited.")] = False


def render_command() -> Callable[..., None]:
    """A typer command that takes what the profilers' own commands take, and the cluster's options."""
    helps: dict[str, Any] = {
        "device": Annotated[str, typer.Option(help="cuda or cpu; auto is cuda, for it is the nodes that count.")],
        "dry_run": Annotated[bool, typer.Option("--dry-run", help="Print both scripts, and write nothing.")],
    }
    own = {one.name: one for make in PROFILERS.values() for one in parameters_of(make) if one.name not in _NOT_HERE}
    groups: dict[type[Any], list[inspect.Parameter]] = {
        kind: [one for one in parameters_of(kind) if one.name not in hidden]
        for kind, hidden in ((Asked, {*_NOT_HERE, *_OF_SITE}), (SiteOptions, set()), (Rendering, set()))
    }

    def command(context: typer.Context, profilers: str, **given: Any) -> None:
        asked, site, rendering = (
            kind(**{one.name: given.pop(one.name) for one in ones}) for kind, ones in groups.items()
        )
        _render(profilers, given, asked, site, rendering, tuple(context.args), context.meta.get(AFTER))

    argument = Annotated[str, typer.Argument(metavar="PROFILER[,PROFILER]", help="nsys, ncu, torch, dlprof.")]
    kind = inspect.Parameter.KEYWORD_ONLY
    shown: list[inspect.Parameter] = [
        inspect.Parameter("context", kind, annotation=typer.Context),
        inspect.Parameter("profilers", kind, annotation=argument),
        *own.values(),
        *(one.replace(annotation=helps.get(one.name, one.annotation)) for ones in groups.values() for one in ones),
    ]
    command.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]  # what typer reads
    command.__annotations__ = {one.name: one.annotation for one in shown}
    command.__doc__ = """Write the job scripts of a sweep, one batch size (and profiler) a task. Needs no Slurm.

    The options of a sweep are those of perfctl PROFILER; a program of your own follows --, with {batch} where the batch
    size goes. What a site always wants can stand in perfctl.toml, here or in the home folder, under [slurm].
    """
    return command


def _render(
    profilers: str,
    own: dict[str, Any],
    asked: Asked,
    typed: SiteOptions,
    rendering: Rendering,
    rest: tuple[str, ...],
    after: tuple[str, ...] | None,
) -> None:
    from perfctl import __version__
    from perfctl.orchestrator.launch import slurm_script
    from perfctl.orchestrator.launch.schedulers import BUILT_IN
    from perfctl.orchestrator.launch.slurm_site import with_defaults

    site = with_defaults(typed.site(), (Path.cwd(), Path.home()))
    asked = replace(asked, device="cuda" if asked.device == "auto" else asked.device)
    typed_here = _as_here(after) if site.image else after
    requests = {name: _request(name, own, asked, rest, typed_here) for name in _names(profilers)}
    plan = _plan(requests)
    commands = {name: _words(name, own, asked, request, rest, after) for name, request in requests.items()}
    store = asked.store or asked.out.parent / DEFAULT
    page = rendering.page or store.with_name("perfctl-report.html")
    facts: dict[str, Any] = {
        "version": __version__, "cwd": Path.cwd(), "device": asked.device, "store": store,
        "page": page,
        "sees": _seen(requests.values(), own),
        "perfctl": shlex.split(site.perfctl) if site.perfctl else _perfctl(in_image=site.image is not None),
    }  # fmt: skip
    texts = {
        plan.array: slurm_script.array_script(plan, site, commands, facts),
        plan.gather: slurm_script.gather_script(plan, site, facts),
    }
    if asked.dry_run:
        for text in texts.values():
            console.result(text)
        return
    _write(plan, texts, force=rendering.force)
    _prepare((store, page), requests.values())
    console.result(f"Wrote {_shown(plan.array)} ({len(plan.tasks)} tasks) and {plan.gather.name}")
    if site.template in BUILT_IN:  # perfctl slurm submit knows Slurm alone
        console.result(f"Next: the commands in the first lines of {_shown(plan.array)} submit both")
    else:
        console.result(f"Next: perfctl slurm submit {shlex.quote(_shown(plan.folder))}")


def _prepare(targets: Iterable[Path], requests: Iterable[SweepRequest]) -> None:
    """The folders that the tasks write to."""
    from perfctl.orchestrator.launch import sweep

    for target in targets:
        target.parent.mkdir(parents=True, exist_ok=True)  # an image can be shown only what is there
    for request in requests:
        sweep.join(request)


def _seen(requests: Iterable[SweepRequest], own: dict[str, Any]) -> list[Path]:
    """What an image must see of the nodes beside the working folder and the sweeps: a script's folder, a recording."""
    from perfctl.orchestrator.launch import where

    scripts = [folder for request in requests for folder in where.folders(request)[1:]]
    return [*scripts, *([own["recording"]] if own.get("recording") else [])]


def _names(profilers: str) -> list[str]:
    names = [name.strip() for name in profilers.split(",")]
    for name in names:
        if name not in PROFILERS:
            raise UsageError(f"'{name}' is no profiler", f"Say one or more of {','.join(PROFILERS)}")
    if len(set(names)) < len(names):
        raise UsageError(f"a profiler stands twice in {profilers}", "Name each once")
    return names


def _as_here(after: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """A program for an image, to be checked here: its interpreter is the image's, and need not be on this machine."""
    python, words = program_words(after or ())
    return (sys.executable, *words) if python else after


def _request(
    name: str, own: dict[str, Any], asked: Asked, rest: tuple[str, ...], after: tuple[str, ...] | None
) -> SweepRequest:
    """Checked as on one machine; what is on the nodes, only they can check."""
    from perfctl.orchestrator.cli.sweep_request import sweep_request
    from perfctl.orchestrator.launch.replay import Replay

    make = PROFILERS[name]
    profiler = make(**{one.name: own[one.name] for one in parameters_of(make) if one.name in own})
    if isinstance(profiler, Replay):
        asked = replace(asked, workload=profiler.workload(), device=profiler.device())
        return sweep_request(profiler, asked, (), None, origin="recorded")
    return sweep_request(profiler, asked, rest, after)


def _plan(requests: dict[str, SweepRequest]) -> Plan:
    from perfctl.orchestrator.launch.paths import file_name
    from perfctl.orchestrator.launch.slurm_plan import Plan, Task

    first = next(iter(requests.values()))
    pairs = [(name, batch, request.name) for name, request in requests.items() for batch in request.batches]
    tasks = tuple(Task(number, *pair, repeat=first.repeat) for number, pair in enumerate(pairs))
    out = first.out.absolute()
    digest = hashlib.sha256(f"{out}\n{pairs}".encode("utf-8", "surrogateescape")).hexdigest()[:8]
    folder = out / f"slurm-{file_name(first.workload)}-{digest}"
    return Plan(folder, first.workload, tasks, first.command_line, first.host)


def _words(
    name: str,
    own: dict[str, Any],
    asked: Asked,
    request: SweepRequest,
    rest: tuple[str, ...],
    after: tuple[str, ...] | None,
) -> Words:
    from perfctl.orchestrator.launch.slurm_script import Words

    known = {one.name for one in parameters_of(Asked)} - {*_NOT_TASKS, *_NOT_HERE, *_OF_SITE}
    if name == "replay":
        words = ["replay", str(own["recording"])]
        shared = [one for one in parameters_of(Asked) if one.name in ("out", "timeout")]
        rest, after = (), None
    else:
        words = [name, f"--device={asked.device}"]
        words += [f"--workload={asked.workload}"] if asked.workload is not None else []
        shared = [one for one in parameters_of(Asked) if one.name in known]
    for one in parameters_of(PROFILERS[name]):
        if one.name in own and one.name != "recording":
            words += _typed(one, own[one.name])
    for one in shared:
        words += _typed(one, getattr(asked, one.name))
    return Words((*words, f"--sweep-name={request.name}", *rest), after or ())


def _typed(parameter: inspect.Parameter, value: Any) -> list[str]:
    """An option as one would type it; nothing where it has its default."""
    if value is None or value == parameter.default:
        return []
    declared = [word for part in parameter.annotation.__metadata__ for word in part.param_decls or ()]
    name = next((word for word in declared if word.startswith("--")), f"--{parameter.name.replace('_', '-')}")
    if isinstance(value, bool):
        return [name] if value else []
    return [f"{name}={one}" for one in (value if isinstance(value, list | tuple) else [value])]


def _perfctl(*, in_image: bool) -> list[str]:
    """In an image, the python that everything else is run by there, too; perfctl itself need not be on its PATH."""
    return ["python3" if in_image else sys.executable, "-m", "perfctl"]


def _write(plan: Plan, texts: dict[Path, str], *, force: bool) -> None:
    """Both scripts and the list of tasks; nothing that differs is replaced without --force."""
    for path, text in texts.items():
        if not force and path.exists() and path.read_text(encoding="utf-8", errors="replace") != text:
            raise UsageError(f"{path} is there already, and differs", "Replace it with --force, or move it away")
    plan.folder.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        path.chmod(0o755)
    plan.write()


def _shown(folder: Path) -> str:
    """Relative where it lies below this one."""
    return str(folder.relative_to(Path.cwd())) if folder.is_relative_to(Path.cwd()) else str(folder)
