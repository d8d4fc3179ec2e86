"""perfctl count"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.errors import UsageError

_SIZES = 3
_SLOW_S = 2.0


def count(
    code: Annotated[Path, typer.Argument(help="A .cubin, program, library, PTX file, or folder of Triton's cache.")],
    kernel: Annotated[
        str | None, typer.Option(help="Name of a kernel or a part of it; * for anything. Default: list them.")
    ] = None,
    grid: Annotated[str | None, typer.Option(metavar="X,Y,Z", help="Thread blocks of the launch.")] = None,
    block: Annotated[
        str | None, typer.Option(metavar="X,Y,Z", help="Threads of a block. Default: what the code requires.")
    ] = None,
    trips: Annotated[
        list[str] | None, typer.Option("--trip", metavar="LOOP=N", help="Turns of a loop each time that it is entered.")
    ] = None,
    shape: Annotated[
        str | None, typer.Option(metavar="M,N,K", help="Values of Triton arguments called M, N and K.")
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Option("--arg", metavar="NAME=N", help="Value of a whole-number argument, by name or place from 0."),
    ] = None,
    arch: Annotated[str | None, typer.Option(help="sm_80, sm_90, ...: for PTX, or one of several in CODE.")] = None,
    closed_libraries: Annotated[
        bool,
        typer.Option("--closed-libraries", help="Read cuBLAS, cuDNN and the like too: their licences may forbid it."),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Count a kernel's instructions from its machine code, without a GPU. 1 multiply-add = 2 FLOPs."""
    from perfctl.orchestrator.actions.count import count as actions
    from perfctl.orchestrator.report import count as texts

    if kernel is None:
        given = [
            name for name, value in (("grid", grid), ("block", block), ("trips", trips), ("shape", shape)) if value
        ]
        if given:
            raise UsageError(
                f"`{given[0]}` is of one kernel", "Name it with `kernel`; without any option all are listed"
            )
        with _said_when_slow(code):
            listed = actions.kernels(code, arch=arch, closed_libraries=closed_libraries, messages=console)
        if as_json:
            console.as_json(texts.listing_as_json(listed), "count-list")
        else:
            _print(texts.listing(listed))
        return
    with _said_when_slow(code):
        found = actions.count(
            code, kernel, grid=_size("grid", grid), block=_size("block", block), trips=_pairs("trips", trips),
            arguments=_pairs("arguments", arguments), shape=_whole_size("shape", shape), arch=arch,
            closed_libraries=closed_libraries, messages=console,
        )  # fmt: skip
    if as_json:
        console.as_json(texts.as_json(found), "count")
    else:
        _print(texts.lines(found))


def _print(lines: Iterable[str]) -> None:
    from perfctl.orchestrator.cli.flags import with_flags

    for line in lines:
        console.result(with_flags(line))


def _size(field: str, words: str | None) -> tuple[int, int, int] | None:
    """ "8,4" is 8, 4, 1."""
    if words is None:
        return None
    sides = [_number(field, word) for word in words.split(",")]
    if len(sides) > _SIZES:
        raise UsageError(f"`{field}`: {words!r} has more than three sides")
    x, y, z = (*sides, 1, 1)[:_SIZES]
    return x, y, z


def _whole_size(field: str, words: str | None) -> tuple[int, int, int] | None:
    if words is not None and words.count(",") != _SIZES - 1:
        raise UsageError(f"`{field}`: {words!r} is not three sides", "Say M,N,K: 4096,4096,1024")
    return _size(field, words)


def _pairs(field: str, words: Sequence[str] | None) -> dict[str, int]:
    found = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(f"`{field}`: {word!r} has no value", "Say NAME=NUMBER")
        found[name.strip()] = _number(field, value)
    return found


def _number(field: str, word: str) -> int:
    try:
        return int(word.strip())
    except ValueError:
        raise UsageError(f"`{field}`: {word!r} is not a whole number") from None


@contextmanager
def _said_when_slow(code: Path) -> Iterator[None]:
    """On a terminal, which file is read, where that takes over two seconds."""
    timer = threading.Timer(_SLOW_S, lambda: console.note(f"reading {code.name} ..."))
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
