"""torchvision's classification models for the calculator: their operations and memory, traced without data."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.util import find_spec

from perfctl.orchestrator.analyse.memory_lines import LinesError, MemoryLine, lines_by_part
from perfctl.orchestrator.analyse.work_trace import operations_of
from perfctl.orchestrator.cli import console
from perfctl.orchestrator.cli.predict_subject import TRACED_AT
from perfctl.orchestrator.errors import ToolMissing, UsageError
from perfctl.orchestrator.report.calculator_data import Traced

ADAM_STATE = 8
"""Bytes that Adam keeps for each parameter."""


def names_of(asked: str) -> tuple[str, ...]:
    """ "all", "none" or "resnet50,vgg16" as names. Raises UsageError for a name that torchvision has not."""
    if asked == "none":
        return ()
    if find_spec("torchvision") is None:
        if asked == "all":
            console.warning(
                "torchvision is not installed: only the families are in the page (pip install 'perfctl[torch]')"
            )
            return ()
        raise ToolMissing("--models: torchvision is not installed", "pip install 'perfctl[torch]', or --models none")
    from torchvision import models

    known = models.list_models(module=models)
    if asked == "all":
        return tuple(known)
    names = tuple(dict.fromkeys(name.strip().removeprefix("torchvision:") for name in asked.split(",")))
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, 5)
            raise UsageError(f"--models: torchvision has no classification model '{name}'",
                             f"Close: {', '.join(close)}" if close else "Say all, none, or resnet50,vgg16")  # fmt: skip
    return names


def trace_all(names: Sequence[str]) -> tuple[tuple[Traced, ...], tuple[str, ...]]:
    """(models, why others are not among them). Says how far it is: a model takes a second or two."""
    found, left_out = [], []
    with warnings.catch_warnings():
        # A CUDA build of torch beside an old driver library says so in the first backward; nothing here runs on CUDA.
        warnings.filterwarnings("ignore", message="CUDA initialization", category=UserWarning)
        for place, name in enumerate(names, 1):
            if sys.stderr.isatty() or place % 10 == 1:
                console.note(f"working out torchvision:{name} ({place} of {len(names)})")
            one = _traced(f"torchvision:{name}")
            if isinstance(one, Traced):
                found.append(one)
            else:
                left_out.append(f"{name} is not among them: {one}.")
    return tuple(found), tuple(left_out)


def _traced(model: str) -> Traced | str:
    """The model, or why it cannot be worked out."""
    from perfctl.estimation import Request, Session
    from perfctl.workloads.models import ModelError

    try:
        session = Session(Request(model, optimizer="adam", memory=True))
    except ModelError as error:
        return error.message
    first, second = (session.at(batch) for batch in TRACED_AT)
    if first.problem or second.problem:
        return first.problem or second.problem or ""
    works = operations_of(first.ops, TRACED_AT[0])
    unknown = sum(work.calls for work in works if work.kind == "other")
    notes = [f"{unknown} operations have no formula and count by their bytes alone"] if unknown else []
    lines: tuple[MemoryLine, ...] | None = None
    adam: tuple[MemoryLine, ...] = ()
    if first.memory_trace is not None and second.memory_trace is not None:
        try:
            parts = lines_by_part(first.memory_trace, second.memory_trace, TRACED_AT)
            lines, adam = (_without_state(part, first.parameters) for part in parts)
        except LinesError as error:
            notes.append(f"memory is not known at other batch sizes than traced: {error}")
    return Traced(model, works, first.parameters, lines, adam, tuple(notes))


def _without_state(lines: Sequence[MemoryLine], parameters: int) -> tuple[MemoryLine, ...]:
    return tuple(MemoryLine(line.fixed - ADAM_STATE * parameters, line.per_sample) for line in lines)
