"""The model that a prediction is about: its operations, parameters and memory at any batch size.

Points of a family come from their plan and need no torch; every other model is traced without data at two batch sizes.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from perfctl.orchestrator.analyse.memory_lines import LinesError, MemoryLine, lines_of
from perfctl.orchestrator.analyse.question import DEFAULT_OPTIMIZER, LIKE, OPTIMIZERS, Subject
from perfctl.orchestrator.analyse.work_records import Operation
from perfctl.orchestrator.analyse.work_trace import operations_of
from perfctl.orchestrator.cli import console
from perfctl.orchestrator.errors import PerfctlError, UsageError

if TYPE_CHECKING:
    from perfctl.estimation import Estimate
    from perfctl.parsers.paper import MemoryTrace

TRACED_AT = (2, 3)
"""Not 1: a normalisation in training refuses a batch of one value a channel."""


def find_subject(
    model: str, *, training: bool = True, optimizer: str | None = None, inputs: tuple[str, ...] = ()
) -> Subject:
    """Raises UsageError, or PerfctlError where the model's own code fails."""
    from perfctl.workloads.plan import family_of

    if optimizer is not None and optimizer not in OPTIMIZERS:
        raise UsageError(f"--optimizer: '{optimizer}' is not known", f"Say {', '.join(OPTIMIZERS)}")
    if family_of(model) is not None and not inputs:
        return _planned(model, training, optimizer)
    return _traced(model, training, optimizer, inputs)


def _planned(spec: str, training: bool, asked: str | None) -> Subject:
    from perfctl.orchestrator.analyse.plan_memory import inference_lines, lines_of_plan
    from perfctl.orchestrator.analyse.plan_work import operations_of_plan
    from perfctl.workloads.plan import OPTIMIZERS as IN_SPEC
    from perfctl.workloads.plan import canonical, plan
    from perfctl.workloads.spec import SpecError

    try:
        planned = plan(spec)
        if asked in IN_SPEC:  # as if the specification said so: its runs are then found
            planned = plan(canonical(planned.family, {**planned.settings, "optimizer": asked}))
    except SpecError as error:
        raise UsageError(f"--model: {error}", "docs/commands/bench.md lists the parameters of each family") from error
    optimizer = (asked or planned.optimizer) if training else ""
    lines = lines_of_plan(planned, LIKE.get(optimizer, optimizer)) if training else inference_lines(planned)
    return Subject(
        planned.spec, planned.family, operations_of_plan(planned), training, planned.parameters, optimizer, lines
    )


def _traced(model: str, training: bool, asked: str | None, inputs: tuple[str, ...]) -> Subject:
    from perfctl.estimation import Request, Session, need_torch
    from perfctl.workloads.models import ModelError

    need_torch()
    with warnings.catch_warnings():
        # A CUDA build of torch beside an old driver library says so in the first backward; nothing here runs on CUDA.
        warnings.filterwarnings("ignore", message="CUDA initialization", category=UserWarning)
        try:
            optimizer = asked or (None if _brings_optimizer(model) else DEFAULT_OPTIMIZER)
            mode = "train" if training else "infer"
            session = Session(Request(model, inputs, mode, optimizer if training else None, memory=True))
        except ModelError as error:
            kind = PerfctlError if error.raised else UsageError
            raise kind(error.message, error.remedy) from error
        console.note(f"tracing {model} without data")
        first, second = (session.at(batch) for batch in TRACED_AT)
    for found in (first, second):
        if found.problem is not None:
            raise PerfctlError(
                f"{model} cannot be worked out without data: {found.problem}",
                f"'perfctl estimate {model}' says how far it gets; --input names another shape",
            )
    said = optimizer or _its_own(session.source.optimizer)
    works = operations_of(first.ops, TRACED_AT[0])
    name = session.source.name
    lines, notes = _memory(first, second)
    return Subject(
        name, name.partition(":")[0], works, training, first.parameters, said if training else "", lines,
        (*_about(works, first), *notes),
    )  # fmt: skip


def _brings_optimizer(model: str) -> bool:
    from perfctl.workloads import WORKLOADS

    return model in WORKLOADS


def _its_own(optimizer: tuple[str, dict[str, object]] | None) -> str:
    """ "SGD" with its settings as "momentum"."""
    name, settings = optimizer or ("SGD", {})
    return "momentum" if name == "SGD" and settings.get("momentum") else name.lower()


def _about(works: tuple[Operation, ...], found: Estimate) -> tuple[str, ...]:
    unknown = sorted({work.layer or "the model" for work in works if work.kind == "other"})
    notes = []
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        notes.append(f"operations without a formula count by their bytes alone: in {', '.join(unknown[:3])}{more}")
    if found.data_dependent:
        notes.append(f"sizes depend on the data after {', '.join(found.data_dependent)}: other data takes other time")
    return tuple(notes)


def _memory(first: Estimate, second: Estimate) -> tuple[tuple[MemoryLine, ...] | None, tuple[str, ...]]:
    traces: tuple[MemoryTrace | None, ...] = (first.memory_trace, second.memory_trace)
    if traces[0] is None or traces[1] is None:
        return None, ("memory is not known: the trace has none",)
    try:
        return lines_of(traces[0], traces[1], TRACED_AT), ()
    except LinesError as error:
        return None, (f"memory is not known at other batch sizes than traced: {error}",)
