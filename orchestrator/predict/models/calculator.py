"""torchvision's models for the calculator's page: each is traced without data, once, and kept in
the user's cache.

A model takes half a second to four. Many are traced in several processes. A table
of all of them, traced with one version of torch and torchvision, comes with perfctl
(``scripts/accept/trace_torchvision.py`` makes it).
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from difflib import get_close_matches
from functools import cached_property
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from perfctl.orchestrator.errors import PerfctlError, ToolMissing, UsageError
from perfctl.orchestrator.estimate.memory import (
    STATE,
    MemoryLine,
    UnlikeTracesError,
    fit_lines_by_phase,
    select_upper_lines,
)
from perfctl.orchestrator.estimate.plan_memory import compute_training_lines
from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.estimate.session import (
    TRACED_AT,
    Session,
    trace_memory_pair,
)
from perfctl.orchestrator.estimate.step import Estimate
from perfctl.orchestrator.files import write_text
from perfctl.orchestrator.predict.grid import (
    LARGEST,
    GridNetwork,
    NetworkAmounts,
    compute_network_amounts,
)
from perfctl.orchestrator.predict.operations import (
    OPTIMIZERS,
    Operation,
    list_operations,
    list_plan_operations,
)
from perfctl.orchestrator.predict.step_parts import merge_operations
from perfctl.workloads.models.plan import format_canonical_spec, plan_model
from perfctl.workloads.models.source import ModelError

TRACED_IN = ("fp32", "fp16")
"""Precisions whose memory is worked out; the others have the bytes of one of these (SAME_BYTES),
but see :func:`_precisions`."""
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


def build_planned_model(spec: str) -> CalculatorModel:
    """A network of a family, with every optimizer's memory. Raises SpecError for one that cannot
    be built."""
    planned = plan_model(spec)
    names = {
        name: format_canonical_spec(planned.family, {**planned.settings, "optimizer": name})
        for name in OPTIMIZERS
    }
    network = GridNetwork(
        planned.spec, planned.family, list_plan_operations(planned), planned.parameters, names
    )
    lines = {
        precision: {name: compute_training_lines(planned, name, precision) for name in OPTIMIZERS}
        for precision in TRACED_IN
    }
    return CalculatorModel(
        network, lines, compute_network_amounts(network.works, network.parameters, LARGEST)
    )


def parse_model_names(
    requested: str, cached_models: ModelCache | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """("all", "none" or "resnet50,vgg16" as names, what is missing in a sentence). ``kept``: knows
    the names, too.

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
    known_names = _list_torchvision_names(cached_models or ModelCache())
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


def _list_torchvision_names(cached_models: ModelCache) -> tuple[str, ...]:
    """From the cache, where it has them: torchvision takes seconds to import."""
    if not cached_models.all_names:
        from torchvision import models

        cached_models.set_all_names(models.list_models(module=models))
        cached_models.write()
    return cached_models.all_names


def trace_model(model: str) -> CalculatorModel | str:
    """The model, or why it cannot be traced."""
    try:
        session = Session(Request(model, optimizer="adam", memory=True))
    except ModelError as error:
        return error.message
    plain = first, second = trace_memory_pair(session, "fp32")
    if first.problem or second.problem:
        return first.problem or second.problem or ""
    works = list_operations(first.ops, TRACED_AT[0])
    unknown = sum(work.calls for work in works if work.kind == "other")
    notes = (
        [f"{unknown} operations have no formula; perfctl counts their bytes only"]
        if unknown
        else []
    )
    lines: dict[str, dict[str, tuple[MemoryLine, ...]]] | None = None
    try:
        pairs = {
            name: trace_memory_pair(session, name) if name != "fp32" else plain
            for name in _list_traced_precisions(first)
        }
        lines = {name: _fit_lines_by_optimizer(pair) for name, pair in pairs.items()}
    except UnlikeTracesError as error:
        notes.append(f"memory is known only at the traced batch sizes: {error}")
    network = GridNetwork(model, model.partition(":")[0], merge_operations(works), first.parameters)
    return CalculatorModel(
        network,
        lines,
        compute_network_amounts(network.works, network.parameters, LARGEST),
        tuple(notes),
    )


def _fit_lines_by_optimizer(pair: tuple[Estimate, Estimate]) -> dict[str, tuple[MemoryLine, ...]]:
    """Raises LinesError where the traces have no memory, or differ in more than their sizes."""
    first, other = (estimate_.memory_trace for estimate_ in pair)
    if first is None or other is None:
        raise UnlikeTracesError("the trace has none")
    parts = fit_lines_by_phase(first, other, TRACED_AT)
    return {name: _adjust_optimizer_state(parts, name, pair[0].parameters) for name in OPTIMIZERS}


def _list_traced_precisions(estimate_: Estimate) -> tuple[str, ...]:
    """A softmax reads float16 as it is and bfloat16 after a cast, so that a model with one has
    lines of its own for bf16."""
    return (
        (*TRACED_IN, "bf16") if any(op.op == "aten._softmax" for op in estimate_.ops) else TRACED_IN
    )


def _adjust_optimizer_state(
    parts: tuple[Sequence[MemoryLine], Sequence[MemoryLine]], optimizer: str, parameters: int
) -> tuple[MemoryLine, ...]:
    """Of a step traced with Adam, as it is with another optimizer: only Adam's own step needs
    memory beside its state."""
    before, step = parts
    change = FLOAT * parameters * (STATE[optimizer] - STATE["adam"])
    lines = (*before, *step) if optimizer == "adam" else before
    return select_upper_lines(MemoryLine(line.fixed + change, line.per_sample) for line in lines)


class ModelCache:
    """Models of before, in a file; they hold for these versions of perfctl, torch and
    torchvision alone."""

    def __init__(
        self, file: Path | None = None, shipped: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """``shipped``: what :func:`shipped_table` found. Its models go before those of the file,
        and are not put there."""
        self._file = file
        self._shipped: dict[str, Any] = shipped.get("models", {})
        self.from_table: set[str] = set()
        """Models that were asked for and came from the table."""
        self._models: dict[str, CalculatorModel] = {}
        self._new = False
        self.all_names: tuple[str, ...] = tuple(shipped.get("names", ()))
        """Of torchvision's models; empty: not known."""
        if not self.all_names:
            self.all_names = tuple(map(str, self._found.get("names", ())))

    @cached_property
    def _key(self) -> str:
        return _digest_versions()

    @cached_property
    def _found(self) -> Mapping[str, Any]:
        """What the file holds; read where the table does not have a model."""
        if self._file is not None:
            # none yet, or not what was written here
            with suppress(OSError, ValueError, KeyError, TypeError):
                document = json.loads(self._file.read_text(encoding="utf-8"))
                if document["key"] == self._key:
                    return {"models": dict(document["models"]), "names": list(document["names"])}
        return {}

    @cached_property
    def _records(self) -> dict[str, Any]:
        return dict(self._found.get("models", {}))

    def model(self, name: str) -> CalculatorModel | None:
        if name in self._models:
            return self._models[name]
        if (cached := parse_model_record(self._shipped.get(name))) is not None:
            self.from_table.add(name)
        elif (cached := parse_model_record(self._records.get(name))) is None:
            return None
        self._models[name] = cached
        return cached

    def add(self, name: str, model: CalculatorModel) -> None:
        self._models[name], self._records[name], self._new = (
            model,
            convert_model_to_record(model),
            True,
        )

    def set_all_names(self, names: Sequence[str]) -> None:
        self.all_names, self._new = tuple(names), True

    def write(self) -> None:
        """A cache that cannot be written costs time and nothing else."""
        if self._file is not None and self._new:
            with suppress(OSError, PerfctlError):
                self._file.parent.mkdir(parents=True, exist_ok=True)
                document = {"key": self._key, "names": self.all_names, "models": self._records}
                write_text(self._file, json.dumps(document, separators=(",", ":")), force=True)


def load_shipped_table() -> Mapping[str, Any]:
    """The table that comes with perfctl ("names", "models" as :func:`model_record` has them); empty
    where it was traced with other versions of torch or torchvision than those installed, or cannot
    be read."""
    with suppress(OSError, ValueError, KeyError, EOFError, metadata.PackageNotFoundError):
        document = json.loads(
            gzip.decompress(Path(str(resources.files(__package__).joinpath(TABLE))).read_bytes())
        )
        if document["made_with"] == get_library_versions() and set(document) >= {"names", "models"}:
            return dict(document)
    return {}


def get_library_versions() -> dict[str, str]:
    """Versions of what a table depends on; builds of one version for other chips ("2.14.1+cu130")
    trace alike on meta."""
    return {name: metadata.version(name).partition("+")[0] for name in ("torch", "torchvision")}


def _digest_versions() -> str:
    """What a traced model depends on: the libraries, and perfctl's own code that builds and
    traces models."""
    digest = hashlib.sha256()
    for library in ("torch", "torchvision"):
        digest.update(f"{library} {metadata.version(library)}\n".encode())
    for package in (
        "perfctl.workloads",
        "perfctl.orchestrator.estimate",
        "perfctl.orchestrator.predict",
    ):
        for file in sorted(Path(str(resources.files(package))).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def convert_model_to_record(model: CalculatorModel) -> dict[str, Any]:
    """As JSON has it."""
    network, amounts = model.network, model.amounts
    return {
        "name": network.name,
        "family": network.family,
        "parameters": network.parameters,
        "notes": model.notes,
        "works": [astuple(work) for work in network.works],
        "lines": model.lines,
        "operations": amounts.operations,
        "steps": list(amounts.steps.items()),
        "optimizers": amounts.optimizers,
    }


def parse_model_record(record: Any) -> CalculatorModel | None:
    """Return the model; None for what :func:`model_record` did not make."""
    with suppress(KeyError, TypeError, ValueError):
        work = {name: record[name] for name in ("operations", "optimizers")}
        amounts = msgspec.convert({**work, "steps": dict(record["steps"])}, NetworkAmounts)
        lines = record["lines"]
        if lines is not None:
            lines = msgspec.convert(lines, dict[str, dict[str, tuple[MemoryLine, ...]]])
        works = tuple(Operation(*row) for row in record["works"])
        network = GridNetwork(record["name"], record["family"], works, record["parameters"])
        return CalculatorModel(network, lines, amounts, tuple(record["notes"]))
    return None
