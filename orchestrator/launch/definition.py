"""An Apptainer definition: a base image, and perfctl with its workloads in it."""

from __future__ import annotations

import os
import shlex
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch import tools
from perfctl.orchestrator.launch.container import RUNTIMES
from perfctl.orchestrator.launch.slurm_script import render_template

TEMPLATE = "apptainer.def.j2"

_PLACE = "/opt/perfctl-install"
"""Where the image has the files to install from, until they are installed."""
_FOR_DEVELOPERS = ("test", "dev", "fuzz")


@dataclass(frozen=True, slots=True)
class Definition:
    """What is to be built."""

    base: str
    """An address (docker://...), a plain image name, a .sif file, or the folder of a root file system."""
    extras: tuple[str, ...] = ()
    source: Path | None = None
    """perfctl's checkout, a wheel or an sdist of it; None for the release of this version."""
    wheels: Path | None = None
    """Folder that pip takes everything from, where the build has no network."""
    pip_options: tuple[str, ...] = ()
    post: tuple[str, ...] = ()
    """Shell lines of the user's before perfctl is installed."""


def render(asked: Definition, out: Path, *, version: str, command: str) -> str:
    """The text of the definition ``out``. Raises UsageError for a base, source or extra that there is not."""
    check_extras(asked.extras)
    bootstrap, base = read_base(asked.base)
    files, requirement = _files(asked, version)
    offline = ("--no-index", "--find-links", f"{_PLACE}/wheels") if asked.wheels else ()
    context = {
        "version": version, "command": command, "build": shlex.join(build_command(out)),
        "bootstrap": bootstrap, "base": _one_line("--base", base), "place": _PLACE,
        "files": [(_quoted(source), _quoted(Path(target))) for source, target in files],
        "post": [_one_line("--post", line) for line in asked.post],
        "pip": (*offline, *asked.pip_options, requirement),
    }  # fmt: skip
    return render_template(None, TEMPLATE, context)


def build_command(out: Path) -> tuple[str, ...]:
    """How to build it, with the runtime that is here; without root's rights as root of a namespace."""
    runtime = next((name for name in RUNTIMES if tools.find(name)), RUNTIMES[0])
    return (runtime, "build", *(() if os.geteuid() == 0 else ("--fakeroot",)), str(out.with_suffix(".sif")), str(out))


def read_base(base: str) -> tuple[str, str]:
    """(Bootstrap, From) of a base image. A path is a local one, a plain name one of Docker's."""
    scheme, separator, rest = base.partition("://")
    if separator:
        if not scheme or not rest:
            raise UsageError(f"--base {base}: not understood", "Say docker://NAME:TAG, NAME:TAG, FILE.sif or FOLDER")
        return scheme, rest
    if Path(base).exists():
        return "localimage", str(Path(base).absolute())
    if base.endswith((".sif", ".img")) or base.startswith(("/", ".", "~")) or not base:
        raise UsageError(
            f"--base {base}: there is no such image", "Say docker://NAME:TAG, NAME:TAG, FILE.sif or FOLDER"
        )
    return "docker", base


def check_extras(extras: Iterable[str]) -> None:
    """Raises UsageError for an extra that perfctl does not have, or that is not for users."""
    known = [
        name for name in metadata.metadata("perfctl").get_all("Provides-Extra") or () if name not in _FOR_DEVELOPERS
    ]
    for extra in extras:
        if extra not in known:
            raise UsageError(f"--extra {extra}: perfctl has no such extra", f"Known: {', '.join(known)}")


def _files(asked: Definition, version: str) -> tuple[list[tuple[Path, str]], str]:
    """([what is copied, and where to], what pip is told to install)."""
    extras = f"[{','.join(asked.extras)}]" if asked.extras else ""
    files: list[tuple[Path, str]] = []
    if asked.wheels is not None:
        if not asked.wheels.is_dir():
            raise UsageError(f"--wheels {asked.wheels}: there is no such folder", "Fill one with pip download")
        files.append((asked.wheels.absolute(), f"{_PLACE}/wheels"))
    source = asked.source
    if source is None:
        return files, f"perfctl{extras}=={version}"
    if source.is_file() and source.name.endswith((".whl", ".tar.gz")):
        target = f"{_PLACE}/{source.name}"
        return [*files, (source.absolute(), target)], f"{target}{extras}"
    needed = [(part, f"{_PLACE}/source/{part.name}") for part in parts(source)]
    return [*files, *needed], f"{_PLACE}/source{extras}"


def parts(source: Path) -> list[Path]:
    """What of a checkout is needed to build perfctl: not its tests, its history, or a virtual environment in it."""
    try:
        project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
        folders = sorted(set(project["tool"]["setuptools"]["package-dir"].values()))
        named = [str(project["project"]["readme"]), *project["project"]["license-files"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"--source {source}: no wheel, sdist or checkout of perfctl", "Name one of these, or leave --source out"
        ) from error
    names = ["pyproject.toml", *named, *folders]
    return [(source / name).absolute() for name in names if (source / name).exists()]


def _one_line(what: str, text: str) -> str:
    if any(ord(character) < 32 for character in text):
        raise UsageError(f"{what} has a line break or a control character in it: {text!r}", "Say it in one line")
    return text


def _quoted(path: Path) -> str:
    """A path as %files reads it."""
    text = _one_line("a path", str(path))
    if '"' in text:
        raise UsageError(f"{text}: %files cannot name a path with a quotation mark", "Use another folder")
    return f'"{text}"' if any(character.isspace() for character in text) else text
