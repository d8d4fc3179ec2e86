"""perfctl prepare"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.errors import UsageError

if TYPE_CHECKING:
    from perfctl.orchestrator.actions.setup import Prepared

WHAT = ("imagenet-val",)
_QUIET_S = 10.0
"""Without a terminal, seconds between two lines."""


def prepare(
    what: Annotated[str, typer.Argument(help="imagenet-val: ImageNet's validation images.")],
    archive: Annotated[Path, typer.Argument(help="The flat archive, ILSVRC2012_img_val.tar.")],
    devkit: Annotated[
        Path, typer.Option(help="The development kit, ILSVRC2012_devkit_t12.tar.gz.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder that gets the class folders.")
    ] = Path("imagenet-val"),
    synsets: Annotated[
        Path | None, typer.Option(help="Lines 'ID WNID' to use instead of the kit's meta.mat.")
    ] = None,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Do not check the MD5 sums.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Sort a data set's archive into class folders, for --data imagenet --data-dir. A call that was
    stopped goes on later."""
    from perfctl.orchestrator.actions.setup import prepare_imagenet

    if what not in WHAT:
        raise UsageError(f"'{what}' is not known", f"Say {', '.join(WHAT)}")
    done = prepare_imagenet(
        archive, devkit, out, synsets=synsets, verify=not no_verify, progress=_bar, messages=console
    )
    if as_json:
        console.as_json(done, "prepare")
        return
    _print(done)


def _print(done: Prepared) -> None:
    out = done.folder
    if done.ignored:
        more = f" and {len(done.ignored) - 1} more" if len(done.ignored) > 1 else ""
        console.warning(f"not an image of the validation set, ignored: {done.ignored[0]}{more}")
    if done.strays:
        console.warning(
            f"{len(done.strays)} images lie in {out} that the development kit puts elsewhere "
            f"({done.strays[0].relative_to(out)}, ...): they would count as wrong answers; remove "
            "them"
        )
    before = f", {done.already:,} of them there already" if done.already else ""
    console.result(
        f"Wrote {done.images:,} of {done.total:,} images in {done.classes:,} class folders to "
        f"{out}{before}"
    )
    if done.images < done.total:
        missing = done.total - done.images
        console.warning(
            f"the archive is a subset: {missing:,} images are not in it, and accuracy counts only "
            "the others"
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
