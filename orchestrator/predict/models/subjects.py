"""The model of a question, in training or inference: :func:`plan_or_trace_model`."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.estimate.memory import TRACED_AT, StepMemory, UnlikeTracesError
from perfctl.orchestrator.estimate.plan_memory import (
    compute_inference_memory_envelope,
    compute_training_memory_envelope,
)
from perfctl.orchestrator.estimate.request import DEFAULT_OPTIMIZER, Request
from perfctl.orchestrator.estimate.session import (
    build_memory_for_any_batch,
    open_session,
    require_torch,
    silence_driver_warning,
    trace_memory_for_two_batches,
)
from perfctl.orchestrator.predict import answer as answers
from perfctl.orchestrator.predict.answer import Question, Subject
from perfctl.orchestrator.predict.operations import (
    list_forward_operations_per_sample,
    list_plan_forward_operations,
)
from perfctl.workloads.models.find import split_workload_reference
from perfctl.workloads.models.plan import OPTIMIZERS as IN_SPEC
from perfctl.workloads.models.plan import format_canonical_spec, parse_model_family, plan_model
from perfctl.workloads.spec import SpecError

Note = Callable[[str], None]
"""Hears what is being done."""


def plan_or_trace_model(
    question: Question, traces_gpu_memory: bool = False, report_progress: Note = lambda text: None
) -> Subject:
    """Return the model's operations, parameters and memory at any batch size; the memory alone
    depends on the precision.

    Every model is traced without data at two batch sizes. Only a network of a family needs no
    trace: its plan has everything but the order of its allocations, which ``traces_gpu_memory``
    asks for, and without torch goes without. Raises UsageError, or PerfctlError when the model's
    own code fails.
    """
    if question.optimizer is not None and question.optimizer not in answers.OPTIMIZERS:
        raise UsageError(
            f"invalid value '{question.optimizer}' for `optimizer`",
            f"Choose {', '.join(answers.OPTIMIZERS)}",
        )
    if parse_model_family(question.name) is None or question.inputs or question.seq is not None:
        return _trace_model_without_data(question, report_progress)
    return _plan_family_network(question, traces_gpu_memory, report_progress)


def _plan_family_network(
    question: Question, traces_gpu_memory: bool, report_progress: Note
) -> Subject:
    try:
        planned = plan_model(question.name)
        if question.optimizer in IN_SPEC:
            # as if the specification said so: its runs are then found
            settings = {**planned.settings, "optimizer": question.optimizer}
            planned = plan_model(format_canonical_spec(planned.family, settings))
    except SpecError as error:
        raise UsageError(f"`model`: {error}", "For example vgg:depth=11,kernel=5") from error
    optimizer = "" if question.is_inference else question.optimizer or planned.optimizer
    precision = question.precision_or_default
    if question.is_inference:
        lines = compute_inference_memory_envelope(planned, precision)
    else:
        lines = compute_training_memory_envelope(planned, optimizer, precision)
    memory, reason = None, None
    if traces_gpu_memory:
        memory, reason = _trace_step_memory_or_reason(
            planned.spec, optimizer, precision, report_progress
        )
    return Subject(
        planned.spec,
        planned.family,
        list_plan_forward_operations(planned),
        not question.is_inference,
        planned.parameters,
        optimizer or None,
        lines,
        (reason,) if reason else (),
        memory,
    )


def _trace_step_memory_or_reason(
    spec: str, optimizer: str, precision: str, report_progress: Note
) -> tuple[StepMemory | None, str | None]:
    """Return (what the allocator's replay needs of a network of a family, why there is none).
    ``optimizer``: "" in inference."""
    if find_spec("torch") is None:
        return None, (
            "memory counts the tensors only: without torch, perfctl cannot replay PyTorch's "
            "allocator, which may need more"
        )
    request = Request(spec, (), "train" if optimizer else "infer", optimizer or None, memory=True)
    try:
        with silence_driver_warning():
            session = open_session(request)
            if session.is_built:
                report_progress(f"tracing {spec} without data")
            return build_memory_for_any_batch(
                trace_memory_for_two_batches(session, precision)
            ), None
    except UnlikeTracesError as error:
        return (
            None,
            f"memory counts the tensors only: perfctl cannot replay PyTorch's allocator ({error})",
        )


def _trace_model_without_data(question: Question, report_progress: Note) -> Subject:
    model, training = question.name, not question.is_inference
    optimizer = question.optimizer
    if optimizer is None and split_workload_reference(model) is None:
        optimizer = DEFAULT_OPTIMIZER
    require_torch()
    request = Request(
        model,
        tuple(question.inputs),
        "train" if training else "infer",
        optimizer if training else None,
        memory=True,
        seq=question.seq,
    )
    with silence_driver_warning():
        session = open_session(request)
        if session.is_built:
            report_progress(f"tracing {model} without data")
        pair = trace_memory_for_two_batches(session, question.precision_or_default)
        first = session.estimate_batch(TRACED_AT[0])
    for estimate in (first, *pair):
        if estimate.problem is not None:
            remedy = (
                f"Run 'perfctl estimate {model}' to see where it stops; `inputs` sets another shape"
            )
            raise PerfctlError(f"{model} cannot be traced without data: {estimate.problem}", remedy)
    if optimizer is None:
        name, settings = session.facts.optimizer or ("SGD", {})
        optimizer = "momentum" if name == "SGD" and settings.get("momentum") else name.lower()
    notes, memory, memory_note = list(session.notes), None, ""
    try:
        memory = build_memory_for_any_batch(pair)
    except UnlikeTracesError as error:
        memory_note = f"memory is known only at the traced batch sizes: {error}"
    works = list_forward_operations_per_sample(first.ops, TRACED_AT[0])
    if unknown := sorted({work.layer or "the model" for work in works if work.kind == "other"}):
        suffix = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        layers = f"{', '.join(unknown[:3])}{suffix}"
        notes.append(f"perfctl counts only the bytes of operations without a formula: in {layers}")
    if first.data_dependent:
        names = ", ".join(first.data_dependent)
        notes.append(f"sizes depend on the data after {names}: other data takes a different time")
    name, shape = session.facts.name, session.facts.inputs[0]
    is_sequence = shape.dtype in ("int64", "int32") and len(shape.sizes) == 1 < shape.sizes[0]
    return Subject(
        name,
        name.partition(":")[0],
        works,
        training,
        first.parameters,
        optimizer if training else None,
        memory.lines if memory is not None else None,
        (*notes, memory_note),
        memory,
        shape.sizes[0] if is_sequence else None,
    )
