"""Images: run a profiler inside one with Apptainer or Singularity, and notice that perfctl itself runs inside one.

The whole command goes inside, profiler and program: around a container a profiler sees nothing, and says so with
exit code 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from perfctl.orchestrator.errors import ToolMissing, UsageError
from perfctl.orchestrator.launch import tools
from perfctl.orchestrator.launch.profiler import Command

RUNTIMES = ("apptainer", "singularity")
"""Programs that run images, the first that is there being taken."""
PYTHON = "python3"
"""The interpreter of an image, found on the image's own PATH."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image, and how runs get into it."""

    path: str
    """A .sif file or a folder, absolute; or an address with ``://`` in it."""
    runtime: str
    """One of RUNTIMES, or the path of such a program."""
    binds: tuple[str, ...] = ()
    """What the user wants to see inside: FOLDER, or FROM:TO, or FROM:TO:ro."""
    gpu: bool = False
    """Bring the driver's libraries in (--nv)."""

    def prefix(self, folders: Iterable[Path] = (), cwd: Path | None = None) -> tuple[str, ...]:
        """What stands before a command for it to run inside.

        ``folders`` are there under their own names, ``cwd`` too, and the command starts in it. Raises UsageError
        for a folder that cannot be named in an option (a colon or a comma in its path).
        """
        own = own_binds((*folders, *(() if cwd is None else (cwd,))))
        binds = [option for bind in (*own, *self.binds) for option in ("--bind", bind)]
        return (
            self.runtime, "exec",
            *(("--nv",) if self.gpu else ()),
            *binds,
            *(("--pwd", str(cwd)) if cwd else ()),
            self.path,
        )  # fmt: skip

    def wrap(self, command: Command, folders: Iterable[Path], cwd: Path) -> Command:
        """``command``, run inside; its environment reaches it under either runtime."""
        argv = (*self.prefix(folders, cwd), *command.argv)
        return replace(command, argv=argv, environment=both(command.environment), in_image=True)

    def identity(self) -> list[object]:
        """What makes two requests the same: an image that was built again is another one."""
        path = Path(self.path)
        stat = path.stat() if path.is_file() else None
        return [self.path, self.binds, (stat.st_size, int(stat.st_mtime)) if stat else None]

    def facts(self) -> dict[str, str]:
        """For the run's environment: runtime with version, and the image's name."""
        name = Path(self.runtime).name
        version = tools.version(self.runtime)
        return {"container": f"{name} {version}" if version else name, "image": _name(self.path)}


def image(path: str, binds: Iterable[str] = (), runtime: str | None = None, *, gpu: bool = False) -> Image:
    """The image to run in. Raises UsageError or ToolMissing, one line, when it cannot be."""
    if "://" not in path:
        if not Path(path).exists():
            raise UsageError(f"--image {path}: there is no such image", "perfctl image render writes a definition")
        path = os.path.abspath(path)  # noqa: PTH100  resolve() would follow links
    return Image(path, find_runtime(runtime), tuple(_checked(bind) for bind in binds), gpu)


def find_runtime(asked: str | None = None) -> str:
    """``asked``, or the one of RUNTIMES that is on PATH. Raises ToolMissing when there is none."""
    for name in (asked,) if asked else RUNTIMES:
        if tools.find(name):
            return name
    raise ToolMissing(
        f"{asked or ' or '.join(RUNTIMES)} is not installed here: it runs images",
        "Install Apptainer (Debian 12: scripts/apptainer_install.sh), or leave --image out",
    )


def both(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables as they are, and again in the two forms that enter an image even where a site cleans the rest."""
    return {
        f"{prefix}{name}": value
        for name, value in environment.items()
        for prefix in ("", "APPTAINERENV_", "SINGULARITYENV_")
    }


def bound(folder: Path) -> dict[str, str]:
    """Variables that bring a run's TMPDIR into the image, beside what the site binds by the same variables.

    A deep TMPDIR is reached through a link, so that the folder which holds the link is brought in.
    """
    own = str(folder.parent if folder.is_symlink() else folder)
    names = [f"{runtime.upper()}_BIND" for runtime in RUNTIMES]
    return {name: ",".join(filter(None, (os.environ.get(name), own))) for name in names}


@dataclass(frozen=True, slots=True)
class Inside:
    """The container that perfctl itself runs in."""

    runtime: str
    """apptainer, singularity, docker or podman."""
    image: str | None
    """Name of the image; None when the runtime does not tell."""

    def facts(self) -> dict[str, str]:
        """For the run's environment, as :meth:`Image.facts` says it from outside."""
        return {"container": self.runtime} | ({"image": self.image} if self.image else {})

    def __str__(self) -> str:
        return f"{self.runtime} ({self.image})" if self.image else self.runtime


def inside(root: Path = Path("/")) -> Inside | None:
    """The container this process runs in; None when it runs in none."""
    for runtime in RUNTIMES:
        if path := os.environ.get(f"{runtime.upper()}_CONTAINER"):
            return Inside(runtime, _name(path))
    if (root / ".singularity.d").is_dir():
        return Inside("apptainer", None)
    if (root / ".dockerenv").exists():
        return Inside("docker", None)
    return Inside("podman", None) if (root / "run/.containerenv").exists() else None


def _name(path: str) -> str:
    return path if "://" in path else Path(path).name


def own_binds(folders: Iterable[Path]) -> list[str]:
    """What --bind is told so that ``folders`` are there under their own names, none within another twice.

    Raises UsageError for a folder that cannot be named in an option.
    """
    return [_bindable(folder) for folder in _outermost(folders)]


def _outermost(folders: Iterable[Path]) -> list[Path]:
    """Absolute, each once, none that lies within another; the root is every image's own."""
    kept: list[Path] = []
    for folder in sorted({folder.absolute() for folder in folders}):
        if folder != Path("/") and not any(folder.is_relative_to(other) for other in kept):
            kept.append(folder)
    return kept


def _bindable(folder: Path) -> str:
    if ":" in str(folder) or "," in str(folder):
        raise UsageError(
            f"{folder}: a folder with ':' or ',' in its path cannot be brought into an image", "Use another folder"
        )
    return str(folder)


def _checked(bind: str) -> str:
    """Raises UsageError for something that is no FROM[:TO[:ro|rw]], or whose FROM is not there."""
    source, _, rest = bind.partition(":")
    target, _, mode = rest.partition(":")
    if not source or "," in bind or (rest and not target.startswith("/")) or mode not in ("", "ro", "rw"):
        raise UsageError(
            f"--bind {bind}: not understood", "Say --bind /data, --bind /data:/mnt or --bind /data:/mnt:ro"
        )
    if not Path(source).exists():
        raise UsageError(f"--bind {bind}: there is no {source} here", "Name a folder of this machine before the colon")
    return ":".join(part for part in (str(Path(source).absolute()), target, mode) if part)
