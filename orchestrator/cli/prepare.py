"""perfctl prepare"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.errors import PerfctlError, UsageError

WHAT = ("imagenet-val",)
_QUIET_S = 10.0
"""Without a terminal, seconds between two lines."""


def prepare(
    what: Annotated[str, typer.Argument(help="imagenet-val: ImageNet's validation images.")],
    archive: Annotated[Path, typer.Argument(help="The flat archive, ILSVRC2012_img_val.tar.")],
    devkit: Annotated[Path, typer.Option(help="The development kit, ILSVRC2012_devkit_t12.tar.gz.")],
    out: Annotated[Path, typer.Option(help="Folder that gets the class folders.")] = Path("imagenet-val"),
    synsets: Annotated[Path | None, typer.Option(help="Lines 'ID WNID' to use instead of the kit's meta.mat.")] = None,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Do not compare MD5 with the published ones.")] = False,
    as_json: options.Json = False,
) -> None:
    """Sort a data set's archive into class folders, for --data imagenet --data-dir. Stopped, it goes on later."""
    from perfctl.workloads import imagenet_val
    from perfctl.workloads.spec import WorkloadError

    if what not in WHAT:
        raise UsageError(f"'{what}' is not known", f"Say {', '.join(WHAT)}")
    for path in (archive, devkit, synsets):
        if path is not None and not path.is_file():
            raise UsageError(f"{path}: there is no such file", "Check the path")
    try:
        if not no_verify:
            for path in (devkit, archive):
                with _bar(f"MD5 of {path.name}") as tick:
                    if not imagenet_val.check_sum(path, tick):
                        console.note(f"{path.name}: its name is none of the published ones, so its MD5 is not compared")
        kit = imagenet_val.read_devkit(devkit, synsets)
        with _bar("images") as tick:
            done = imagenet_val.sort_archive(archive, kit, out, tick)
        strays = list(imagenet_val.strays(out, kit))
    except WorkloadError as error:
        raise PerfctlError(str(error)) from error
    if as_json:
        counts = {"images": done.images, "of": done.total, "already": done.already, "classes": len(kit.classes)}
        odd = {"ignored": list(done.ignored), "strays": [str(path) for path in strays]}
        console.as_json({"folder": str(out), **counts, **odd})
        return
    _tell(done, out, len(kit.classes), strays)


def _tell(done: object, out: Path, classes: int, strays: list[Path]) -> None:
    from perfctl.workloads.imagenet_val import Sorted

    assert isinstance(done, Sorted)
    if done.ignored:
        more = f" and {len(done.ignored) - 1} more" if len(done.ignored) > 1 else ""
        console.warning(f"not an image of the validation set, ignored: {done.ignored[0]}{more}")
    if strays:
        console.warning(
            f"{len(strays)} images lie in {out} that the development kit puts elsewhere ({strays[0].relative_to(out)}, ...): "
            "they would count as wrong answers; remove them"
        )
    before = f", {done.already:,} of them there already" if done.already else ""
    console.result(f"Wrote {done.images:,} of {done.total:,} images in {classes:,} class folders to {out}{before}")
    if done.images < done.total:
        console.warning(
            f"the archive is a subset: {done.total - done.images:,} images are not in it, and accuracy will be over what is"
        )
    console.result(f"Next: perfctl infer --models resnet18 --data imagenet --data-dir {out}")


@contextmanager
def _bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """(done, of all) -> a bar on a terminal, a line now and then elsewhere."""
    import sys

    if not sys.stderr.isatty():
        yield _lines(label)
        return
    with console.bar() as shown:
        task = shown.add_task(label, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def _lines(label: str) -> Callable[[int, int], None]:
    last = time.monotonic()

    def tick(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > _QUIET_S:
            last = time.monotonic()
            console.note(f"{label}: {done / total:.0%}")

    return tick
