"""perfctl tensorboard"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.cli import console
from perfctl.orchestrator.errors import ToolMissing, UsageError

TRACES = "*.pt.trace.json*"
HERE = "127.0.0.1"


def tensorboard(
    folder: Annotated[Path, typer.Argument(help="A sweep, or the folder of a speed-up study: it holds traces.")] = Path(
        "runs"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 6006,
    host: Annotated[str, typer.Option(help="Address; any other than this machine's own lets others in.")] = HERE,
) -> None:
    """Start TensorBoard on the traces of a folder, where it is installed. Ctrl-C ends it."""
    from perfctl.orchestrator.launch.tools import find, has_package

    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such folder", "Name the folder of a sweep or study")
    traces = sum(1 for _ in folder.rglob(TRACES))
    if not traces:
        raise UsageError(f"{folder}: no {TRACES} is in it", "perfctl torch and perfctl speedup leave such traces")
    program = find("tensorboard")
    if program is None:
        raise ToolMissing("TensorBoard is not installed", "pip install tensorboard torch-tb-profiler")
    if not (has_package("torch_tb_profiler") or _beside(Path(program))):
        console.note("torch-tb-profiler, which shows the traces, is not beside it: pip install torch-tb-profiler")
    if host != HERE:
        console.warning(f"everybody who reaches {host} can read the traces in {folder}")
    console.note(f"TensorBoard on {folder} ({traces} trace{'s' if traces > 1 else ''}); Ctrl-C ends it")
    console.flush()
    # In perfctl's place, so that whatever ends perfctl ends it.
    os.execv(program, [program, f"--logdir={folder.resolve()}", f"--host={host}", f"--port={port}"])  # noqa: S606  # a list, no shell  # nosec B606


def _beside(program: Path) -> bool:
    """Whether the environment that the program stands in has the plugin, which need not be perfctl's own."""
    return any(program.parent.parent.glob("lib/python*/site-packages/torch_tb_profiler"))
