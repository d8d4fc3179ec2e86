"""Estimated FLOPs, bytes and memory of any model: trace one step without data, then apply the
formulas to each layer."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.errors import PartlyDone, PerfctlError, ToolMissing, UsageError
from perfctl.orchestrator.estimate.flops.engine import build_layer_calls_with_flops as work_out
from perfctl.orchestrator.estimate.flops.engine import (
    list_forward_product_types,
    select_countable_operations,
)
from perfctl.orchestrator.estimate.memory import (
    RESERVE,
    TRACED_AT,
    Gpu,
    LargestBatch,
    StepMemory,
    UnlikeTracesError,
    find_largest_batch_by_replay,
    summarize_memory,
)
from perfctl.orchestrator.estimate.request import (
    DEFAULT_OPTIMIZER,
    Request,
    raise_if_unknown_precision,
)
from perfctl.orchestrator.estimate.step import Estimate, extract_layer_estimate
from perfctl.orchestrator.estimate.trace_cache import TraceCache, open_trace_cache_if_reproducible
from perfctl.orchestrator.options import raise_if_invalid_batch_sizes
from perfctl.records.paper import (
    ATTENTION,
    CAPABILITY,
    UPDATES,
    GpuChoices,
    MemoryTrace,
    TracedStep,
)
from perfctl.records.precision import PRECISIONS
from perfctl.workloads.models.find import split_workload_reference
from perfctl.workloads.models.plan import parse_model_family

if TYPE_CHECKING:
    import torch

    from perfctl.orchestrator.estimate.sheets.network import NetworkSheet
    from perfctl.orchestrator.estimate.sheets.sheet import Sheet
    from perfctl.orchestrator.estimate.sheets.slips import CheckFinding
    from perfctl.workloads.models.source import ModelSource

_NAMED = 20
"""Layers that an error lists."""

_OF_THE_MACHINE = re.compile(
    r"\b(Import|ModuleNotFound|Memory|OS|Timeout|Permission|FileNotFound|Connection|URL)Error\b"
)
"""Errors that another day, or another package, may cure: a trace that ended in one is not kept."""


def estimate(
    model: torch.nn.Module,
    inputs: Any,
    *,
    mode: str = "train",
    grad: bool | None = None,
    optimizer: str | tuple[str, dict[str, Any]] | None = None,
    loss: Callable[[Any], Any] | None = None,
    device: str | None = "meta",
    memory: bool = False,
    precision: str = "fp32",
    gpu: Gpu = None,
    attention: str = "auto",
    update: str = "auto",
) -> Estimate:
    """Return FLOPs, bytes and (with ``memory``) memory of one step of ``model``, from its shapes.

    - ``inputs``: a tensor, a tuple of tensors, or shapes with the batch dimension, such as
      ``(64, 1, 28, 28)``.
    - ``mode``: "train" (forward and backward) or "infer". ``grad`` overrides whether there is a
      backward pass.
    - ``optimizer``: "sgd", "momentum", "adam", "adamw", "adadelta", "rmsprop", or (class name,
      settings). None: no optimizer step.
    - ``loss``: output -> scalar. None: backward starts from a gradient of the output.
    - ``device``: "meta" needs no data and no memory. None runs a copy of the model on the device of
      its parameters, for models that depend on their data. perfctl does so for sparse, nested and
      quantized tensors. The model itself does not change.
    - ``memory``: also follow the lifetime of tensors (``Estimate.memory``, bytes), with the kernels
      of a CUDA GPU.
    - ``precision``: "fp32" (the model as it is), "tf32", "bf16" or "fp16" (autocast around forward
      and loss), "bf16-true" or "fp16-true" (a copy that is cast completely), "fp8" (assumed).
      ``Estimate.types`` has FLOPs and bytes by data type, ``Estimate.casts`` the casts.
    - ``gpu``, ``attention``, ``update``: for ``memory`` only; compute capability (None: 8.0),
      attention kernel, and update of the optimizer.

    Raises UsageError for an unknown name, and nothing for errors of the model:
    ``Estimate.problem`` has the place at which it stopped. Operations without a formula make totals
    lower bounds: see ``Estimate.forward.is_lower_bound`` and ``.missing``.
    """
    from perfctl.workloads.tracing import recorder

    raise_if_unknown_precision(precision)

    if device == "meta" and recorder.needs_real_values(model, inputs):
        device = None
    # a model with jagged tensors that stops on meta runs where its parameters are
    is_retried = device == "meta" and recorder.has_jagged_input(inputs)
    for trace_device in (device, None) if is_retried else (device,):
        worker = (recorder.copy_to_meta if trace_device == "meta" else recorder.copy_with_data)(
            model
        )
        if trace_device not in (None, "meta"):
            worker = worker.to(trace_device)
        inputs_on = trace_device or next(
            (str(tensor.device) for tensor in model.parameters()), "cpu"
        )
        traced = recorder.trace_step(
            worker,
            recorder.convert_shapes_and_move_inputs(inputs, inputs_on),
            mode=mode,
            runs_backward=grad,
            optimizer=optimizer,
            loss=loss,
            memory=memory,
            precision=precision,
            gpu=make_gpu_setting(gpu, attention, update),
        )
        if traced.problem is None:
            break
    return estimate_from_trace(traced, gpu)


def make_gpu_setting(capability: Gpu, attention_kernel: str, optimizer_update: str) -> GpuChoices:
    """Return what a GPU of this capability runs. Raises UsageError for an attention or update that
    is not known."""
    for name, value, choices in (
        ("attention", attention_kernel, ATTENTION),
        ("update", optimizer_update, UPDATES),
    ):
        if value not in choices:
            raise UsageError(
                f"invalid value '{value}' for `{name}`", f"Choose {', '.join(choices)}"
            )
    return GpuChoices(capability or CAPABILITY, attention_kernel, optimizer_update)


def estimate_from_trace(traced: TracedStep, gpu: Gpu = None) -> Estimate:
    """Return the estimate of a step that :func:`perfctl.workloads.tracing.recorder.trace_step`
    traced; ``gpu``: compute capability, for memory."""
    ops = tuple(select_countable_operations(traced.ops))
    calls = work_out(ops)
    memory = summarize_memory(traced.memory, gpu) if traced.memory is not None else None
    return Estimate(
        calls=calls,
        modules=traced.modules,
        ops=ops,
        problem=traced.problem,
        memory=memory,
        data_dependent=traced.data_dependent,
        input_bytes=traced.input_bytes,
        memory_trace=traced.memory,
        precision=traced.precision,
    )


@dataclass(frozen=True, slots=True)
class InputShape:
    """One input as written: sizes, and where the batch goes."""

    sizes: tuple[int, ...]
    batch_at: int
    dtype: str

    def insert_batch(self, batch: int) -> tuple[int, ...]:
        return (*self.sizes[: self.batch_at], batch, *self.sizes[self.batch_at :])


def parse_input_shape(text: str) -> InputShape:
    """ "3x224x224", "int64:128", "100xNx8". Raises UsageError naming what is wrong."""
    from perfctl.orchestrator.estimate.flops.formulas import ITEM_BYTES

    dtype, colon, shape = text.rpartition(":")
    pieces = [piece for piece in shape.lower().split("x") if piece]
    remedy = "For example 3x224x224, int64:128 or 100xNx8"
    if colon and dtype not in ITEM_BYTES:
        raise UsageError(f"`inputs`: '{dtype}' is not a data type", remedy)
    if any(not piece.isdecimal() and piece != "n" for piece in pieces) or pieces.count("n") > 1:
        raise UsageError(f"`inputs`: '{text}' is not a shape", remedy)
    batch_axis = pieces.index("n") if "n" in pieces else 0
    return InputShape(
        tuple(int(piece) for piece in pieces if piece != "n"), batch_axis, dtype or "float32"
    )


def require_torch() -> None:
    """Raises ToolMissing when torch is not installed."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise ToolMissing(
            "estimates need torch, which is not installed", "pip install 'perfctl[torch]'"
        )


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model that a request names, beside the model itself."""

    name: str
    """The request's, or the full specification of a network of a family."""
    inputs: tuple[InputShape, ...]
    notes: tuple[str, ...]
    """What was taken where the request leaves a choice: the config of a name, the size of
    the inputs."""
    optimizer: tuple[str, dict[str, object]] | None
    """Class name and settings, of a built-in workload."""


class Session:
    """One model, built at most once, to be estimated at any batch size. Raises ModelError when it
    cannot be built."""

    def __init__(
        self,
        request: Request,
        trace_cache: TraceCache | None = None,
        source: ModelSource | None = None,
    ) -> None:
        """``trace_cache``: traces of earlier calls; the model is built when one is not among them.
        ``source``: it is there."""
        self.request, self._kept = request, trace_cache or TraceCache()
        self._source = source
        if source is not None:
            self._kept.record_source_file_digests(source.files)
        shapes = tuple(parse_input_shape(text) for text in request.inputs)
        self.facts = self._kept.get(ModelFacts, "facts") or self._collect_and_cache_model_facts(
            shapes
        )

    def _collect_and_cache_model_facts(self, shapes: tuple[InputShape, ...]) -> ModelFacts:
        source, request = self.source, self.request
        if request.seq is not None and (shapes or source.inputs.sequence is None):
            reason = (
                "`inputs` sets the shapes already"
                if shapes
                else f"{request.model} has no sequence input"
            )
            raise UsageError(f"`seq` {request.seq}: {reason}", "Omit `seq`")
        source_tensors = source.inputs.tensors.values()
        shapes = shapes or tuple(InputShape(sizes, 0, dtype) for sizes, dtype in source_tensors)
        if not shapes:
            remedy = "Set the shape of one sample, for example `inputs` 3x224x224"
            raise UsageError(f"{request.model}: unknown input shape", remedy)
        note = "" if request.inputs else source.inputs.note
        notes = (*source.notes, *filter(None, [note]))
        facts = ModelFacts(source.name, shapes, notes, source.optimizer)
        self._kept.put(facts, "facts")
        return facts

    def copy_with_precision(self, precision: str) -> Session:
        """The same model in another precision; one that was built is not built again."""
        request = replace(self.request, precision=precision)
        trace_cache = (
            open_trace_cache_if_reproducible(request) if self._kept.folder is not None else None
        )
        return Session(request, trace_cache, self._source)

    @property
    def source(self) -> ModelSource:
        """The model, built at first use."""
        from perfctl.workloads.models import find

        if self._source is None:
            request = self.request
            self._source = find.build_referenced_model(
                request.model, request.device, request.own, request.seq
            )
            self._kept.record_source_file_digests(self._source.files)
        return self._source

    @property
    def is_built(self) -> bool:
        return self._source is not None

    @property
    def notes(self) -> tuple[str, ...]:
        """What was taken where the request leaves a choice; of the inputs nothing where it gives
        their shapes."""
        precision_note = PRECISIONS[self.request.precision].said
        return (
            *self.facts.notes,
            *([f"{self.request.precision}: {precision_note}"] if precision_note else []),
        )

    def estimate_batch(self, batch: int, memory: bool | None = None) -> Estimate:
        """Return the estimate at one batch size."""
        return estimate_from_trace(
            self._load_or_trace(batch, self.request.memory if memory is None else memory),
            self.request.gpu,
        )

    def _load_or_trace(self, batch: int, memory: bool) -> TracedStep:
        traced = self._kept.get(TracedStep, batch, memory)
        if traced is None:
            with convert_model_errors():
                traced = self._trace_batch(batch, memory)
            if not (traced.problem and _OF_THE_MACHINE.search(traced.problem)):
                self._kept.put(traced, batch, memory)
        return traced

    def _trace_batch(self, batch: int, memory: bool) -> TracedStep:
        from perfctl.workloads.tracing import recorder

        source, request = self.source, self.request
        shapes = self.facts.inputs
        sizes, dtypes = (
            [shape.insert_batch(batch) for shape in shapes],
            [shape.dtype for shape in shapes],
        )
        inputs = recorder.make_zero_inputs(sizes, dtypes, request.device)
        loss: Callable[[Any], Any] | None = None
        tensors: tuple[Any, ...] = ()
        if source.loss is not None and source.target is not None:
            each, dtype = source.target
            tensors = recorder.make_zero_inputs([(batch, *each)], [dtype], request.device)
            tensors = recorder.cast_float32_inputs(tensors, PRECISIONS[request.precision].weights)
            loss = _bind_loss_target(source.loss, tensors[0])
        source.model.zero_grad(set_to_none=True)
        optimizer = None if request.optimizer == "none" else request.optimizer or source.optimizer
        return recorder.trace_step(
            source.model,
            inputs,
            mode=request.mode,
            optimizer=optimizer,
            loss=loss,
            other_tensors=tensors,
            memory=memory,
            precision=request.precision,
            gpu=make_gpu_setting(request.gpu, request.attention, request.update),
        )

    def find_largest_fitting_batch(
        self, device_memory_bytes: int, reserved_bytes: int = RESERVE
    ) -> LargestBatch:
        """The largest batch size whose step runs in ``device_memory_bytes`` of which
        ``reserved_bytes`` stay free.

        From the traces at :data:`TRACED_AT`; a model whose storages do not grow by the same bytes
        with each sample is traced at every batch size that is tried.
        """
        with suppress(UnlikeTracesError):
            return build_memory_for_any_batch(
                trace_memory_for_two_batches(self, self.request.precision)
            ).find_largest_fitting_batch(device_memory_bytes, reserved_bytes, self.request.gpu)

        def trace_memory(batch: int) -> MemoryTrace:
            traced = self._load_or_trace(batch, memory=True)
            if traced.problem is not None or traced.memory is None:
                raise PartlyDone(f"batch {batch}: {traced.problem}", None)
            return traced.memory

        return find_largest_batch_by_replay(
            device_memory_bytes - reserved_bytes, reserved_bytes, trace_memory, self.request.gpu
        )


def trace_memory_for_two_batches(session: Session, precision: str) -> tuple[Estimate, Estimate]:
    """The estimates whose memory is that of every batch size; in another precision under
    its autocast."""
    if precision != session.request.precision and PRECISIONS[precision].autocast is not None:
        session = session.copy_with_precision(precision)
    first, other = (session.estimate_batch(batch, memory=True) for batch in TRACED_AT)
    return first, other


def build_memory_for_any_batch(estimates_for_two_batches: tuple[Estimate, Estimate]) -> StepMemory:
    """Return the memory of the traced step at any batch size. Raises UnlikeTracesError where the
    traces have no memory, or differ in more than their sizes."""
    first, other = (estimate_.memory_trace for estimate_ in estimates_for_two_batches)
    if first is None or other is None:
        raise UnlikeTracesError("the trace has none")
    return StepMemory(first, other)


def _bind_loss_target(loss: Callable[[Any, Any], Any], target: Any) -> Callable[[Any], Any]:
    return lambda output: loss(output, target)


@contextmanager
def silence_driver_warning() -> Iterator[None]:
    """Silence torch's warning about an old CUDA driver, in the first backward of a CUDA build:
    estimates need no CUDA."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="CUDA initialization", category=UserWarning)
        yield


@contextmanager
def convert_model_errors() -> Iterator[None]:
    """In the block, a ModelError becomes a PerfctlError when the model's own code failed, else
    a UsageError."""
    from perfctl.workloads.models.source import ModelError

    try:
        yield
    except ModelError as error:
        kind = PerfctlError if error.raised else UsageError
        raise kind(error.message, error.remedy) from error


def open_session(request: Request) -> Session:
    """The model, ready to be estimated; traces of earlier calls are taken. Raises ToolMissing
    without torch, UsageError when there is no such model, PerfctlError when its own code fails."""
    require_torch()
    with convert_model_errors():
        return Session(request, open_trace_cache_if_reproducible(request))


@lru_cache(maxsize=8)
def estimate_model_for_batch(request: Request, batch: int) -> Estimate:
    """A model that is given by its name at one batch size; raises what
    :func:`open_session` raises."""
    with silence_driver_warning():
        return open_session(request).estimate_batch(batch)


@dataclass(frozen=True, slots=True)
class ModelEstimate:
    """One model at one or more batch sizes."""

    request: Request
    batches: Mapping[int, Estimate]
    """Batch size -> estimate, in the order asked for."""
    fit: LargestBatch | None = None
    """The largest batch size that fits; None when no limit was given or a trace stopped early."""
    notes: tuple[str, ...] = ()
    """What was taken where the request leaves a choice: the config of a name, the size of
    the inputs."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Where traces stopped early: "batch 16: ..."; empty when all are whole."""
        return tuple(
            f"batch {size}: {estimate_.problem}"
            for size, estimate_ in self.batches.items()
            if estimate_.problem is not None
        )

    def extract_layer_estimates(self, layer: str) -> Mapping[int, Estimate]:
        """Only ``layer`` (its dotted path, "(model)" for the model itself) and the layers
        inside it.

        Raises UsageError when the model has no such layer.
        """
        parts = {}
        for size, estimate_ in self.batches.items():
            part = extract_layer_estimate(estimate_, _convert_layer_name_to_path(layer))
            if part is None:
                names = [module.path for module in estimate_.modules if module.path]
                raise UsageError(
                    f"`layer`: layer '{layer}' not found in the model",
                    format_layer_names_hint("It has", names),
                )
            parts[size] = part
        return parts

    def build_network_sheets_by_batch(self) -> Mapping[int, NetworkSheet]:
        """Return a line for every layer, and the totals, at each batch size."""
        from perfctl.orchestrator.estimate.sheets.network import (
            add_data_types_to_sheet,
            build_network_sheet,
        )

        sheets, precision = {}, self.request.precision
        for size, estimate_ in self.batches.items():
            sheets[size] = build_network_sheet(estimate_.modules, estimate_.calls)
            if precision != "fp32":
                products = list_forward_product_types(estimate_.ops, precision)
                sheets[size] = add_data_types_to_sheet(sheets[size], products, estimate_.types)
        return sheets

    def build_layer_sheets_by_batch(self, layer: str | None = None) -> Mapping[int, Sheet]:
        """Return the worked sheet of one layer at each batch size, or of the whole "(model)".
        ``layer`` may be None when only one layer computes anything.

        Raises UsageError when it is None and there are several, and for a layer that
        computes nothing.
        """
        return {
            size: _build_layer_or_model_sheet(estimate_, layer)
            for size, estimate_ in self.batches.items()
        }

    def build_sheets_of_other_layers(self, layer: str | None = None) -> Mapping[int, list[Sheet]]:
        """Return the sheets of all layers but this one that multiply, by batch size."""
        from perfctl.orchestrator.estimate.sheets.sheet import list_layers_with_operations

        return {
            size: [
                sheet
                for name in list_layers_with_operations(estimate_.ops)
                if layer is not None and name != _convert_layer_name_to_path(layer)
                if (sheet := _build_layer_or_model_sheet(estimate_, name)).facts is not None
            ]
            for size, estimate_ in self.batches.items()
        }


def estimate_model_for_batches(
    request: Request,
    batches: Sequence[int] = (1,),
    *,
    device_memory_bytes: int | None = None,
    reserved_bytes: int = RESERVE,
    report_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> ModelEstimate:
    """Estimate a model that is given by its name, at each batch size.

    device_memory_bytes: if given, ``ModelEstimate.fit`` is the largest batch size that fits.
    reserved_bytes: bytes of it that stay free, for the CUDA context, cuDNN's workspace and
    fragmentation.

    Raises UsageError for a request that makes no sense, ToolMissing without torch, PerfctlError
    when the model's own code fails while it is built. A model that fails later is a ``problem``.
    """
    request.check()
    request, assumed = _add_default_optimizer_and_note(request)
    raise_if_invalid_batch_sizes(batches)
    require_torch()
    with silence_driver_warning():
        total = 1 + len(batches) + (device_memory_bytes is not None)
        report_progress(f"making {request.model}", 0, total)
        session = open_session(request)
        estimates = {}
        for done, size in enumerate(batches, 1):
            report_progress(f"batch {size:,}", done, total)
            estimates[size] = session.estimate_batch(size)
        is_complete = all(estimate_.problem is None for estimate_ in estimates.values())
        report_progress("largest batch that fits", len(batches) + 1, total)
        fit = (
            session.find_largest_fitting_batch(device_memory_bytes, reserved_bytes)
            if device_memory_bytes is not None and is_complete
            else None
        )
    return ModelEstimate(request, estimates, fit, (*session.notes, *assumed))


def _add_default_optimizer_and_note(request: Request) -> tuple[Request, tuple[str, ...]]:
    """Memory of training is with an optimizer: where none is named, the one that
    ``perfctl predict`` takes."""
    has_its_own = (
        split_workload_reference(request.model) is not None
        or parse_model_family(request.model) is not None
    )
    if (
        not request.memory
        or request.mode != "train"
        or request.optimizer is not None
        or has_its_own
    ):
        return request, ()
    note = (
        f"memory assumes `optimizer` {DEFAULT_OPTIMIZER}, because none was set; 'perfctl predict' "
        "assumes the same"
    )
    return replace(request, optimizer=DEFAULT_OPTIMIZER), (note,)


def compare_manual_value_with_sheets(
    value: str,
    sheet_by_batch: Mapping[int, Sheet],
    other_layer_sheets_by_batch: Mapping[int, Sequence[Sheet]],
) -> Mapping[int, CheckFinding]:
    """Compare a manual value with the sheet of each batch size. Raises UsageError if it
    is no value."""
    from perfctl.orchestrator.estimate.sheets.slips import diagnose_stated_value, parse_stated_value

    stated = parse_stated_value(value)
    return {
        size: diagnose_stated_value(
            stated,
            sheet.facts,
            sheet.quantities,
            sweep_batches=sheet_by_batch,
            other_sheets=other_layer_sheets_by_batch.get(size, ()),
        )
        for size, sheet in sheet_by_batch.items()
    }


def _build_layer_or_model_sheet(estimate_: Estimate, layer: str | None) -> Sheet:
    from perfctl.orchestrator.estimate.sheets.network import build_model_sheet
    from perfctl.orchestrator.estimate.sheets.sheet import (
        build_layer_sheet,
        list_layers_with_operations,
    )

    names = list(list_layers_with_operations(estimate_.ops))
    if layer is None and len(names) != 1:
        raise UsageError(
            "`check` needs one layer",
            format_layer_names_hint("Set it with `layer`. Available layers", names),
        )
    path = names[0] if layer is None else _convert_layer_name_to_path(layer)
    output = next((module.output for module in estimate_.modules if module.path == path), None)
    worked = build_layer_sheet(estimate_.ops, path, output, estimate_.precision)
    if not path and len(names) > 1 and (worked is None or worked.facts is None):
        return build_model_sheet(estimate_)
    if worked is None:
        raise UsageError(
            f"`layer`: no layer '{layer}' with an operation of its own",
            format_layer_names_hint("Available layers", names),
        )
    return worked


def _convert_layer_name_to_path(layer: str) -> str:
    return "" if layer == "(model)" else layer


def format_layer_names_hint(caption: str, names: list[str]) -> str:
    suffix = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (
        f"{caption}: {', '.join(name or '(model)' for name in names[:_NAMED])}{suffix}"
        if names
        else "Omit `layer`"
    )
