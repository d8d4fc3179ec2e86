"""torchvision's models for the calculator's page: each is traced without data, once, and kept in
the user's cache.

A model takes half a second to four. Many are traced in several processes. A table
of all of them, traced with one version of torch and torchvision, comes with perfctl
(``scripts/accept/trace_torchvision.py`` makes it).
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from perfctl.orchestrator.errors import ToolMissing, UsageError
from perfctl.orchestrator.estimate.memory import (
    STATE,
    TRACED_AT,
    MemoryLine,
    UnlikeTracesError,
    select_upper_envelope_lines,
)
from perfctl.orchestrator.estimate.plan_memory import compute_training_memory_envelope
from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.estimate.session import (
    Session,
    build_memory_for_any_batch,
    trace_memory_for_two_batches,
)
from perfctl.orchestrator.estimate.trace_cache import (
    compute_digest,
    digest_files,
    read_cache_entry,
    write_cache_entry,
)
from perfctl.orchestrator.predict.grid import (
    LARGEST,
    GridNetwork,
    NetworkAmounts,
    compute_network_part_amounts,
)
from perfctl.orchestrator.predict.operations import (
    OPTIMIZERS,
    list_forward_operations_per_sample,
    list_plan_forward_operations,
)
from perfctl.orchestrator.predict.step_parts import merge_equal_operations
from perfctl.workloads.models.plan import format_canonical_spec, plan_model
from perfctl.workloads.models.source import ModelError

TRACED_IN = ("fp32", "fp16")
"""Precisions whose memory is worked out; the others have the bytes of one of these (SAME_BYTES),
but see :func:`trace_calculator_model`."""
LIBRARIES = ("torch", "torchvision")
TABLE = "torchvision_models.json.gz"
"""Beside this file: every model, traced."""
FLOAT = 4
"""Bytes of a parameter, and of each value that an optimizer keeps for it."""


Lines = Mapping[str, Mapping[str, tuple[MemoryLine, ...]]]
"""Memory of a step over batch size, by precision and optimizer; of precisions with the same bytes,
one: :data:`SAME_BYTES`."""
SAME_BYTES = {"tf32": "fp32", "bf16": "fp16"}
"""A precision that a model's lines do not have -> the one whose lines are its own. TF32 is kept
as float32."""


@dataclass(frozen=True, slots=True)
class CalculatorModel:
    """A model of the page."""

    network: GridNetwork
    lines: Lines | None
    """None: not known."""
    amounts: NetworkAmounts
    notes: tuple[str, ...] = ()


def build_family_calculator_model(spec: str) -> CalculatorModel:
    """Return a network of a family, with every optimizer's memory. Raises SpecError for one that
    cannot be built."""
    planned = plan_model(spec)
    names = {
        name: format_canonical_spec(planned.family, {**planned.settings, "optimizer": name})
        for name in OPTIMIZERS
    }
    network = GridNetwork(
        planned.spec,
        planned.family,
        list_plan_forward_operations(planned),
        planned.parameters,
        names,
    )
    lines = {
        precision: {
            name: compute_training_memory_envelope(planned, name, precision) for name in OPTIMIZERS
        }
        for precision in TRACED_IN
    }
    return CalculatorModel(
        network, lines, compute_network_part_amounts(network.works, network.parameters, LARGEST)
    )


def parse_torchvision_model_names(
    requested: str, cached_models: ModelCache
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return ("all", "none" or "resnet50,vgg16" as names, what is missing in a sentence).

    Raises UsageError for a name that torchvision has not.
    """
    if requested == "none":
        return (), ()
    if find_spec("torchvision") is None:
        if requested == "all":
            missing = (
                "torchvision is not installed, so the calculator has only the families (pip "
                "install 'perfctl[torch]')."
            )
            return (), (missing,)
        raise ToolMissing(
            "`models`: torchvision is not installed", "pip install 'perfctl[torch]', or take none"
        )
    known_names = cached_models.all_torchvision_model_names
    if requested == "all":
        return known_names, ()
    names = tuple(
        dict.fromkeys(name.strip().removeprefix("torchvision:") for name in requested.split(","))
    )
    for name in names:
        if ":" in name:
            problem = (
                f"`models`: '{name}' is not a torchvision model, and the calculator supports no "
                "others"
            )
            raise UsageError(problem, f"Run 'perfctl predict {name}'")
        if name not in known_names:
            close = get_close_matches(name, known_names, 5)
            raise UsageError(
                f"`models`: torchvision has no classification model '{name}'",
                f"Close: {', '.join(close)}"
                if close
                else "Choose all, none, or names such as resnet50,vgg16",
            )
    return names, ()


def trace_calculator_model(model: str) -> CalculatorModel | str:
    """Return the model, or why it cannot be traced."""
    try:
        session = Session(Request(model, optimizer="adam", memory=True))
    except ModelError as error:
        return error.message
    plain = first, second = trace_memory_for_two_batches(session, "fp32")
    if first.problem or second.problem:
        return first.problem or second.problem or ""
    works = list_forward_operations_per_sample(first.ops, TRACED_AT[0])
    unknown = sum(work.calls for work in works if work.kind == "other")
    notes = (
        [f"{unknown} operations have no formula; perfctl counts their bytes only"]
        if unknown
        else []
    )
    lines: dict[str, dict[str, tuple[MemoryLine, ...]]] | None
    # A softmax reads float16 as it is and bfloat16 after a cast.
    has_softmax = any(op.op == "aten._softmax" for op in first.ops)
    try:
        lines = {}
        for precision in (*TRACED_IN, *(["bf16"] if has_softmax else [])):
            pair = (
                plain if precision == "fp32" else trace_memory_for_two_batches(session, precision)
            )
            parts = build_memory_for_any_batch(pair).lines_by_phase
            lines[precision] = {
                name: _convert_adam_memory_to_optimizer(parts, name, first.parameters)
                for name in OPTIMIZERS
            }
    except UnlikeTracesError as error:
        lines = None
        notes.append(f"memory is known only at the traced batch sizes: {error}")
    network = GridNetwork(
        model, model.partition(":")[0], merge_equal_operations(works), first.parameters
    )
    return CalculatorModel(
        network,
        lines,
        compute_network_part_amounts(network.works, network.parameters, LARGEST),
        tuple(notes),
    )


def _convert_adam_memory_to_optimizer(
    parts: tuple[Sequence[MemoryLine], Sequence[MemoryLine]], optimizer: str, parameters: int
) -> tuple[MemoryLine, ...]:
    """Of a step traced with Adam, as it is with another optimizer: only Adam's own step needs
    memory beside its state."""
    before, step = parts
    change = FLOAT * parameters * (STATE[optimizer] - STATE["adam"])
    lines = (*before, *step) if optimizer == "adam" else before
    return select_upper_envelope_lines(
        MemoryLine(line.fixed + change, line.per_sample) for line in lines
    )


@dataclass(frozen=True, slots=True)
class ModelTable:
    """Every model, traced with one version of torch and torchvision."""

    made_with: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    models: Mapping[str, msgspec.Raw] = field(default_factory=dict)
    """Name -> a :class:`CalculatorModel` in JSON."""


class ModelCache:
    """Models that the shipped table has, or that earlier calls traced with these versions of
    perfctl, torch and torchvision."""

    def __init__(self, folder: Path | None = None, shipped: ModelTable | None = None) -> None:
        """``folder``: of the models of earlier calls; None if none are kept."""
        self._folder = folder
        self._shipped = shipped or ModelTable()
        self._models: dict[str, CalculatorModel] = {}
        self.from_table: set[str] = set()
        """Models that were asked for and came from the table."""

    @cached_property
    def _version_digest(self) -> str:
        code = (
            file
            for package in ("workloads", "orchestrator.estimate", "orchestrator.predict")
            for file in sorted(Path(str(resources.files(f"perfctl.{package}"))).rglob("*.py"))
        )
        libraries = [metadata.version(name) for name in LIBRARIES]
        return compute_digest(libraries, digest_files(code))

    @cached_property
    def all_torchvision_model_names(self) -> tuple[str, ...]:
        """All classification models of torchvision, which takes seconds to import."""
        names = self._shipped.names or self._read_entry("names", tuple[str, ...])
        if names is None:
            from torchvision import models

            names = tuple(models.list_models(module=models))
            self._write_entry("names", names)
        return names

    def find_cached_model(self, name: str) -> CalculatorModel | None:
        """Return a model; None if it must be traced."""
        if name not in self._models:
            if name in self._shipped.models:
                model = msgspec.json.decode(self._shipped.models[name], type=CalculatorModel)
                self.from_table.add(name)
            else:
                model = self._read_entry(f"model {name}", CalculatorModel)
            if model is None:
                return None
            self._models[name] = model
        return self._models[name]

    def add_model(self, name: str, model: CalculatorModel) -> None:
        self._models[name] = model
        self._write_entry(f"model {name}", model)

    def _read_entry(self, name: str, kind: Any) -> Any:
        key = compute_digest(self._version_digest, name)
        return read_cache_entry(self._folder, key, kind) if self._folder else None

    def _write_entry(self, name: str, value: Any) -> None:
        if self._folder is not None:
            write_cache_entry(self._folder, compute_digest(self._version_digest, name), value)


def load_shipped_model_table() -> ModelTable:
    """Return the table that ships; an empty one if it was traced with other versions of torch or
    torchvision than those installed, or cannot be read."""
    with suppress(OSError, ValueError, EOFError, metadata.PackageNotFoundError):
        packed = resources.files(__package__).joinpath(TABLE).read_bytes()
        table = msgspec.json.decode(gzip.decompress(packed), type=ModelTable)
        if table.made_with == get_library_versions():
            return table
    return ModelTable()


def get_library_versions() -> dict[str, str]:
    """Versions of what a table depends on; builds of one version for other chips ("2.14.1+cu130")
    trace alike on meta."""
    return {name: metadata.version(name).partition("+")[0] for name in LIBRARIES}
