"""What gets a machine ready: define a container image, sort the images of ImageNet's
validation set."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from perfctl.orchestrator.actions.messages import SILENT, Messages
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.files import check_free, write_text
from perfctl.orchestrator.launch.images import definition
from perfctl.orchestrator.launch.images.definition import Definition
from perfctl.version import __version__

Tick = Callable[[int, int], None]
"""(done, of all) while something takes long."""


def render_image(
    asked: Definition, out: Path, *, force: bool = False, command_line: str = ""
) -> tuple[str, ...]:
    """Write an Apptainer definition with perfctl and its workloads to ``out``; the command that
    builds it.

    ``command_line`` stands in the definition. Needs no Apptainer. Raises UsageError where ``out``
    is there and ``force`` is not given.
    """
    check_free(out, force=force)
    write_text(out, definition.render(asked, out, version=__version__, command=command_line))
    return tuple(definition.build_command(out))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A data set that was sorted into class folders."""

    JSON_NAMES: ClassVar = {"total": "of"}

    folder: Path
    images: int
    """Images in ``folder``."""
    total: int
    """Images of the whole data set."""
    already: int
    """Images that were there before."""
    classes: int
    ignored: tuple[str, ...]
    """Names in the archive that are not images of the data set."""
    strays: tuple[Path, ...]
    """Images in ``folder`` that the development kit puts elsewhere."""


def prepare_imagenet(
    archive: Path,
    devkit: Path,
    out: Path,
    *,
    synsets: Path | None = None,
    verify: bool = True,
    progress: Callable[[str], AbstractContextManager[Tick]] = lambda label: nullcontext(
        lambda done, total: None
    ),
    messages: Messages = SILENT,
) -> Prepared:
    """Sort ImageNet's validation images into class folders below ``out``. A call that was stopped
    goes on later.

    ``archive`` is ILSVRC2012_img_val.tar, ``devkit`` ILSVRC2012_devkit_t12.tar.gz; ``synsets`` has
    lines "ID WNID" to use instead of the kit's meta.mat. ``verify`` compares MD5 sums with the
    published ones. ``progress(label)`` hears of one step. Raises UsageError for a file that is not
    there, PerfctlError for one that is not what it should be.
    """
    from perfctl.workloads.data import imagenet
    from perfctl.workloads.spec import WorkloadError

    for path in (archive, devkit, synsets):
        if path is not None and not path.is_file():
            raise UsageError(f"{path}: there is no such file", "Check the path")
    try:
        for path in (devkit, archive) if verify else ():
            with progress(f"MD5 of {path.name}") as tick:
                if not imagenet.check_sum(path, tick):
                    messages.note(
                        f"{path.name}: its name is none of the published ones, so its MD5 is not "
                        "compared"
                    )
        kit = imagenet.read_devkit(devkit, synsets)
        with progress("images") as tick:
            done = imagenet.sort_archive(archive, kit, out, tick)
        strays = tuple(imagenet.strays(out, kit))
    except WorkloadError as error:
        raise PerfctlError(str(error)) from error
    return Prepared(
        out, done.images, done.total, done.already, len(kit.classes), tuple(done.ignored), strays
    )
