"""Write an Apptainer definition: a base image with perfctl and its workloads installed."""

from __future__ import annotations

import json
import os
import shlex
import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.files import raise_if_output_not_replaceable, write_text
from perfctl.orchestrator.launch.cluster.script import render_template, require_one_line
from perfctl.orchestrator.launch.images.run import RUNTIMES
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.options import Option, split_at_commas
from perfctl.version import __version__

NGC = "nvcr.io/nvidia/pytorch"
BASE = f"docker://{NGC}:25.06-py3"
"""NVIDIA's PyTorch image of June 2025: CUDA 12.9, Python 3.12, torch, nsys and ncu."""
EXTRAS = ("torch", "ncu", "nvml")
KEPT = ("torch", "torchvision", "torchaudio", "triton", "numpy")
"""Packages of a base image that pip must leave as they are: NVIDIA's torch is built against
its own."""

_CHECKOUT = Path(__file__).resolve().parents[3]
"""The checkout where perfctl runs from one; else a folder without a pyproject.toml."""
_PLACE = "/opt/perfctl-install"
"""Folder inside the image that holds the files to install from; removed after the installation."""
_REMEDY = "Write it on one line"


@dataclass(frozen=True, slots=True)
class ImageRecipe:
    """What to build."""

    base: Annotated[
        str,
        Option(
            "Base image: docker://NAME:TAG, NAME:TAG, FILE.sif or a root folder. Default: "
            "NVIDIA's PyTorch image, which has torch, nsys and ncu.",
            metavar="IMAGE",
        ),
    ] = BASE
    extras: Annotated[
        tuple[str, ...] | None,
        Option(
            "Extras of perfctl, separated by commas. Default: torch,ncu,nvml (NVIDIA's image: "
            "without torch).",
            names=("--extra",),
            metavar="NAMES",
            parse=split_at_commas,
        ),
    ] = None
    source: Annotated[
        Path | None,
        Option(
            "Checkout, wheel or sdist of perfctl to install. Default: the source or release of "
            "this perfctl."
        ),
    ] = None
    wheels: Annotated[
        Path | None,
        Option(
            "Folder of wheels for pip, for builds without a network.",
            metavar="FOLDER",
        ),
    ] = None
    pip_options: Annotated[
        tuple[str, ...],
        Option(
            "Option for pip install, for example --pip-option=--no-deps (repeatable).",
            names=("--pip-option",),
            metavar="WORD",
        ),
    ] = ()
    post: Annotated[
        tuple[str, ...],
        Option("Shell line to run before perfctl is installed (repeatable).", metavar="LINE"),
    ] = ()


def write_definition_get_build_command(
    recipe: ImageRecipe, out: Path, *, force: bool = False, command_line: str = ""
) -> tuple[str, ...]:
    """Write the definition with perfctl and its workloads to ``out``, and return the command that
    builds it.

    ``command_line`` stands in the definition. Needs no Apptainer. Raises UsageError if ``out``
    exists and ``force`` is not given.
    """
    raise_if_output_not_replaceable(out, force=force)
    text = render_image_definition(recipe, out, version=__version__, command=command_line)
    write_text(out, text, force=force)
    return tuple(make_image_build_command(out))


def render_image_definition(image: ImageRecipe, out: Path, *, version: str, command: str) -> str:
    """Return the text of the definition ``out``. Raises UsageError for a base, source or extra that
    does not exist."""
    bootstrap, base = parse_base_image(image.base)
    usual = [name for name in EXTRAS if name != "torch" or not base.startswith(NGC)]
    extras = usual if image.extras is None else image.extras
    every = metadata.metadata("perfctl").get_all("Provides-Extra") or ()
    extras_known = [name for name in every if name not in ("test", "dev", "fuzz")]
    if unknown := [extra for extra in extras if extra not in extras_known]:
        raise UsageError(
            f"`extra`: perfctl has no extra '{unknown[0]}'", f"Known: {', '.join(extras_known)}"
        )
    files, requirement = _list_files_and_pip_requirement(
        image, f"[{','.join(extras)}]" if extras else "", version
    )
    offline = ("--no-index", "--find-links", f"{_PLACE}/wheels") if image.wheels else ()
    context = {
        "version": version,
        "command": command,
        "build": shlex.join(make_image_build_command(out)),
        "bootstrap": bootstrap,
        "base": require_one_line("`base`", base, _REMEDY),
        "place": _PLACE,
        "files": [
            (_quote_apptainer_files_path(source), _quote_apptainer_files_path(Path(target)))
            for source, target in files
        ],
        "post": [require_one_line("`post`", line, _REMEDY) for line in image.post],
        "pip": (*offline, *image.pip_options, requirement),
        "kept": KEPT,
    }
    return render_template(None, "apptainer.def.j2", context)


def make_image_build_command(out: Path) -> tuple[str, ...]:
    """Return the command that builds it with the installed runtime; --fakeroot for anybody but
    root."""
    runtime = next((name for name in RUNTIMES if tools.find_program(name)), RUNTIMES[0])
    return (
        runtime,
        "build",
        *(() if os.geteuid() == 0 else ("--fakeroot",)),
        str(out.with_suffix(".sif")),
        str(out),
    )


def parse_base_image(base: str) -> tuple[str, str]:
    """Return (Bootstrap, From) of a base image: a path is a local image, a bare name one from
    Docker Hub."""
    example = "Use docker://NAME:TAG, NAME:TAG, FILE.sif or FOLDER"
    scheme, separator, address = base.partition("://")
    if separator:
        if not scheme or not address:
            raise UsageError(f"`base`: '{base}' is not an image", example)
        return scheme, address
    if Path(base).exists():
        return "localimage", str(Path(base).absolute())
    if base.endswith((".sif", ".img")) or base.startswith(("/", ".", "~")) or not base:
        raise UsageError(f"`base`: '{base}' does not exist", example)
    return "docker", base


def find_perfctl_source() -> Path | None:
    """Return the checkout or wheel that this perfctl comes from; None for a release from a package
    index. Raises UsageError when it came from elsewhere, such as a wheel that is gone."""
    if (_CHECKOUT / "pyproject.toml").is_file():
        return _CHECKOUT
    try:
        origin = metadata.distribution("perfctl").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        origin = None
    if origin is None:
        return None  # PEP 610: an index was asked
    url = str(json.loads(origin).get("url", ""))
    path = Path(unquote(urlsplit(url).path))
    if url.startswith("file:") and path.exists():
        return path
    problem = (
        f"`source`: this perfctl was installed from {url or 'an unknown place'}, which no longer "
        "exists on this machine"
    )
    raise UsageError(problem, "Name a wheel or a checkout of perfctl")


def _list_files_and_pip_requirement(
    definition: ImageRecipe, extras: str, version: str
) -> tuple[list[tuple[Path, str]], str]:
    """Return ([(source, target inside the image)], the requirement for pip)."""
    files: list[tuple[Path, str]] = []
    if definition.wheels is not None:
        if not definition.wheels.is_dir():
            raise UsageError(
                f"`wheels`: {definition.wheels} is not a folder", "Fill one with pip download"
            )
        files.append((definition.wheels.absolute(), f"{_PLACE}/wheels"))
    source = definition.source or find_perfctl_source()
    if source is None:
        return files, f"perfctl{extras}=={version}"
    if source.is_file() and source.name.endswith((".whl", ".tar.gz")):
        target = f"{_PLACE}/{source.name}"
        return [*files, (source.absolute(), target)], f"{target}{extras}"
    needed = [(part, f"{_PLACE}/source/{part.name}") for part in list_checkout_build_files(source)]
    return [*files, *needed], f"{_PLACE}/source{extras}"


def list_checkout_build_files(source: Path) -> list[Path]:
    """Return the files and folders of a checkout that building perfctl needs. Raises UsageError
    when it is none of perfctl."""
    try:
        project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
        folders = sorted(set(project["tool"]["setuptools"]["package-dir"].values()))
        files = [str(project["project"]["readme"]), *project["project"]["license-files"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"`source`: {source} is not a wheel, sdist or checkout of perfctl"
        raise UsageError(problem, "Name one of these, or omit `source`") from error
    names = ["pyproject.toml", *files, *folders]
    return [(source / name).absolute() for name in names if (source / name).exists()]


def _quote_apptainer_files_path(path: Path) -> str:
    """Return a path as %files reads it. Raises UsageError for one that %files cannot express."""
    text = require_one_line("a path", str(path), _REMEDY)
    if '"' in text:
        raise UsageError(
            f"{text}: a path in %files must not contain a quotation mark", "Use another folder"
        )
    return f'"{text}"' if any(character.isspace() for character in text) else text
